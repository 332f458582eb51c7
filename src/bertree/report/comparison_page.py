"""A comparison of models as a page, as a section of a run's page, and as rows for the terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from bertree.errors import UserError
from bertree.report.comparison import Comparison, ModelCosts, Speed, device_name, read_comparison, times, verdict
from bertree.report.comparison_details import NAME, detail_sections, difference_texts
from bertree.report.formats import (
    byte_size,
    digits,
    end_of_path,
    format_interval,
    format_score,
    label,
    percent,
    quantity,
    smaller_is_better,
)
from bertree.report.html import render
from bertree.report.svg import ModelBar, bars_svg
from bertree.report.tables import Cell, PageTable, Piece, Section, Tile, one_line
from bertree.run_folder import COMPARISON

WORSE = ("larger", "slower", "fewer")
SCORES = 4  # with tiles and bars; the table has all of them


@dataclass(frozen=True, kw_only=True)
class ComparisonSection:
    """The values of templates/comparison_section.html.j2; without a table there is nothing to show."""

    title: str = ""
    error: str = ""
    verdicts: Sequence[tuple[str, str]] = ()  # a model's name where there are several, and its verdict
    tiles: Sequence[Tile] = ()
    charts: Sequence[Markup] = ()
    table: PageTable | None = None
    method: str = ""
    sections: Sequence[Section] = ()


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
        return ComparisonSection(title=title, error=str(error))


def _section(comparison: Comparison, title: str = "") -> ComparisonSection:
    others = comparison.models[1:]
    two = len(others) == 1
    return ComparisonSection(
        title=title,
        verdicts=[("" if two else model.name, verdict(comparison, n)) for n, model in enumerate(others, 1)],
        tiles=_tiles(comparison) if two else [],
        charts=_charts(comparison),
        table=_table(comparison),
        method=method(comparison),
        sections=list(detail_sections(comparison)),
    )


def _tiles(comparison: Comparison) -> list[Tile]:
    """Return the main rows of two models: the ratio, or the second value, and both values."""
    rows, count = [row for row in comparison_rows(comparison) if not row.name.startswith(" ")], len(comparison.scores)
    main = [*rows[: min(count, SCORES)], *rows[count:]]
    return [(row.name, row.against[0].text or row.values[1], " → ".join(row.values)) for row in main]


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
    bars = []
    for number, (model, value) in enumerate(zip(comparison.models, values, strict=True)):
        share = comparison.share_kept(name, number) if number else None
        text = format_score(name, value) + (f", {100 * share:.1f} % kept" if share is not None else "")
        bars.append(ModelBar(model.name, text, (max(value or 0.0, 0.0),)))
    if smaller_is_better(name):
        return bars_svg(label(name), bars, "lower is better")
    shares = all(value is None or abs(value) <= 1 for value in values)
    return bars_svg(label(name), bars, "times 100; longer is better" if shares else "", top=1.0 if shares else 0.0)


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
            verdict_kind = {True: "bad", False: "good", None: ""}[against.worse]
            cells += [value, one_line(Piece(against.text, verdict_kind)) if verdict_kind else against.text]
        rows.append(cells)
    return PageTable(head, rows, numbers=range(1, len(head)))


class Against(NamedTuple):
    """A value compared with the first model's, in words: 6.6x smaller, keeps 96.8 %."""

    text: str
    worse: bool | None = None  # None: as good, or not to be judged


class ComparisonRow(NamedTuple):
    """One value of every model; `against` compares all but the first with it. Inner rows start with a space."""

    name: str
    values: list[str]
    against: list[Against]


def rate(value: float) -> str:
    """Write a rate per second."""
    return quantity(value) if value >= 1e4 else digits(value)


class _Measure(NamedTuple):
    """A number of a model, how it is written, and the words for less and more of it."""

    name: str  # with a place for what is measured
    field: str  # of `ModelCosts`, or of `Speed`
    text: Callable[[float], str]
    less: str
    more: str


