"""How well an index finds the documents that answer questions, in each mode.

A question counts by documents: a document has the place of its first passage. `first`: the share of questions with a
right document in the first place. `recall`: the share of a question's right documents among the first five or ten.
`mrr`: the mean of 1 / the place of the first right document among the first ten. `ndcg`: of the first ten.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bertree.errors import counted
from bertree.files.formats import Json
from bertree.result_table import ResultTable, ShownAsTable
from bertree.search.passages import Hit
from bertree.tasks.intervals import Interval, interval, mean_statistic, paired_difference

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
