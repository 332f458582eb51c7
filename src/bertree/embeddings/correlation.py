"""Correlate four similarity measures of sentence vectors with the gold scores of pairs.

Spearman counts the order alone, Pearson the distances too. A set of several parts has no single score: papers give
the one over all pairs together, the mean over the parts or the mean weighted by their sizes, and these differ by
several points, so all three are given by name. A measure that is the same for every pair has no
correlation: that is None here, not 0 and not NaN.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertree.embeddings.sts import PairSet
from bertree.errors import UserError
from bertree.inference.embedding import Vectors
from bertree.tasks.metrics import pearson, spearman

MEASURES = ("cosine", "dot", "euclidean", "manhattan")
KINDS = ("spearman", "pearson")
Floats = NDArray[np.float64]
Scores = Mapping[str, Floats]  # of each measure, one value a pair; the larger, the more alike
Figures = dict[str, dict[str, float | None]]  # kind, measure: correlation x 100


def measures(first_nd: Vectors, second_nd: Vectors) -> dict[str, Floats]:
    """Return four similarities of each pair; distances are negated, so that larger means more similar."""
    a_nd, b_nd = first_nd.astype(np.float64), second_nd.astype(np.float64)
    dot = (a_nd * b_nd).sum(1)
    lengths = np.linalg.norm(a_nd, axis=1) * np.linalg.norm(b_nd, axis=1)
    difference = a_nd - b_nd
    return {
        "cosine": np.clip(dot / np.where(lengths > 0, lengths, 1.0), -1.0, 1.0),
        "dot": dot,
        "euclidean": -np.linalg.norm(difference, axis=1),
        "manhattan": -np.abs(difference).sum(1),
    }


def correlations(gold: Floats, scores: Scores) -> Figures:
    """Return Spearman and Pearson x 100 for every measure."""
    return {
        "spearman": {name: _defined(spearman, gold, values) for name, values in scores.items()},
        "pearson": {name: _defined(pearson, gold, values) for name, values in scores.items()},
    }


def _defined(correlation: object, gold: Floats, values: Floats) -> float | None:
    assert callable(correlation)
    if len(gold) < 2 or np.ptp(gold) == 0 or _constant(values):
        return None
    return 100 * float(correlation(gold, values))


def _constant(values: Floats) -> bool:
    """Return whether values are equal up to rounding."""
    return bool(np.ptp(values) <= 1e-9 * max(1.0, float(np.abs(values).max())))


@dataclass(frozen=True)
class SetScores:
    """The correlations of one encoder on one set."""

    whole: Figures  # over all pairs together
    mean: Figures | None  # over the parts, where there are several
    weighted: Figures | None  # by their numbers of pairs
    parts: dict[str, Figures]
    scores: tuple[dict[str, Floats], ...]  # of every part

    @property
    def rows(self) -> list[tuple[str, Figures]]:
        """Every correlation with its name, the one over all pairs first."""
        means = [("mean", self.mean), ("weighted mean", self.weighted)]
        return [("all", self.whole), *((name, found) for name, found in means if found), *self.parts.items()]


def score_set(pairs: PairSet, vectors: Sequence[tuple[Vectors, Vectors]]) -> SetScores:
    """Score a set; `vectors` has both sides of every part."""
    scores = tuple(measures(*sides) for sides in vectors)
    gold = [part.gold for part in pairs.parts]
    whole = correlations(
        np.concatenate(gold), {name: np.concatenate([part[name] for part in scores]) for name in MEASURES}
    )
    if len(pairs.parts) == 1:
        return SetScores(whole, None, None, {}, scores)
    parts = {part.name: correlations(part.gold, found) for part, found in zip(pairs.parts, scores, strict=True)}
    sizes = [len(values) for values in gold]
    several = list(parts.values())
    return SetScores(whole, average(several), average(several, sizes), parts, scores)


def average(figures: Sequence[Figures], weights: Sequence[int] | None = None) -> Figures:
    """Return the mean of each correlation; None if one of them is undefined."""
    return {kind: {name: _mean([one[kind][name] for one in figures], weights) for name in MEASURES} for kind in KINDS}


def _mean(values: Sequence[float | None], weights: Sequence[int] | None) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.average(known, weights=weights)) if len(known) == len(values) else None


def undefined(pairs: PairSet, found: SetScores) -> list[str]:
    """Return a line for each correlation that is undefined, and why."""
    golds = {"all": np.concatenate([part.gold for part in pairs.parts])} | {
        part.name: part.gold for part in pairs.parts
    }
    lines = []
    for name, figures in (("all", found.whole), *found.parts.items()):
        missing = [measure for measure, value in figures["spearman"].items() if value is None]
        if missing:
            where = pairs.name if name == "all" else f"{pairs.name}, {name}"
            same = "gold" if len(golds[name]) and np.ptp(golds[name]) == 0 else ", ".join(missing)
            lines.append(f"{where}: {same} is the same for all pairs, so there is no correlation")
    return lines


def check(pairs: PairSet) -> None:
    """Refuse a set that cannot be scored."""
    if pairs.pairs < 2:
        raise UserError(f"{pairs.parts[0].file}: has {pairs.pairs} pair with gold; a correlation needs two")