_SIZES = (
    _Measure("parameters", "parameters", quantity, "smaller", "larger"),
    _Measure("  in the layers", "encoder", quantity, "smaller", "larger"),
    _Measure("  in the embeddings", "embeddings", quantity, "smaller", "larger"),
    _Measure("{}", "weight_bytes", byte_size, "smaller", "larger"),
)
_SPEEDS = (
    _Measure("{}, one text, ms", "latency_ms", digits, "faster", "slower"),
    _Measure("  90th percentile", "latency_p90_ms", digits, "faster", "slower"),
    _Measure("  with tokenizing", "text_latency_ms", digits, "faster", "slower"),
    _Measure("  with tokenizing, 90th percentile", "text_latency_p90_ms", digits, "faster", "slower"),
    _Measure("{}, packed, texts/s", "texts_per_s", rate, "fewer", "more"),
    _Measure("  tokens/s", "tokens_per_s", rate, "fewer", "more"),
    _Measure("{}, training, tokens/s", "training_tokens_per_s", rate, "slower", "faster"),
)


def comparison_rows(comparison: Comparison) -> list[ComparisonRow]:
    """Return scores, size, then speed on each device."""
    rows = [row for name in comparison.scores for row in _score(comparison, name)]
    if any(comparison.calibration):
        errors = ["–" if shown is None else percent(shown.error, 1) for shown in comparison.calibration]
        rows.append(ComparisonRow("calibration error", errors, [Against("")] * (len(errors) - 1)))
    weights = "weights on disk" if all(model.on_disk for model in comparison.models) else "weights"
    rows += [_row(measure, weights, comparison.models) for measure in _SIZES]
    for device in comparison.devices:
        speeds = [model.speed(device) for model in comparison.models]
        timed = [measure for measure in _SPEEDS if getattr(speeds[0], measure.field) is not None]
        rows += [_row(measure, device_name(speeds[0]), speeds) for measure in timed]
    return rows


def _score(comparison: Comparison, name: str) -> list[ComparisonRow]:
    """Return a score and, if they are known, the intervals of it."""
    values, against = comparison.scores[name], []
    for number in range(1, len(values)):
        share = comparison.share_kept(name, number)
        text = f"keeps {100 * share:.1f} %" if share is not None else ""
        against.append(Against(text, None if share is None else not comparison.is_kept(name, number)))
    rows = [ComparisonRow(label(name), [format_score(name, value) for value in values], against)]
    intervals = [format_interval(name, interval) for interval in comparison.intervals.get(name, ())]
    if any(intervals):
        rows.append(ComparisonRow("  95 % interval", intervals, [Against("")] * len(against)))
    if comparison.differences and comparison.differences[0].score == name:
        texts = [difference_texts(difference) for difference in comparison.differences]
        spans = [Against(f"{span}, p {p}") for _, span, p in texts]
        rows.append(ComparisonRow("  difference", ["", *(value for value, *_ in texts)], spans))
    return rows


def _row(measure: _Measure, subject: str, measured: Sequence[ModelCosts | Speed]) -> ComparisonRow:
    first, *rest = values = [getattr(each, measure.field) or 0.0 for each in measured]
    texts = [times(first / value, measure.less, measure.more) if first and value else "" for value in rest]
    judged = [None if text in ("", "the same") else text.endswith(WORSE) for text in texts]
    against = [Against(text, worse) for text, worse in zip(texts, judged, strict=True)]
    return ComparisonRow(measure.name.format(subject), [measure.text(value) for value in values], against)


def method(comparison: Comparison) -> str:
    """Describe how the models were timed: texts, devices, precision."""
    parts = [f"Timed on {comparison.measured_on}"] if comparison.measured_on else []
    tokens = dict.fromkeys(digits(model.tokens_a_text) for model in comparison.models)
    parts.append(f"{' and '.join(tokens)} tokens a text on average")
    for speed in comparison.teacher.speeds:
        threads = f", {speed.threads} thread{'s' if speed.threads != 1 else ''}" if speed.threads else ""
        parts.append(f"{device_name(speed)}: {speed.processor}{threads}, {speed.precision}")
    timed = [min(model.speed(device).timed_texts for model in comparison.models) for device in comparison.devices]
    parts.append(f"the models in turn, medians of {' and '.join(map(str, timed))} answers each")
    return "; ".join(parts) + "."
