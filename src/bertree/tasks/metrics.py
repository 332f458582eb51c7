"""Metrics and probabilities in numpy, as scikit-learn and scipy define them; and 95 % confidence intervals of scores.

Metrics are implemented here because each is a few lines and neither library is needed otherwise. An undefined metric is
0.0, so that a constant prediction scores like chance and comparisons (early stopping, the best of several runs) never
see a nan. For F1 and Matthews scikit-learn does the same; for the correlations scipy returns nan.

An interval of a score or of a difference says what other examples of the same kind would have given. One rule: a share
of right answers (accuracy, exact match, recall at k) has Wilson's interval, which holds for few examples too. Every
other score is computed again on 1,000 samples that are drawn from the examples with replacement (the percentile
bootstrap, with a fixed seed). So is the difference of two models, both on the same samples. None of it says anything
about the choice of a model on the same examples, nor about other seeds.

A task gives its scores as values of `Statistic`; intervals and differences follow from them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from operator import eq
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Interval = tuple[float, float]
Floats = NDArray[np.float64]

RESAMPLES = 1000
SEED = 0
Z = 1.959964  # standard deviations on either side that hold 95 %
FEW = 100  # examples; scores on fewer get a note
AT_ONCE = 1 << 21  # counts drawn at once
SCORED_AT_ONCE = 500_000  # examples that a score without a closed form is computed on, in all samples together
FEWEST_RESAMPLES = 100


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


def few_line(split: str, count: int) -> str:
    """Return a line about a split that is too small to tell models apart; nothing if it is not."""
    if count >= FEW:
        return ""
    points = min(100.0, 100 * Z * math.sqrt(0.5 / max(count, 1)))  # of two shares near one half
    few = "one example is" if count == 1 else f"{count} examples are"
    if points >= 100:
        return f"{split}: only {few} scored, so the score says nothing"
    return f"{split}: only {few} scored, so differences of less than about {points:.0f} points are within chance"


def share_interval(share: float, count: int) -> Interval:
    """Return Wilson's interval of a share of `count` examples."""
    share, weight = min(1.0, max(0.0, share)), Z * Z / max(count, 1)
    middle = (share + weight / 2) / (1 + weight)
    half = math.sqrt(weight * share * (1 - share) + weight * weight / 4) / (1 + weight)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


class Statistic(NamedTuple):
    """A score as a function of how often each example is drawn."""

    rows_nk: Floats  # the numbers of each example
    of_samples: Callable[[Floats, Floats], Floats]  # counts of each cell (b x m), its numbers (m x k) -> b scores
    mean: bool = False  # the score is the mean of the first number
    resamples: int = RESAMPLES


class Difference(NamedTuple):
    """The difference of two scores on the same examples (paired bootstrap, with a fixed seed)."""

    value: float
    interval: Interval  # 95 %
    p: float  # two-sided: twice the share of samples whose difference has the other sign or is 0


def interval(statistic: Statistic) -> Interval:
    """Return the interval of a score: Wilson's if it is the mean of values that are all 0 or 1."""
    values_n = statistic.rows_nk[:, 0]
    if statistic.mean and np.isin(values_n, (0.0, 1.0)).all():
        return share_interval(float(values_n.mean()), len(values_n))
    value, drawn = _resample(statistic)
    return _percentiles(drawn, value, len(values_n))


def paired_difference(first: Statistic, second: Statistic) -> Difference:
    """Return by how much the second score is above the first; a sample draws the same examples for both."""
    width = first.rows_nk.shape[1]

    def subtract(counts_bm: Floats, cells_mk: Floats) -> Floats:
        return second.of_samples(counts_bm, cells_mk[:, width:]) - first.of_samples(counts_bm, cells_mk[:, :width])

    if first.mean and second.mean:
        both = mean_statistic(second.rows_nk[:, 0] - first.rows_nk[:, 0])
    else:
        rows_nk = np.hstack([first.rows_nk, second.rows_nk])
        both = Statistic(rows_nk, subtract, resamples=min(first.resamples, second.resamples))
    value, drawn = _resample(both)
    drawn = drawn[np.isfinite(drawn)]
    if value == 0 and not drawn.any():
        return Difference(0.0, (0.0, 0.0), 1.0)
    other_sign = int(min((drawn <= 0).sum(), (drawn >= 0).sum()))
    p = min(1.0, 2 * (1 + other_sign) / (1 + len(drawn)))
    return Difference(value, _percentiles(drawn, value, len(both.rows_nk)), p)


