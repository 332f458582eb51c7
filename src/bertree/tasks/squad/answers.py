"""The answer to a question in several passages, read one by one: the best span of all.

Passages are treated as the windows of one long context are: a span's score is not normalized within its passage, so
spans of different passages can be compared, and probabilities are a softmax over the best spans of all passages. With
one passage the answer is that of `SquadTask.predict`.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from bertree.tasks.metrics import softmax
from bertree.tasks.squad import spans as squad_spans
from bertree.tasks.squad.spans import AnswerSpan, SpanCandidates
from bertree.tasks.squad.task import SquadTask
from bertree.tasks.task import Logits, Unit


class Answer(NamedTuple):
    """A candidate answer: passages[passage][start:end]."""

    text: str
    score: float  # its probability among the candidates
    passage: int
    start: int
    end: int


class Answers(NamedTuple):
    """The answer to a question."""

    best: Answer | None  # None: the passages do not say it
    score: float  # probability of the best answer, or of there being none
    candidates: list[Answer]  # the likeliest first, with different texts


def choose_answer(
    task: SquadTask, passages: Sequence[str], units: Sequence[Unit], logits: Sequence[Logits], most: int = 5
) -> Answers:
    """Return the best answer and at most so many candidates, from the units of all passages, in their order."""
    beam = task.head == "beam-span"
    found: list[tuple[AnswerSpan, int]] = []
    nulls: list[SpanCandidates] = []
    for number, group in groupby(zip(units, logits, strict=True), key=lambda pair: pair[0].example):
        parts, rows = zip(*group, strict=True)
        candidates = squad_spans.best_spans(parts, rows, task.max_answer, task.best, beam)
        nulls.append(candidates)
        found += [(span, number) for span in candidates.spans]
    kept = _distinct(found, passages)[: task.best]
    scores = [span.score for span, _ in kept]
    odds = null = min(candidates.null for candidates in nulls)
    if beam:
        odds = min(candidates.odds for candidates in nulls)
        null = odds + float(np.logaddexp.reduce(scores or [0.0]))
    elif scores:
        odds = null - scores[0]
    shares = softmax([*scores, null] if task.impossible or not kept else scores).tolist()
    answers = [
        Answer(passages[number][span.start : span.end], share, number, span.start, span.end)
        for (span, number), share in zip(kept, shares, strict=False)
    ]
    if answers and (not task.impossible or odds < -task.threshold):
        return Answers(answers[0], answers[0].score, answers[:most])
    return Answers(None, shares[-1], answers[:most])


def _distinct(found: Sequence[tuple[AnswerSpan, int]], passages: Sequence[str]) -> list[tuple[AnswerSpan, int]]:
    """Return the best span of each text, best first."""
    kept: dict[str, tuple[AnswerSpan, int]] = {}
    for span, number in sorted(found, key=lambda pair: -pair[0].score):
        kept.setdefault(passages[number][span.start : span.end], (span, number))
    return list(kept.values())
