"""95 % confidence intervals of scores: what other examples of the same kind would have given.

One rule: a share of right answers (accuracy, exact match, recall at k) has Wilson's interval, which holds for few
examples too. Every other score is computed again on 1,000 samples that are drawn from the examples with replacement
(the percentile bootstrap, with a fixed seed). Examples that count alike are drawn as one cell of a multinomial, so the
cost depends on the number of different answers, not of examples. Neither says anything about the choice of a model on
the same examples, nor about other seeds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Interval = tuple[float, float]
Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]  # counts of each cell in b samples (b x cells) -> b scores

RESAMPLES = 1000
SEED = 0
Z = 1.959964  # standard deviations on either side that hold 95 %
FEW = 100  # examples; scores on fewer get a note
AT_ONCE = 1 << 21  # counts drawn at once
SCORED_AT_ONCE = 500_000  # examples that a score without a closed form is computed on, in all samples together
FEWEST_RESAMPLES = 100


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


def mean_interval(values: ArrayLike) -> Interval:
    """Return the interval of the mean of a value for each example: Wilson's if all of them are 0 or 1."""
    values_n = np.asarray(values, np.float64)
    if np.isin(values_n, (0.0, 1.0)).all():
        return share_interval(float(values_n.mean()), len(values_n))
    return ratio_interval(values_n, np.ones_like(values_n))


def ratio_interval(numerators: ArrayLike, denominators: ArrayLike) -> Interval:
    """Return the interval of a ratio of two sums over the examples, such as precision, recall or F1 of entities."""
    rows_n2 = np.stack([np.asarray(side, np.float64) for side in (numerators, denominators)], 1)
    cells_m2, counts_m = np.unique(rows_n2, axis=0, return_counts=True)
    return _bootstrap(counts_m, lambda counts_bm: _ratio(*(counts_bm @ cells_m2).T))


def label_intervals(figures: Sequence[str], gold: Sequence[str], predicted: Sequence[str]) -> dict[str, Interval]:
    """Return the intervals of figures of a classification: accuracy, f1, macro_f1, matthews."""
    labels = sorted({*gold, *predicted})
    numbers = {label: number for number, label in enumerate(labels)}
    pairs_n2 = np.array([[numbers[g], numbers[p]] for g, p in zip(gold, predicted, strict=True)])
    cells_m2, counts_m = np.unique(pairs_n2, axis=0, return_counts=True)
    gold_ml, predicted_ml = (np.eye(len(labels))[cells_m2[:, side]] for side in (0, 1))
    right_m = cells_m2[:, 0] == cells_m2[:, 1]

    def f1_by_class(counts_bm: Floats) -> tuple[Floats, Floats]:
        true_bl, total_bl = counts_bm @ (gold_ml * predicted_ml), counts_bm @ (gold_ml + predicted_ml)
        return _ratio(2 * true_bl, total_bl), total_bl

    def f1(counts_bm: Floats) -> Floats:
        return f1_by_class(counts_bm)[0][:, numbers["1"]] if "1" in numbers else np.zeros(len(counts_bm))

    def macro_f1(counts_bm: Floats) -> Floats:
        scores_bl, total_bl = f1_by_class(counts_bm)
        return scores_bl.sum(1) / (total_bl > 0).sum(1)

    def matthews(counts_bm: Floats) -> Floats:
        total_b, true_bl, guessed_bl = counts_bm.sum(1), counts_bm @ gold_ml, counts_bm @ predicted_ml
        covariance_b = (counts_bm @ right_m) * total_b - (true_bl * guessed_bl).sum(1)
        spread_b = (total_b**2 - (true_bl**2).sum(1)) * (total_b**2 - (guessed_bl**2).sum(1))
        return _defined_ratio(covariance_b, np.sqrt(spread_b))

    statistics: dict[str, Statistic] = {"f1": f1, "macro_f1": macro_f1, "matthews": matthews}
    share = float(counts_m[right_m].sum() / counts_m.sum())
    return {
        name: share_interval(share, len(gold)) if name == "accuracy" else _bootstrap(counts_m, statistics[name])
        for name in figures
    }


