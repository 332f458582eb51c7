"""A comparison of models as a page, or as a section of a run's page: a summary, tiles, bars, and a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from bertree.errors import UserError
from bertree.report.comparison import Comparison, device_name, read_comparison, verdict
from bertree.report.comparison_rows import byte_size, comparison_rows, method, rate
from bertree.report.formats import digits, end_of_path, format_score, label, quantity, smaller_is_better
from bertree.report.html import render
from bertree.report.svg.bars import ModelBar, bars_svg
from bertree.report.tables import Cell, PageTable, Piece, Tile, one_line
from bertree.run_folder import COMPARISON

NAME = 28  # letters of a model's name in the head of the table
SCORES = 4  # with tiles and bars; the table has all of them


@dataclass(frozen=True)
class ComparisonSection:
    """The values of templates/comparison_section.html.j2; without a table there is nothing to show."""

    title: str = ""
    error: str = ""
    verdicts: Sequence[tuple[str, str]] = ()  # a model's name where there are several, and its verdict
    tiles: Sequence[Tile] = ()
    charts: Sequence[Markup] = ()
    table: PageTable | None = None
    method: str = ""


def comparison_page(comparison: Comparison) -> str:
    """Return the page of a comparison."""
    first, *others = (model.name for model in comparison.models)
    compared = others[0] if len(others) == 1 else f"{len(others)} models"
    return render("comparison", title=f"{compared} against {first}", comparison=_section(comparison))


def comparison_of_run(out: Path) -> ComparisonSection:
    """Return the section of a run's page, empty if the run has no comparison. An invalid file is named in it."""
    title = "Teacher and student"
    if not (out / COMPARISON).is_file():
        return ComparisonSection()
    try:
        return _section(read_comparison(out / COMPARISON), title)
    except UserError as error:
        return ComparisonSection(title, str(error))


def _section(comparison: Comparison, title: str = "") -> ComparisonSection:
    others = comparison.models[1:]
    two = len(others) == 1
    return ComparisonSection(
        title,
        verdicts=[("" if two else model.name, verdict(comparison, place)) for place, model in enumerate(others, 1)],
        tiles=_tiles(comparison) if two else [],
        charts=_charts(comparison),
        table=_table(comparison),
        method=method(comparison),
    )


def _tiles(comparison: Comparison) -> list[Tile]:
    """Return the main rows of two models: the ratio, or the second value, and both values."""
    rows, count = comparison_rows(comparison), len(comparison.scores)
    main = [*rows[: min(count, SCORES)], *(row for row in rows[count:] if not row.name.startswith(" "))]
    return [(row.name, row.against[0] or row.values[1], " → ".join(row.values)) for row in main]


def _charts(comparison: Comparison) -> list[Markup]:
    """Return charts in rows of two: size and the first score; then latency and rate on each device."""
    models = comparison.models
    parts = [ModelBar(m.name, quantity(m.parameters), (m.encoder, m.embeddings, m.head)) for m in models]
    charts = [bars_svg("Parameters", parts, "dark: layers, lighter: embeddings, lightest: head")]
    scores = [_score_chart(name, comparison) for name in list(comparison.scores)[:SCORES]]
    weights = [ModelBar(model.name, byte_size(model.weight_bytes), (model.weight_bytes,)) for model in models]
    charts.append(scores[0] if scores else bars_svg("Weights", weights, "shorter is better"))
    for device in comparison.devices:
        speeds = [(model.name, model.speed(device)) for model in models]
        on = device_name(speeds[0][1])
        latencies = [
            ModelBar(name, f"{digits(s.latency_ms)} ms", (s.latency_ms,), s.latency_p90_ms) for name, s in speeds
        ]
        under = "median; thin line: 90th percentile; shorter is better"
        charts.append(bars_svg(f"One text at a time, {on}", latencies, under))
        rates = [ModelBar(name, f"{rate(s.texts_per_s)} texts/s", (s.texts_per_s,)) for name, s in speeds]
        charts.append(bars_svg(f"Many texts, packed, {on}", rates, "longer is better"))
    return [*charts, *scores[1:]]


def _score_chart(name: str, comparison: Comparison) -> Markup:
    values = comparison.scores[name]
    made = []
    for place, (model, value) in enumerate(zip(comparison.models, values, strict=True)):
        share = comparison.share_kept(name, place) if place else None
        text = format_score(name, value) + (f", {100 * share:.1f} % kept" if share is not None else "")
        made.append(ModelBar(model.name, text, (max(value or 0.0, 0.0),)))
    if smaller_is_better(name):
        return bars_svg(label(name), made, "lower is better")
    shares = all(value is None or abs(value) <= 1 for value in values)
    return bars_svg(label(name), made, "times 100; longer is better" if shares else "", top=1.0 if shares else 0.0)


def _table(comparison: Comparison) -> PageTable:
    names = [end_of_path(model.name, NAME) for model in comparison.models]
    head = ["", names[0]]
    for name in names[1:]:
        head += [name, "" if len(names) == 2 else "against the first"]
    rows: list[list[Cell]] = []
    for row in comparison_rows(comparison):
        name_cell: Cell = one_line(Piece(row.name.strip(), "inner")) if row.name.startswith(" ") else row.name
        cells = [name_cell, row.values[0]]
        for value, against in zip(row.values[1:], row.against, strict=True):
            cells += [value, _coloured(against)]
        rows.append(cells)
    return PageTable(head, rows, range(1, len(head)))


def _coloured(text: str) -> Cell:
    worse = text.endswith(("larger", "slower", "fewer"))
    return one_line(Piece(text, "bad" if worse else "good")) if text and text != "the same" else text
