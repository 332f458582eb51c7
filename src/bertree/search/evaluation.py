"""How well an index finds the documents that answer questions, in each mode; its figures, and their page.

A question counts by documents: a document has the place of its first passage. `first`: the share of questions with a
right document in the first place. `recall`: the share of a question's right documents among the first five or ten.
`mrr`: the mean of 1 / the place of the first right document among the first ten. `ndcg`: of the first ten. The page
has the figures of each mode, and the questions that fail, with what came first.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bertree.errors import counted
from bertree.files.formats import Json
from bertree.report.html import render
from bertree.report.tables import Cell, PageTable, Piece, start_of
from bertree.result_table import ResultTable, ShownAsTable
from bertree.search.passages import Hit
from bertree.tasks.metrics import Interval, interval, mean_statistic, paired_difference

DEPTH = 100  # passages whose documents are ranked
FIGURES = ("first", "recall@5", "recall@10", "mrr", "ndcg")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SearchQuestion:
    """A question and the ids of the documents that answer it."""

    text: str
    documents: frozenset[str]


@dataclass(frozen=True)
class ModeScores:
    """The figures of one mode: per question, the documents in order, and every figure."""

    mode: str
    ranked: list[list[str]]
    values: dict[str, Floats]
    seen: list[Hit | None]  # the first hit of each question

    def mean(self, name: str) -> float:
        """Return a figure of all questions."""
        return float(self.values[name].mean())

    def interval(self, name: str) -> Interval:
        """Return its 95 % confidence interval."""
        return interval(mean_statistic(self.values[name]))


@dataclass(frozen=True)
class Tuned:
    """A weight of words that was chosen on one part of the questions, and the figure on the other."""

    weight: float
    before: float  # the weight it had
    chosen_on: int  # questions
    held_out: int
    held_out_mrr: float  # with the new weight
    held_out_before: float  # with the one it had


@dataclass(frozen=True, repr=False)
class SearchEvaluation(ShownAsTable):
    """The scores of an index on questions, a mode after the other."""

    index: str
    questions: list[SearchQuestion]
    modes: list[ModeScores]
    tuned: Tuned | None = None
    missing: list[str] = field(default_factory=list)  # ids of right documents that are not in the index

    def _result_table(self) -> ResultTable:
        rows = [(scores.mode, *(f"{scores.mean(name):.4f}" for name in FIGURES)) for scores in self.modes]
        return ResultTable(f"{self.index}: {counted(len(self.questions), 'question')}", rows, ("mode", *FIGURES))

    def json(self) -> Json:
        """Return the figures, with their intervals and their difference to words alone (paired)."""
        words = next((scores for scores in self.modes if scores.mode == "words"), None)
        return {
            "index": self.index,
            "questions": len(self.questions),
            "missing": len(self.missing),
            "modes": {
                scores.mode: {
                    name: {
                        "score": scores.mean(name),
                        "interval": list(scores.interval(name)),
                        "over_words": None if words is None else difference(scores.values[name], words.values[name]),
                    }
                    for name in FIGURES
                }
                for scores in self.modes
            },
            "tuned": vars(self.tuned) if self.tuned else None,
        }


def difference(values: Floats, baseline: Floats) -> Json:
    """Return the mean difference of two scores of the same questions, with its interval (paired bootstrap)."""
    over = paired_difference(mean_statistic(baseline), mean_statistic(values))
    return {"mean": over.value, "interval": list(over.interval)}


SHOWN = 200  # failures
TEXT = 240  # characters of a passage


def evaluation_page(evaluation: SearchEvaluation) -> str:
    """Return the page."""
    return render(
        "search",
        title=f"search in {evaluation.index}",
        heading=f"Search in {evaluation.index}",
        under=f"{len(evaluation.questions):,} questions, measured by bertree index evaluate",
        figures=PageTable(
            ["mode", *FIGURES, "first, over words"],
            [
                [scores.mode, *(_figure(scores, name) for name in FIGURES), _over(evaluation, scores)]
                for scores in evaluation.modes
            ],
            numbers=range(1, len(FIGURES) + 2),
            under="Percent, with 95 % confidence intervals; the last column is the paired difference.",
        ),
        tuned=tuned_line(evaluation),
        failures=_failures(evaluation),
    )


def _figure(scores: ModeScores, name: str) -> Cell:
    low, high = scores.interval(name)
    return [
        [Piece(f"{100 * scores.mean(name):.1f}", "strong")],
        [Piece(f"{100 * low:.1f} to {100 * high:.1f}", "small")],
    ]


def _over(evaluation: SearchEvaluation, scores: ModeScores) -> Cell:
    over = evaluation.json()["modes"][scores.mode]["first"]["over_words"]
    if over is None or scores.mode == "words":
        return ""
    low, high = (100 * side for side in over["interval"])
    return [[Piece(f"{100 * over['mean']:+.1f}", "strong")], [Piece(f"{low:+.1f} to {high:+.1f}", "small")]]


def tuned_line(evaluation: SearchEvaluation) -> str:
    """Say which weight was chosen on which questions, and what it does on the others; nothing if none was."""
    tuned = evaluation.tuned
    if tuned is None:
        return ""
    return (
        f"Weight of words: {tuned.weight:g} (before: {tuned.before:g}), chosen on {tuned.chosen_on:,} questions. On "
        f"the other {tuned.held_out:,}: mrr {100 * tuned.held_out_mrr:.1f} (before: {100 * tuned.held_out_before:.1f})."
    )


def _failures(evaluation: SearchEvaluation) -> PageTable:
    """The questions that the last mode fails, the worst first."""
    last = evaluation.modes[-1]
    wrong = [number for number, first in enumerate(last.values["first"].tolist()) if not first]
    wrong.sort(key=lambda number: (last.values["mrr"][number], number))
    rows: list[list[Cell]] = []
    for number in wrong[:SHOWN]:
        question = evaluation.questions[number]
        hit = last.seen[number]
        ranks = [place(scores.ranked[number], question.documents) for scores in evaluation.modes]
        came_first = start_of(hit.text, TEXT) if hit else "nothing"
        rows.append([start_of(question.text), ", ".join(sorted(question.documents)), *ranks, came_first])
    names = [scores.mode for scores in evaluation.modes]
    under = f"{len(wrong):,} of {len(evaluation.questions):,}" + (f", the first {SHOWN}" if len(wrong) > SHOWN else "")
    head = ["question", "right document", *(f"place, {name}" for name in names), f"first, {names[-1]}"]
    return PageTable(head, rows, numbers=range(2, 2 + len(names)), under=under)


def place(ranked: list[str], right: frozenset[str]) -> str:
    """Return the place of the first right document."""
    return next((str(at) for at, id in enumerate(ranked, 1) if id in right), f"not in {DEPTH} passages")
