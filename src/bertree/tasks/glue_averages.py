"""The GLUE average, by each of the four conventions in use.

They differ by several points on the same model, so an average is given with the name of its convention, and only if
all of its scores are there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

Figure = tuple[str, str]  # task, metric


class Average(NamedTuple):
    """A mean score, or None and the scores that are missing."""

    value: float | None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Convention:
    """How a paper or site averages: the mean of its terms, each the mean of one or more scores."""

    name: str
    source: str
    terms: tuple[tuple[Figure, ...], ...]

    def __call__(self, results: Mapping[str, Mapping[str, float]]) -> Average:
        """Return the average. `results` maps each task to its scores; MNLI on the mismatched split is `mnli-mm`."""
        missing = [
            f"{task} {metric}" for term in self.terms for task, metric in term if not _is_score(results, task, metric)
        ]
        if missing:
            return Average(None, tuple(missing))
        means = [sum(results[task][metric] for task, metric in term) / len(term) for term in self.terms]
        return Average(sum(means) / len(means))


def _is_score(results: Mapping[str, Mapping[str, float]], task: str, metric: str) -> bool:
    """True if there is a score; a run that has diverged writes none."""
    return isinstance(results.get(task, {}).get(metric), int | float)


def _accuracy(*tasks: str) -> tuple[tuple[Figure, ...], ...]:
    return tuple(((task, "accuracy"),) for task in tasks)


def _both(task: str, *names: str) -> tuple[Figure, ...]:
    return tuple((task, name) for name in names)


COLA = (("cola", "matthews"),)
TWO_EACH = (
    _both("mrpc", "accuracy", "f1"),
    _both("sts-b", "pearson", "spearman"),
    _both("qqp", "accuracy", "f1"),
)
GLUE_AVERAGES = {
    convention.name: convention
    for convention in (
        Convention(
            "leaderboard",
            "GLUE's site: nine tasks with WNLI; both metrics of MRPC, STS-B and QQP and both halves of MNLI averaged "
            "first; the diagnostics do not count.",
            (
                COLA,
                *TWO_EACH,
                (("mnli", "accuracy"), ("mnli-mm", "accuracy")),
                *_accuracy("sst-2", "qnli", "rte", "wnli"),
            ),
        ),
        Convention(
            "bert",
            "BERT's Table 1: no WNLI, MNLI-m and MNLI-mm as two of nine columns; F1 for QQP and MRPC, Spearman for "
            "STS-B.",
            (
                *_accuracy("mnli", "mnli-mm", "qnli", "sst-2", "rte"),
                *((("qqp", "f1"),), (("mrpc", "f1"),), (("sts-b", "spearman"),)),
                COLA,
            ),
        ),
        Convention(
            "distilbert",
            "DistilBERT's Table 1 (dev sets): nine tasks with WNLI, one MNLI figure; its ELMo row shows that MRPC and "
            "QQP are means of accuracy and F1 and STS-B of both correlations. MNLI is taken to be the matched half.",
            (COLA, *TWO_EACH, *_accuracy("mnli", "sst-2", "qnli", "rte", "wnli")),
        ),
        Convention(
            "roberta",
            "RoBERTa's and ALBERT's dev tables: eight tasks without WNLI, MNLI-m, accuracy for QQP and MRPC, Pearson "
            "for STS-B. Neither prints the mean of its row; later papers do.",
            (*_accuracy("mnli", "qnli", "qqp", "rte", "sst-2", "mrpc"), COLA, (("sts-b", "pearson"),)),
        ),
    )
}