def mean_statistic(values: ArrayLike) -> Statistic:
    """Return the mean of a value for each example."""
    values_n = np.asarray(values, np.float64)
    return ratio_statistic(values_n, np.ones_like(values_n))._replace(mean=True)


def ratio_statistic(numerators: ArrayLike, denominators: ArrayLike) -> Statistic:
    """Return a ratio of two sums over the examples, such as precision, recall or F1 of entities."""
    rows_n2 = np.stack([np.asarray(side, np.float64) for side in (numerators, denominators)], 1)
    return Statistic(rows_n2, lambda counts_bm, cells_m2: _ratio(*(counts_bm @ cells_m2).T))


def label_statistics(figures: Sequence[str], gold: Sequence[str], predicted: Sequence[str]) -> dict[str, Statistic]:
    """Return figures of a classification: accuracy, f1, macro_f1, matthews."""
    labels = sorted({*gold, *predicted})
    numbers = {label: number for number, label in enumerate(labels)}
    pairs_n2 = np.array([[numbers[g], numbers[p]] for g, p in zip(gold, predicted, strict=True)], np.float64)

    def one_hot(cells_m2: Floats) -> tuple[Floats, Floats]:
        gold_ml, predicted_ml = (np.eye(len(labels))[side_m] for side_m in cells_m2.T.astype(np.int64))
        return gold_ml, predicted_ml

    def f1_by_class(counts_bm: Floats, cells_m2: Floats) -> tuple[Floats, Floats]:
        gold_ml, predicted_ml = one_hot(cells_m2)
        true_bl, total_bl = counts_bm @ (gold_ml * predicted_ml), counts_bm @ (gold_ml + predicted_ml)
        return _ratio(2 * true_bl, total_bl), total_bl

    def f1(counts_bm: Floats, cells_m2: Floats) -> Floats:
        return f1_by_class(counts_bm, cells_m2)[0][:, numbers["1"]] if "1" in numbers else np.zeros(len(counts_bm))

    def macro_f1(counts_bm: Floats, cells_m2: Floats) -> Floats:
        scores_bl, total_bl = f1_by_class(counts_bm, cells_m2)
        return scores_bl.sum(1) / (total_bl > 0).sum(1)

    def matthews(counts_bm: Floats, cells_m2: Floats) -> Floats:
        gold_ml, predicted_ml = one_hot(cells_m2)
        total_b, true_bl, guessed_bl = counts_bm.sum(1), counts_bm @ gold_ml, counts_bm @ predicted_ml
        right_b = counts_bm @ (gold_ml * predicted_ml).sum(1)
        covariance_b = right_b * total_b - (true_bl * guessed_bl).sum(1)
        spread_b = (total_b**2 - (true_bl**2).sum(1)) * (total_b**2 - (guessed_bl**2).sum(1))
        return _defined_ratio(covariance_b, np.sqrt(spread_b))

    statistics = {function.__name__: Statistic(pairs_n2, function) for function in (f1, macro_f1, matthews)}
    statistics["accuracy"] = mean_statistic(pairs_n2[:, 0] == pairs_n2[:, 1])
    return {name: statistics[name] for name in figures}


def correlation_statistic(kind: str, gold: ArrayLike, predicted: ArrayLike) -> Statistic:
    """Return a correlation, `pearson` or `spearman`."""
    pairs_n2 = np.stack([np.asarray(side, np.float64) for side in (gold, predicted)], 1)

    def correlate(counts_bm: Floats, cells_m2: Floats) -> Floats:
        if kind == "spearman":
            groups = [np.unique(side_m, return_inverse=True)[1] for side_m in cells_m2.T]
            sides = [_ranks(counts_bm, group_m) for group_m in groups]
        else:
            sides = [np.broadcast_to(side_m, counts_bm.shape) for side_m in cells_m2.T]
        total_b1 = counts_bm.sum(1, keepdims=True)
        x_bm, y_bm = (side - (counts_bm * side).sum(1, keepdims=True) / total_b1 for side in sides)
        products = [(counts_bm * left * right).sum(1) for left, right in ((x_bm, y_bm), (x_bm, x_bm), (y_bm, y_bm))]
        return _defined_ratio(products[0], np.sqrt(products[1] * products[2]))

    return Statistic(pairs_n2, correlate)


