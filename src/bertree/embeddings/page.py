"""The page of an evaluation of sentence vectors: scores, gold scores against cosines, and the worst pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertree.embeddings.correlation import MEASURES, Floats, SetScores
from bertree.embeddings.sts import PairSet
from bertree.report.formats import end_of_path
from bertree.report.html import render
from bertree.report.svg import cloud_svg
from bertree.report.tables import BarRow, BarTable, CaptionedChart, Cell, PageTable, Piece, one_line, start_of
from bertree.tasks.metrics import ranks

CASES = 12
NAME = 60  # characters of a chart's title


@dataclass(frozen=True)
class EncoderScores:
    """An encoder and its scores on every set."""

    name: str
    dimension: int
    sets: tuple[SetScores, ...]
    average: float | None


class _SetPart(NamedTuple):
    title: str
    charts: list[CaptionedChart]
    measures: PageTable
    cases: PageTable | None


def format_correlation(value: float | None) -> str:
    """Write a correlation x 100."""
    return "–" if value is None else f"{value:.2f}"


def evaluation_page(title: str, sets: Sequence[PairSet], encoders: Sequence[EncoderScores]) -> str:
    """Return the page."""
    best = encoders[_best([encoder.average for encoder in encoders]) or 0]
    left = sum(one.skipped for one in sets)
    tiles = [
        ("best", format_correlation(best.average), best.name),
        (
            "pairs",
            f"{sum(one.pairs for one in sets):,}",
            f"{left:,} without gold left out" if left else "all of them have gold",
        ),
        ("sets", f"{len(sets)}", ", ".join(one.name for one in sets)),
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
        sets=[_set(one, [(row.name, row.sets[number]) for row in encoders]) for number, one in enumerate(sets)],
    )


def _best(values: Sequence[float | None]) -> int | None:
    known = [(value, -number) for number, value in enumerate(values) if value is not None]
    return -max(known)[1] if known else None


def _spearman(scored: SetScores) -> float | None:
    return scored.whole["spearman"]["cosine"]


def _table(sets: Sequence[PairSet], encoders: Sequence[EncoderScores]) -> PageTable:
    columns = [[_spearman(encoder.sets[number]) for encoder in encoders] for number in range(len(sets))]
    names = [one.name for one in sets]
    if len(sets) > 1:
        columns.append([encoder.average for encoder in encoders])
        names.append("average")
    top = [_best(column) for column in columns]
    rows: list[list[Cell]] = []
    for number, encoder in enumerate(encoders):
        texts = [format_correlation(column[number]) for column in columns]
        strong = [best == number and len(encoders) > 1 for best in top]
        cells = [one_line(Piece(text, "strong")) if bold else text for text, bold in zip(texts, strong, strict=True)]
        rows.append([encoder.name, str(encoder.dimension), *cells])
    return PageTable(["", "width", *names], rows, numbers=range(1, len(names) + 2), kind="seeds")


def _averages(encoders: Sequence[EncoderScores]) -> BarTable:
    rows = [
        BarRow(row.name, [max(0.0, row.average or 0.0) / 100], [format_correlation(row.average)]) for row in encoders
    ]
    return BarTable("Encoders", rows, under="mean over the sets; the full width is 100", head=("Spearman",))


def _set(pairs: PairSet, found: Sequence[tuple[str, SetScores]]) -> _SetPart:
    gold = np.concatenate([part.gold for part in pairs.parts])
    cosines = [np.concatenate([scores["cosine"] for scores in scored.scores]) for _, scored in found]
    charts = []
    for (name, scored), cosine in zip(found, cosines, strict=True):
        spearman, pearson = (format_correlation(scored.whole[kind]["cosine"]) for kind in ("spearman", "pearson"))
        under = f"Spearman {spearman}, Pearson {pearson}; the line: the median of each step of gold"
        charts.append(CaptionedChart(cloud_svg(end_of_path(name, NAME), gold, cosine), under))
    best = _best([_spearman(scored) for _, scored in found])
    cases = None if best is None else _worst_pairs(pairs, gold, cosines[best], found[best][0])
    return _SetPart(f"{pairs.name}: {pairs.pairs:,} pairs", charts, _measures(found), cases)


def _measures(found: Sequence[tuple[str, SetScores]]) -> PageTable:
    """Return every correlation on a set and on its parts."""
    kinds = [(kind, measure) for kind in ("spearman", "pearson") for measure in MEASURES]
    rows = [
        [name, part, *(format_correlation(figures[kind][measure]) for kind, measure in kinds)]
        for name, scored in found
        for part, figures in scored.rows
    ]
    names = [f"{kind.capitalize()}, {measure}" for kind, measure in kinds]
    return PageTable(["", "pairs of", *names], rows, numbers=range(2, 2 + len(names)), kind="seeds")


def _worst_pairs(pairs: PairSet, gold: Floats, cosine: Floats, name: str) -> PageTable:
    """Return the pairs whose rank by cosine differs most from their rank by gold."""
    by_gold, by_cosine = ranks(gold) / len(gold), ranks(cosine) / len(gold)
    texts = [both for part in pairs.parts for both in zip(part.first, part.second, strict=True)]
    rows: list[list[Cell]] = []
    for number in np.argsort(-np.abs(by_gold - by_cosine), kind="stable")[:CASES].tolist():
        first, second = (start_of(text, 200) for text in texts[number])
        verdict = "too similar" if by_cosine[number] > by_gold[number] else "too dissimilar"
        shares = [f"{100 * share[number]:.0f} %" for share in (by_gold, by_cosine)]
        rows.append([first + second, f"{gold[number]:g}", f"{cosine[number]:.3f}", *shares, verdict])
    head = ["pair", "gold", "cosine", "percentile by gold", "by cosine", ""]
    return PageTable(head, rows, numbers=[1, 2, 3, 4], title=f"Pairs that {name} ranks most differently from gold")
