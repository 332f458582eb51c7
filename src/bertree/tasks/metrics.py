"""Metrics and probabilities in numpy, as scikit-learn and scipy define them.

Implemented here because each is a few lines and neither library is needed otherwise. An undefined metric is 0.0, so
that a constant prediction scores like chance and comparisons (early stopping, the best of several runs) never see a
nan. For F1 and Matthews scikit-learn does the same; for the correlations scipy returns nan.
"""

from collections.abc import Sequence
from operator import eq

import numpy as np
from numpy.typing import ArrayLike, NDArray


def accuracy(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return the share of equal values."""
    assert len(gold) == len(predicted)
    return sum(map(eq, gold, predicted)) / len(gold) if gold else 0.0


def f1(gold: Sequence[str], predicted: Sequence[str], positive: str = "1") -> float:
    """Return the binary F1 of one class; 0.0 if it is neither in the gold labels nor predicted."""
    assert len(gold) == len(predicted)
    true_positives = sum(g == p == positive for g, p in zip(gold, predicted, strict=True))
    total = sum(g == positive for g in gold) + sum(p == positive for p in predicted)
    return 2 * true_positives / total if total else 0.0


def macro_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Return the mean F1 over all classes that occur in the gold labels or the predictions."""
    labels = sorted({*gold, *predicted})
    return sum(f1(gold, predicted, label) for label in labels) / len(labels) if labels else 0.0


def matthews(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Return the Matthews correlation for any number of classes (R_K); 0.0 if one side is constant."""
    assert len(gold) == len(predicted)
    labels = {label: number for number, label in enumerate(sorted({*gold, *predicted}))}
    confusion = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(confusion, ([labels[g] for g in gold], [labels[p] for p in predicted]), 1)
    # Python integers, since the products of four counts exceed int64 at some 50,000 examples.
    total, right = int(confusion.sum()), int(confusion.trace())
    true, guessed = confusion.sum(1).tolist(), confusion.sum(0).tolist()
    covariance = right * total - sum(t * s for t, s in zip(true, guessed, strict=True))
    variances = (total * total - sum(t * t for t in true)) * (total * total - sum(s * s for s in guessed))
    return float(covariance / variances**0.5) if variances else 0.0


def pearson(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return the Pearson correlation; 0.0 for fewer than two values or if one side is constant."""
    x, y = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
    assert x.shape == y.shape
    # Constant values are detected as such: their deviations from a rounded mean need not be exactly 0.
    if x.size < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    value = float((x / np.linalg.norm(x)) @ (y / np.linalg.norm(y)))
    return min(1.0, max(-1.0, value))


def spearman(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return the Pearson correlation of the ranks; 0.0 as for `pearson`."""
    return pearson(ranks(gold), ranks(predicted))


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Return the rank of each value from 1; equal values get the mean of their ranks."""
    _, group, sizes = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    last = sizes.cumsum()
    middle: NDArray[np.float64] = last - (sizes - 1) / 2
    return middle[group]


def softmax(scores: ArrayLike) -> NDArray[np.float64]:
    """Return the softmax along the last axis."""
    values = np.asarray(scores, np.float64)
    powers = np.exp(values - values.max(-1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(-1, keepdims=True)
    return shares