def score_statistics(
    score: Callable[[Sequence[Any], Sequence[Any]], Mapping[str, float]],
    examples: Sequence[Any],
    predictions: Sequence[Any],
) -> dict[str, Statistic]:
    """Return what any function scores. Scores that are means of the scores of single examples are found as such; the
    others are computed again on samples, on fewer of them where there are many examples."""
    alone = [score([example], [line]) for example, line in zip(examples, predictions, strict=True)]
    resamples = max(FEWEST_RESAMPLES, min(RESAMPLES, SCORED_AT_ONCE // len(examples)))
    numbers_n1 = np.arange(len(examples), dtype=np.float64)[:, None]

    def statistic(name: str, value: float) -> Statistic:
        values = [scores[name] for scores in alone if name in scores]
        if values and math.isclose(float(np.mean(values)), value, abs_tol=1e-9):
            return mean_statistic(values)

        def score_again(counts_bm: Floats, cells_m1: Floats) -> Floats:
            drawn = [np.repeat(cells_m1[:, 0], counts_m.astype(np.int64)) for counts_m in counts_bm]
            sides = [[[side[int(n)] for n in chosen] for side in (examples, predictions)] for chosen in drawn]
            return np.array([score(*side).get(name, math.nan) for side in sides])

        return Statistic(numbers_n1, score_again, resamples=resamples)

    return {name: statistic(name, value) for name, value in score(examples, predictions).items()}


def _ranks(counts_bm: Floats, group_m: NDArray[np.int64]) -> Floats:
    """Return the rank of each cell's value in every sample; equal values share the mean of their ranks."""
    order = np.argsort(group_m, kind="stable")
    starts = np.searchsorted(group_m[order], np.arange(group_m.max() + 1))
    sizes_bg = np.add.reduceat(counts_bm[:, order], starts, axis=1)
    middle_bg = sizes_bg.cumsum(1) - (sizes_bg - 1) / 2
    return middle_bg[:, group_m]


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Return the quotient; 0 where it is undefined, as in metrics.py."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator, np.float64), where=denominator > 0)


def _defined_ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Return the quotient; NaN where it is undefined: samples of one class, or of one value, tell no correlation."""
    return np.where(denominator > 0, _ratio(numerator, denominator), np.nan)


def _resample(statistic: Statistic) -> tuple[float, Floats]:
    """Return a score (0 if it is undefined), and that of samples drawn with replacement. Examples with the same numbers
    are one cell of a multinomial, so the cost depends on the number of different answers, not of examples."""
    cells_mk, counts_m = np.unique(statistic.rows_nk, axis=0, return_counts=True)
    count, chunk = int(counts_m.sum()), max(1, AT_ONCE // len(counts_m))
    random, drawn = np.random.default_rng(SEED), []
    for start in range(0, statistic.resamples, chunk):
        samples_bm = random.multinomial(count, counts_m / count, size=min(chunk, statistic.resamples - start))
        drawn.append(statistic.of_samples(samples_bm.astype(np.float64), cells_mk))
    value = statistic.of_samples(counts_m[None].astype(np.float64), cells_mk)[0]
    return float(np.nan_to_num(value)), np.concatenate(drawn)


def _percentiles(scores: Floats, value: float, count: int) -> Interval:
    """Return where 95 % of the samples' scores are, and the score itself. If all of them are equal (every answer right)
    the samples say nothing about other examples: then it is Wilson's interval of that share."""
    defined = scores[np.isfinite(scores)]
    if not len(defined) or np.ptp(defined) == 0:
        low, high = share_interval(abs(value), count)
        return (low, high) if value >= 0 else (-high, -low)
    low, high = np.quantile(defined, (0.025, 0.975)).tolist()
    return min(low, value), max(high, value)
