"""Correlate similarities of sentence vectors with the gold scores of pairs, and show the result as a page.

Spearman reads the order alone, Pearson the distances too. A set of several parts has no single score: papers give the
one over all pairs, the mean over the parts, or the mean weighted by their sizes. These differ by several points, so all
three are given by name. A measure that is the same for every pair has no correlation: None, neither 0 nor NaN.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertree.embeddings.sts import PairSet
from bertree.errors import UserError
from bertree.inference.embedding import Vectors
from bertree.report.formats import end_of_path
from bertree.report.html import render
from bertree.report.svg import cloud_svg
from bertree.report.tables import BarRow, BarTable, CaptionedChart, Cell, PageTable, Piece, start_of
from bertree.tasks.metrics import Interval, correlation_statistic, interval, pearson, ranks, spearman

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

    overall: Figures  # over all pairs together
    mean: Figures | None  # over the parts, where there are several
    weighted: Figures | None  # by their numbers of pairs
    parts: dict[str, Figures]
    scores: tuple[dict[str, Floats], ...]  # of every part
    intervals: Mapping[str, Interval]  # 95 %, of the cosine over all pairs: kind -> correlations x 100

    @property
    def rows(self) -> list[tuple[str, Figures]]:
        """Every correlation with its name, the one over all pairs first."""
        means = [("mean", self.mean), ("weighted mean", self.weighted)]
        return [("all", self.overall), *((name, figures) for name, figures in means if figures), *self.parts.items()]


def score_set(pairs: PairSet, vectors: Sequence[tuple[Vectors, Vectors]]) -> SetScores:
    """Score a set; `vectors` has both sides of every part."""
    scores = tuple(measures(*sides) for sides in vectors)
    gold = [part.gold for part in pairs.parts]
    all_gold, all_scores = np.concatenate(gold), {n: np.concatenate([part[n] for part in scores]) for n in MEASURES}
    overall = correlations(all_gold, all_scores)
    intervals: dict[str, Interval] = {}
    for kind in [kind for kind in KINDS if overall[kind]["cosine"] is not None]:
        low, high = interval(correlation_statistic(kind, all_gold, all_scores["cosine"]))
        intervals[kind] = 100 * low, 100 * high
    if len(pairs.parts) == 1:
        return SetScores(overall, None, None, {}, scores, intervals)
    parts = {part.name: correlations(part.gold, values) for part, values in zip(pairs.parts, scores, strict=True)}
    sizes = [len(values) for values in gold]
    several = list(parts.values())
    return SetScores(overall, average(several), average(several, sizes), parts, scores, intervals)


def average(figures: Sequence[Figures], weights: Sequence[int] | None = None) -> Figures:
    """Return the mean of each correlation; None if one of them is undefined."""
    return {kind: {name: _mean([part[kind][name] for part in figures], weights) for name in MEASURES} for kind in KINDS}


def _mean(values: Sequence[float | None], weights: Sequence[int] | None) -> float | None:
    defined = [value for value in values if value is not None]
    return float(np.average(defined, weights=weights)) if len(defined) == len(values) else None


def undefined(pairs: PairSet, scores: SetScores) -> list[str]:
    """Return a line for each correlation that is undefined, and why."""
    golds = {"all": np.concatenate([part.gold for part in pairs.parts])} | {
        part.name: part.gold for part in pairs.parts
    }
    lines = []
    for name, figures in (("all", scores.overall), *scores.parts.items()):
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


CASES = 12
NAME = 60  # characters of a chart's title


@dataclass(frozen=True)
class EncoderScores:
    """An encoder and its scores on every set."""

    name: str
    dimension: int
    sets: tuple[SetScores, ...]
    average: float | None

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of the average: those of the sets, which are independent of each other."""
        spans = [(_spearman(scored), scored.intervals.get("spearman")) for scored in self.sets]
        halves = [(value - span[0], span[1] - value) for value, span in spans if value is not None and span]
        if self.average is None or len(halves) < len(spans):
            return None
        below, above = (math.hypot(*side) / len(halves) for side in zip(*halves, strict=True))
        return self.average - below, self.average + above


class _SetPart(NamedTuple):
    title: str
    charts: list[CaptionedChart]
    measures: PageTable
    cases: PageTable | None


def format_correlation(value: float | None) -> str:
    """Write a correlation x 100."""
    return "–" if value is None else f"{value:.2f}"


def format_span(interval: Interval | None) -> str:
    """Write the interval of a correlation x 100."""
    return "" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"


def evaluation_page(title: str, sets: Sequence[PairSet], encoders: Sequence[EncoderScores]) -> str:
    """Return the page."""
    best = encoders[_best([encoder.average for encoder in encoders]) or 0]
    left = sum(pairs.skipped for pairs in sets)
    tiles = [
        ("best", format_correlation(best.average), f"95 %: {format_span(best.interval)}; {best.name}"),
        (
            "pairs",
            f"{sum(pairs.pairs for pairs in sets):,}",
            f"{left:,} without gold left out" if left else "all of them have gold",
        ),
        ("sets", f"{len(sets)}", ", ".join(pairs.name for pairs in sets)),
        ("encoders", f"{len(encoders)}", "in one table"),
    ]
    of = f"{len(sets)} sets" if len(sets) > 1 else sets[0].name
    return render(
        "embeddings",
        title=f"{title} · sentence similarity",
        heading=f"Sentence similarity: {format_correlation(best.average)} on {of}",
        under=f"{best.name}; Spearman of the cosine x 100",
        tiles=tiles,
        table=_table(sets, encoders),
        bars=_averages(encoders) if len(encoders) > 1 else None,
        sets=[_set(pairs, [(row.name, row.sets[number]) for row in encoders]) for number, pairs in enumerate(sets)],
    )


