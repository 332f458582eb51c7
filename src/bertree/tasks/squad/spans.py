"""Scores of first and last tokens -> the answer to a question, over all windows of its context.

As in BERT: a span's score is the sum of the logits of its first and last token; a span counts only in the window with
the most context around its first token; probabilities are a softmax over the best spans with different texts. The
search is exact: all pairs up to the length limit are compared.

As in XLNet (`beam`): the head gives a few first tokens and, for each, the probabilities of the last token; a span's
score is the logarithm of the product of both. "No answer" has a logit of its own.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bertree.tasks.squad.windows import ContextWindow
from bertree.tasks.task import Logits, Unit

ENDS = 5  # last tokens that a beam keeps for each first one


class AnswerSpan(NamedTuple):
    """A candidate answer: context[start:end]."""

    score: float
    start: int
    end: int


NONE = AnswerSpan(0.0, 0, 0)


class SpanCandidates(NamedTuple):
    """The best spans of a question over all its windows."""

    spans: list[AnswerSpan]  # the best with different texts, best first
    null: float  # score of "no answer"
    odds: float  # by how much "no answer" is ahead of an answer


def best_spans(
    units: Sequence[Unit], logits: Sequence[Logits], max_answer: int, best: int, beam: bool = False
) -> SpanCandidates:
    """Return the best spans of one question. `beam`: scores are those of a `BeamSpanHead`."""
    places: list[ContextWindow] = [unit.source for unit in units]
    extents = [(place.begin, place.begin + len(rows) - 1) for place, rows in zip(places, logits, strict=True)]
    spans: list[AnswerSpan] = []
    for place, (begin, end), rows, allowed in zip(places, extents, logits, widest(extents), strict=True):
        starts, ends = place.context.starts[begin:end], place.context.ends[begin:end]
        search = _beam_in_window if beam else _best_in_window
        spans += search(rows[1:].astype(np.float64), starts, ends, allowed, max_answer, best)
    spans.sort(key=lambda span: -span.score)
    text = places[0].context.text
    distinct: dict[str, AnswerSpan] = {}
    for span in spans:
        distinct.setdefault(text[span.start : span.end], span)
    kept = list(distinct.values())[:best]
    if beam:
        odds = min(float(rows[0, 2]) for rows in logits)
        return SpanCandidates(kept, odds + float(np.logaddexp.reduce([span.score for span in kept or [NONE]])), odds)
    null = min(float(rows[0, 0]) + float(rows[0, 1]) for rows in logits)
    return SpanCandidates(kept, null, null - kept[0].score if kept else null)


def widest(extents: Sequence[tuple[int, int]]) -> list[NDArray[np.bool_]]:
    """For each window, mark the tokens that have more context there than in any other window.

    The context is the smaller of the tokens to the left and to the right; then the longer window wins, then the
    earlier one."""
    if len(extents) == 1:
        return [np.ones(extents[0][1] - extents[0][0], bool)]
    tokens = np.arange(max(end for _, end in extents))
    around = np.full((len(extents), len(tokens)), -np.inf)
    for row, (begin, end) in zip(around, extents, strict=True):
        inside = tokens[begin:end]
        row[begin:end] = np.minimum(inside - begin, end - 1 - inside) + 0.01 * (end - begin)
    winner = around.argmax(axis=0)
    return [winner[begin:end] == number for number, (begin, end) in enumerate(extents)]


def _best_in_window(
    scores: NDArray[np.float64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    allowed: NDArray[np.bool_],
    max_answer: int,
    best: int,
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
    scores: NDArray[np.float64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    allowed: NDArray[np.bool_],
    max_answer: int,
    best: int,
) -> list[AnswerSpan]:
    """Return the best spans of a window; `scores` has the rows of a `BeamSpanHead` for its context tokens."""
    found: list[AnswerSpan] = []
    for row in np.flatnonzero((scores[:, 1] > 0) & allowed).tolist():
        last = scores[row : row + max_answer, 2 + int(scores[row, 1])]
        last = np.where(ends[row : row + max_answer] > starts[row], last, -np.inf)
        steps = np.argsort(-last, kind="stable")[: min(ENDS, best)]
        steps = steps[np.isfinite(last[steps])]
        joint = (scores[row, 0] + last[steps]).tolist()
        found += [AnswerSpan(s, int(starts[row]), e) for s, e in zip(joint, ends[row + steps].tolist(), strict=True)]
    return found
