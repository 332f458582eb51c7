"""Questions and contexts as overlapping windows, and the best answer span over all windows of a context.

Every context and every question is tokenized once, and pairs are assembled from ids. That saves most of the tokenizing,
since a context has about five questions, and some contexts have several windows.

As in BERT: a span's score is the sum of the logits of its first and last token; a span counts only in the window with
the most context around its first token; probabilities are a softmax over the best spans with different texts. The
search is exact: all pairs up to the length limit are compared.

As in XLNet (`beam`): the head gives a few first tokens and, for each, the probabilities of the last token; a span's
score is the logarithm of the product of both. "No answer" has a logit of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bertree.tasks.squad.official import SquadExample
from bertree.tasks.task import Logits, Truncation, Unit
from bertree.text.framing import Frame, encode_distinct, tokenize_distinct
from bertree.text.tokenizer import Tokenizer

MAX_QUESTION = 64  # tokens of a question that are read, as BERT does
NO_SPAN = (0, 0)  # start and end on the first of the chosen tokens: no answer in this window
NULL_TOKENS = ("first", "last")  # position of the token that stands for "no answer"
Positions = NDArray[np.int64]
Flags = NDArray[np.bool_]
BEAM_ENDS = 5  # last tokens that a beam keeps for each first one


@dataclass(frozen=True)
class EncodedContext:
    """A tokenized context. Token i covers text[starts[i] : ends[i]], without white space at either end."""

    text: str
    ids: list[int]
    starts: Positions
    ends: Positions

    def tokens_of(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and last token that cover any of the characters start : end."""
        first = int(self.ends.searchsorted(start, "right"))
        last = int(self.starts.searchsorted(end, "left")) - 1
        return (first, last) if first <= last else None


class ContextWindow(NamedTuple):
    """What a unit reads of its context: the tokens from `begin`, one for each of `Unit.chosen` but the first."""

    context: EncodedContext
    begin: int