def _best(values: Sequence[float | None]) -> int | None:
    defined = [(value, -number) for number, value in enumerate(values) if value is not None]
    return -max(defined)[1] if defined else None


def _spearman(scored: SetScores) -> float | None:
    return scored.overall["spearman"]["cosine"]


def _table(sets: Sequence[PairSet], encoders: Sequence[EncoderScores]) -> PageTable:
    columns = [[_spearman(encoder.sets[number]) for encoder in encoders] for number in range(len(sets))]
    spans = [[each.sets[number].intervals.get("spearman") for each in encoders] for number in range(len(sets))]
    names = [pairs.name for pairs in sets]
    if len(sets) > 1:
        columns.append([encoder.average for encoder in encoders])
        spans.append([encoder.interval for encoder in encoders])
        names.append("average")
    top = [_best(column) for column in columns]
    rows: list[list[Cell]] = []
    for number, encoder in enumerate(encoders):
        texts = [format_correlation(column[number]) for column in columns]
        strong = [best == number and len(encoders) > 1 for best in top]
        cells = [
            [[Piece(text, "strong" if bold else "")], [Piece(format_span(column[number]), "small")]]
            for text, bold, column in zip(texts, strong, spans, strict=True)
        ]
        rows.append([encoder.name, str(encoder.dimension), *cells])
    return PageTable(["", "width", *names], rows, numbers=range(1, len(names) + 2), kind="seeds")


def _averages(encoders: Sequence[EncoderScores]) -> BarTable:
    rows = [
        BarRow(row.name, [max(0.0, row.average or 0.0) / 100], [format_correlation(row.average)]) for row in encoders
    ]
    return BarTable("Encoders", rows, under="mean over the sets; the full width is 100", head=("Spearman",))


def _set(pairs: PairSet, encoders: Sequence[tuple[str, SetScores]]) -> _SetPart:
    gold = np.concatenate([part.gold for part in pairs.parts])
    cosines = [np.concatenate([scores["cosine"] for scores in scored.scores]) for _, scored in encoders]
    charts = []
    for (name, scored), cosine in zip(encoders, cosines, strict=True):
        spearman, pearson = (format_correlation(scored.overall[kind]["cosine"]) for kind in ("spearman", "pearson"))
        under = f"Spearman {spearman}, Pearson {pearson}; the line is the median of each step of gold"
        charts.append(CaptionedChart(cloud_svg(end_of_path(name, NAME), gold, cosine), under))
    best = _best([_spearman(scored) for _, scored in encoders])
    cases = None if best is None else _worst_pairs(pairs, gold, cosines[best], encoders[best][0])
    return _SetPart(f"{pairs.name}: {pairs.pairs:,} pairs", charts, _measures(encoders), cases)


def _measures(encoders: Sequence[tuple[str, SetScores]]) -> PageTable:
    """Return every correlation on a set and on its parts."""
    kinds = [(kind, measure) for kind in ("spearman", "pearson") for measure in MEASURES]
    rows = [
        [name, part, *(format_correlation(figures[kind][measure]) for kind, measure in kinds)]
        for name, scored in encoders
        for part, figures in scored.rows
    ]
    names = [f"{kind.capitalize()}, {measure}" for kind, measure in kinds]
    return PageTable(["", "pairs of", *names], rows, numbers=range(2, 2 + len(names)), kind="seeds")


def _worst_pairs(pairs: PairSet, gold: Floats, cosine: Floats, name: str) -> PageTable:
    """Return the pairs whose rank by cosine differs most from their rank by gold."""
    by_gold, by_cosine = ranks(gold) / len(gold), ranks(cosine) / len(gold)
    texts = [pair for part in pairs.parts for pair in zip(part.first, part.second, strict=True)]
    rows: list[list[Cell]] = []
    for number in np.argsort(-np.abs(by_gold - by_cosine), kind="stable")[:CASES].tolist():
        first, second = (start_of(text, 200) for text in texts[number])
        verdict = "too similar" if by_cosine[number] > by_gold[number] else "too dissimilar"
        shares = [f"{100 * share[number]:.0f} %" for share in (by_gold, by_cosine)]
        rows.append([first + second, f"{gold[number]:g}", f"{cosine[number]:.3f}", *shares, verdict])
    head = ["pair", "gold", "cosine", "percentile by gold", "by cosine", "the cosine is"]
    title = f"Pairs that {name} ranks most differently from gold"
    return PageTable(head, rows, numbers=[1, 2, 3, 4], kind="cases", title=title)