def correlation_interval(kind: str, gold: ArrayLike, predicted: ArrayLike) -> Interval:
    """Return the interval of a correlation, `pearson` or `spearman`."""
    pairs_n2 = np.stack([np.asarray(side, np.float64) for side in (gold, predicted)], 1)
    cells_m2, counts_m = np.unique(pairs_n2, axis=0, return_counts=True)
    groups = [np.unique(cells_m2[:, side], return_inverse=True)[1] for side in (0, 1)]

    def correlate(counts_bm: Floats) -> Floats:
        if kind == "spearman":
            sides = [_ranks(counts_bm, group_m) for group_m in groups]
        else:
            sides = [np.broadcast_to(cells_m2[:, side], counts_bm.shape) for side in (0, 1)]
        total_b1 = counts_bm.sum(1, keepdims=True)
        x_bm, y_bm = (side - (counts_bm * side).sum(1, keepdims=True) / total_b1 for side in sides)
        products = [(counts_bm * left * right).sum(1) for left, right in ((x_bm, y_bm), (x_bm, x_bm), (y_bm, y_bm))]
        return _defined_ratio(products[0], np.sqrt(products[1] * products[2]))

    return _bootstrap(counts_m, correlate)


def score_intervals(
    score: Callable[[Sequence[Any], Sequence[Any]], Mapping[str, float]],
    examples: Sequence[Any],
    predictions: Sequence[Any],
) -> dict[str, Interval]:
    """Return the intervals of what any function scores. Scores that are means of the scores of single examples are
    found as such; the others are computed again on samples, on fewer of them where there are many examples."""
    overall = score(examples, predictions)
    alone = [score([example], [line]) for example, line in zip(examples, predictions, strict=True)]
    intervals: dict[str, Interval] = {}
    for name, value in overall.items():
        values = [scores[name] for scores in alone if name in scores]
        if values and math.isclose(float(np.mean(values)), value, abs_tol=1e-9):
            intervals[name] = mean_interval(values)
    others = [name for name in overall if name not in intervals]
    if not others or len(examples) < 2:
        return intervals
    random = np.random.default_rng(SEED)
    resamples = max(FEWEST_RESAMPLES, min(RESAMPLES, SCORED_AT_ONCE // len(examples)))
    drawn: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(resamples):
        chosen = random.integers(len(examples), size=len(examples)).tolist()
        scores = score([examples[number] for number in chosen], [predictions[number] for number in chosen])
        for name in others:
            drawn[name].append(scores.get(name, math.nan))
    return intervals | {name: _percentiles(np.array(drawn[name]), overall[name], len(examples)) for name in others}


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


def _bootstrap(counts_m: NDArray[np.int64], statistic: Statistic) -> Interval:
    count = int(counts_m.sum())
    value = float(np.nan_to_num(statistic(counts_m[None].astype(np.float64))[0]))
    random, chunk = np.random.default_rng(SEED), max(1, AT_ONCE // len(counts_m))
    drawn = []
    for start in range(0, RESAMPLES, chunk):
        samples_bm = random.multinomial(count, counts_m / count, size=min(chunk, RESAMPLES - start))
        drawn.append(statistic(samples_bm.astype(np.float64)))
    return _percentiles(np.concatenate(drawn), value, count)


def _percentiles(scores: Floats, value: float, count: int) -> Interval:
    """Return where 95 % of the samples' scores are, and the score itself. If all of them are equal (every answer right)
    the samples say nothing about other examples: then it is Wilson's interval of that share."""
    defined = scores[np.isfinite(scores)]
    if not len(defined) or np.ptp(defined) == 0:
        low, high = share_interval(abs(value), count)
        return (low, high) if value >= 0 else (-high, -low)
    low, high = np.quantile(defined, (0.025, 0.975)).tolist()
    return min(low, value), max(high, value)