def question_units(
    examples: Sequence[SquadExample],
    tokenizer: Tokenizer,
    max_length: int,
    *,
    stride: int,
    max_answer: int,
    no_answer: str = "first",
) -> tuple[list[Unit], Truncation]:
    """Return the windows of all questions, in order; only questions beyond `MAX_QUESTION` tokens are truncated."""
    frame = Frame(tokenizer, pair=True)
    room = frame.room(max_length, min_tokens=2)
    contexts = _encode_contexts((example.context for example in examples), tokenizer)
    questions = tokenize_distinct((example.question for example in examples), tokenizer)
    longest = min(MAX_QUESTION, room // 2)
    units: list[Unit] = []
    truncated = [0, 0]
    for number, example in enumerate(examples):
        context, ids = contexts[example.context], questions[example.question]
        dropped = max(len(ids) - longest, 0)
        truncated = [truncated[0] + (dropped > 0), truncated[1] + dropped]
        question = ids[:longest]
        first = frame.start(len(question))
        gold = _gold_span(example, context)
        for begin, end in windows(len(context.ids), room - len(question), stride, max_answer):
            sequence = frame.wrap(question, context.ids[begin:end], dropped=dropped)
            # Without a special token for it, the first one after the question is the null token.
            null = len(sequence.ids) - 1 if no_answer == "last" else frame.summary(len(question), end - begin)
            chosen = [null, *range(first, first + end - begin)]
            answer = None if example.answers is None else _span_in_window(gold, begin, end)
            units.append(Unit(number, (sequence,), chosen, answer, ContextWindow(context, begin)))
    return units, Truncation(*truncated)


def windows(tokens: int, room: int, stride: int, max_answer: int) -> list[tuple[int, int]]:
    """Return the windows of a context, which cover all its tokens; each starts `stride` tokens after the one before.

    The stride is reduced if windows would overlap by less than an answer's length, so that every answer of up to
    `max_answer` tokens (or half a window) is inside one of them."""
    step = max(min(stride, max(room - max_answer, room // 2)), 1)
    return [(begin, min(begin + room, tokens)) for begin in range(0, max(tokens - room, 0) + step, step)]


def _gold_span(example: SquadExample, context: EncodedContext) -> tuple[int, int] | None:
    """Return the tokens of the first gold answer."""
    for text, start in example.answers or ():
        if start is not None:
            return context.tokens_of(start, start + len(text))
    return None


def _span_in_window(gold: tuple[int, int] | None, begin: int, end: int) -> tuple[int, int]:
    """Return a span of context tokens as indices into a window's chosen tokens; the first is the null token."""
    if gold is None or gold[0] < begin or gold[1] >= end:
        return NO_SPAN
    return gold[0] - begin + 1, gold[1] - begin + 1


def _encode_contexts(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, EncodedContext]:
    contexts: dict[str, EncodedContext] = {}
    for text, encoding in encode_distinct(texts, tokenizer, offsets=True):
        offsets = np.asarray(encoding.offsets, np.int64).reshape(-1, 2)
        contexts[text] = EncodedContext(text, tokenizer.ids_of(encoding, text), *_trim_offsets(text, offsets))
    return contexts


def _trim_offsets(text: str, offsets: Positions) -> tuple[Positions, Positions]:
    """Return starts and ends of tokens without white space, which some tokenizers add to the token after it."""
    blank = np.fromiter(map(str.isspace, text), bool, len(text))
    positions = np.arange(len(text))
    # Starts move to the next visible character, ends to just after the previous visible character.
    start_at = np.minimum.accumulate(np.append(np.where(blank, len(text), positions), len(text))[::-1])[::-1]
    end_at = np.maximum.accumulate(np.concatenate([[0], np.where(blank, 0, positions + 1)]))
    # Never decreasing: a token without characters has the position of the one before it.
    return np.maximum.accumulate(start_at[offsets[:, 0]]), np.maximum.accumulate(end_at[offsets[:, 1]])


class AnswerSpan(NamedTuple):
    """A candidate answer: context[start:end]."""

    score: float
    start: int
    end: int


NO_ANSWER = AnswerSpan(0.0, 0, 0)


class SpanCandidates(NamedTuple):
    """The best spans of a question over all its windows."""

    spans: list[AnswerSpan]  # the best with different texts, best first
    null: float  # score of "no answer"
    odds: float  # by how much "no answer" is ahead of an answer


def best_spans(
    units: Sequence[Unit], logits: Sequence[Logits], max_answer: int, best: int, beam: bool = False
) -> SpanCandidates:
    """Return the best spans of one question. `beam`: scores are those of a `BeamSpanHead`."""
    context_windows: list[ContextWindow] = [unit.source for unit in units]
    extents = [(w.begin, w.begin + len(rows) - 1) for w, rows in zip(context_windows, logits, strict=True)]
    spans: list[AnswerSpan] = []
    for window, (begin, end), rows, allowed in zip(
        context_windows, extents, logits, most_context(extents), strict=True
    ):
        starts, ends = window.context.starts[begin:end], window.context.ends[begin:end]
        search = _beam_in_window if beam else _best_in_window
        spans += search(rows[1:].astype(np.float64), starts, ends, allowed, max_answer, best)
    spans.sort(key=lambda span: -span.score)
    text = context_windows[0].context.text
    distinct: dict[str, AnswerSpan] = {}
    for span in spans:
        distinct.setdefault(text[span.start : span.end], span)
    kept = list(distinct.values())[:best]
    if beam:
        odds = min(float(rows[0, 2]) for rows in logits)
        return SpanCandidates(
            kept, odds + float(np.logaddexp.reduce([span.score for span in kept or [NO_ANSWER]])), odds
        )
    null = min(float(rows[0, 0]) + float(rows[0, 1]) for rows in logits)
    return SpanCandidates(kept, null, null - kept[0].score if kept else null)


def most_context(extents: Sequence[tuple[int, int]]) -> list[Flags]:
    """For each window, mark the tokens that have more context there than in any other window.

    The context is the smaller of the tokens to the left and to the right; then the longer window wins, then the
    earlier one."""
    if len(extents) == 1:
        return [np.ones(extents[0][1] - extents[0][0], bool)]
    tokens = np.arange(max(end for _, end in extents))
    around = np.full((len(extents), len(tokens)), -np.inf)
    for row, (begin, end) in zip(around, extents, strict=True):
        inside = tokens[begin:end]
        row[begin:end] = np.minimum(inside - begin, end - 1 - inside) + 0.01 * (end - begin)  # as in BERT's script
    winner = around.argmax(axis=0)
    return [winner[begin:end] == number for number, (begin, end) in enumerate(extents)]


def _best_in_window(
    scores: NDArray[np.float64], starts: Positions, ends: Positions, allowed: Flags, max_answer: int, best: int
) -> list[AnswerSpan]:
    """Return the best spans of a window; `scores` has a row of (first, last) for each of its context tokens."""
    width = min(max_answer, len(scores))
    if not width:
        return []
    first = np.where(allowed, scores[:, 0], -np.inf)
    last = np.append(scores[:, 1], np.full(width - 1, -np.inf))
    reach = np.append(ends, np.full(width - 1, -1))
    # Row i, column k: the tokens i .. i + k. White space alone, or tokens beyond the window, are no span.
    band = first[:, None] + sliding_window_view(last, width)
    band = np.where(sliding_window_view(reach, width) > starts[:, None], band, -np.inf).ravel()
    keep = min(best, len(band))
    cells = np.argpartition(-band, keep - 1)[:keep]
    cells = cells[np.lexsort((cells, -band[cells]))]
    cells = cells[np.isfinite(band[cells])]
    rows, steps = np.divmod(cells, width)
    return list(map(AnswerSpan, band[cells].tolist(), starts[rows].tolist(), ends[rows + steps].tolist()))


def _beam_in_window(
    scores: NDArray[np.float64], starts: Positions, ends: Positions, allowed: Flags, max_answer: int, best: int
) -> list[AnswerSpan]:
    """Return the best spans of a window; `scores` has the rows of a `BeamSpanHead` for its context tokens."""
    spans: list[AnswerSpan] = []
    for row in np.flatnonzero((scores[:, 1] > 0) & allowed).tolist():
        last = scores[row : row + max_answer, 2 + int(scores[row, 1])]
        last = np.where(ends[row : row + max_answer] > starts[row], last, -np.inf)
        steps = np.argsort(-last, kind="stable")[: min(BEAM_ENDS, best)]
        steps = steps[np.isfinite(last[steps])]
        joint = (scores[row, 0] + last[steps]).tolist()
        spans += [AnswerSpan(s, int(starts[row]), e) for s, e in zip(joint, ends[row + steps].tolist(), strict=True)]
    return spans
