"""Questions and contexts as an encoder reads them: overlapping windows that cover every token of a context.

Every context and every question is tokenized once, and pairs are put together from ids. That saves most of the
tokenizing, since a context has some five questions, and some have several windows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertree.tasks.squad.read import SquadExample
from bertree.tasks.task import Truncation, Unit
from bertree.text.framing import Frame, encode_distinct, tokenize_distinct
from bertree.text.tokenizer import Tokenizer

QUESTION = 64  # tokens of a question that are read, as BERT does
NOWHERE = (0, 0)  # start and end on the first of the chosen tokens: no answer in this window
PLACES = ("first", "last")  # of the token that stands for "no answer"
Positions = NDArray[np.int64]


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
    """The part of its context that a unit reads: the tokens from `begin`, one for each chosen token but the first."""

    context: EncodedContext
    begin: int


def units(
    examples: Sequence[SquadExample],
    tokenizer: Tokenizer,
    max_length: int,
    stride: int,
    max_answer: int,
    no_answer: str = "first",
) -> tuple[list[Unit], Truncation]:
    """Return the windows of all questions, in order; only questions beyond `QUESTION` tokens are truncated."""
    frame = Frame(tokenizer, pair=True)
    room = frame.room(max_length, min_tokens=2)
    contexts = _encode_contexts((example.context for example in examples), tokenizer)
    questions = tokenize_distinct((example.question for example in examples), tokenizer)
    longest = min(QUESTION, room // 2)
    made: list[Unit] = []
    cut = [0, 0]
    for number, example in enumerate(examples):
        context, ids = contexts[example.context], questions[example.question]
        dropped = max(len(ids) - longest, 0)
        cut = [cut[0] + (dropped > 0), cut[1] + dropped]
        question = ids[:longest]
        first = frame.start(len(question))
        gold = _gold_span(example, context)
        for begin, end in windows(len(context.ids), room - len(question), stride, max_answer):
            sequence = frame.wrap(question, context.ids[begin:end], dropped=dropped)
            # Without a special token for it, the first one after the question is the null token.
            null = len(sequence.ids) - 1 if no_answer == "last" else frame.summary(len(question), end - begin)
            chosen = [null, *range(first, first + end - begin)]
            answer = None if example.answers is None else _span_in_window(gold, begin, end)
            made.append(Unit(number, (sequence,), chosen, answer, ContextWindow(context, begin)))
    return made, Truncation(*cut)


def windows(tokens: int, room: int, stride: int, max_answer: int) -> list[tuple[int, int]]:
    """Return parts of a context that cover all its tokens; each starts `stride` tokens after the one before.

    Earlier if windows are so short that they would overlap by less than an answer's length: every answer of up to
    `max_answer` tokens (or half a window) is then inside one of them."""
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
        return NOWHERE
    return gold[0] - begin + 1, gold[1] - begin + 1


def _encode_contexts(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, EncodedContext]:
    found: dict[str, EncodedContext] = {}
    for text, encoding in encode_distinct(texts, tokenizer, offsets=True):
        offsets = np.asarray(encoding.offsets, np.int64).reshape(-1, 2)
        found[text] = EncodedContext(text, encoding.ids, *_trim_offsets(text, offsets))
    return found


def _trim_offsets(text: str, offsets: Positions) -> tuple[Positions, Positions]:
    """Return starts and ends of tokens without white space, which some tokenizers add to the token after it."""
    blank = np.fromiter(map(str.isspace, text), bool, len(text))
    places = np.arange(len(text))
    # Starts move to the next visible character, ends to just behind the previous visible character.
    start_at = np.minimum.accumulate(np.append(np.where(blank, len(text), places), len(text))[::-1])[::-1]
    end_at = np.maximum.accumulate(np.concatenate([[0], np.where(blank, 0, places + 1)]))
    # Never decreasing: a token without characters has the place of the one before it.
    return np.maximum.accumulate(start_at[offsets[:, 0]]), np.maximum.accumulate(end_at[offsets[:, 1]])
