"""A comparison of models in a report: the verdict in one line, tiles, bars, and every figure in a table."""

from pathlib import Path

from bertree.errors import UserError
from bertree.report import html
from bertree.report.bars import Bar, bars_svg, printable, safe
from bertree.report.comparison import Comparison, read, times, verdict, where_timed
from bertree.report.comparison_rows import how, rate, rows, shown, size
from bertree.report.formats import digits, label, quantity, smaller_is_better
from bertree.run_folder import COMPARISON

NAME = 28  # letters of a model's name in the head of the table
SCORES = 4  # with tiles and bars; the table has all of them


def of_folder(out: Path) -> list[str]:
    """The section of a run's report, where the run left a comparison; a broken one is named, the report goes on."""
    if not (out / COMPARISON).is_file():
        return []
    try:
        return ["<h2>Teacher and student</h2>", *section(read(out / COMPARISON))]
    except UserError as error:
        return ["<h2>Teacher and student</h2>", f'<p class="bad">{safe(str(error))}</p>']


def document(comparison: Comparison) -> str:
    """A page of its own."""
    first, *others = (model.name for model in comparison.models)
    what = others[0] if len(others) == 1 else f"{len(others)} models"
    title = printable(f"{what} against {first}")
    return html.document(title, [html.heading(title, "measured by bertree compare"), *section(comparison)])


def section(comparison: Comparison) -> list[str]:
    """Everything under the heading."""
    parts, two = [], len(comparison.models) == 2
    for place, model in enumerate(comparison.models[1:], 1):
        parts += [] if two else [f'<p class="sub" style="margin:14px 0 0">{safe(model.name)}</p>']
        parts.append(f'<p class="verdict">{safe(verdict(comparison, place))}</p>')
    gap = '<div style="height:14px"></div>'
    parts += [html.tiles(_tiles(comparison, 1)), gap] if two else []
    parts += [html.cards(_charts(comparison)), gap, _table(comparison)]
    return [*parts, f'<p class="small">{safe(how(comparison))}</p>']


def _tiles(comparison: Comparison, place: int) -> list[tuple[str, str, str]]:
    first, other = comparison.teacher, comparison.models[place]

    def tile(name: str, ratio: float, words: tuple[str, str], before: str, after: str) -> tuple[str, str, str]:
        return name, times(ratio, *words, 2), f"{before} → {after}"

    made = []
    for name in list(comparison.scores)[:SCORES]:
        share = comparison.share_kept(name, place)
        before, after = (shown(name, comparison.scores[name][at]) for at in (0, place))
        kept = (f"{label(name)} kept", f"{100 * share:.1f} %") if share is not None else (label(name), after)
        made.append((*kept, f"{before} → {after}"))
    smaller = ("smaller", "larger")
    sizes = [quantity(model.parameters) for model in (first, other)]
    made.append(tile("parameters", comparison.times_smaller(place), smaller, sizes[0], sizes[1]))
    disk = "on disk" if first.on_disk and other.on_disk else "weights"
    made.append(
        tile(disk, comparison.times_lighter(place), smaller, size(first.weight_bytes), size(other.weight_bytes))
    )
    for device in comparison.devices:
        one, two = first.speed(device), other.speed(device)
        on = where_timed(one)
        ms = [f"{digits(speed.latency_ms)} ms" for speed in (one, two)]
        made.append(tile(f"{on}, one text", comparison.times_faster(device, place), ("faster", "slower"), *ms))
        rates = [rate(one.texts_per_s), f"{rate(two.texts_per_s)} texts/s"]
        ratio = comparison.times_more_texts(device, place)
        made.append(tile(f"{on}, many texts", ratio, ("faster", "slower"), *rates))
    return made


def _charts(comparison: Comparison) -> list[str]:
    """Two a row: size and what it is worth; then how fast, a row for each device."""
    models = comparison.models
    parts = [Bar(m.name, quantity(m.parameters), (m.encoder, m.embeddings, m.head)) for m in models]
    charts = [bars_svg("Parameters", parts, "dark: layers, lighter: embeddings, lightest: what stands above")]
    scores = [_score(name, comparison) for name in list(comparison.scores)[:SCORES]]
    bytes_ = [Bar(model.name, size(model.weight_bytes), (model.weight_bytes,)) for model in models]
    charts.append(scores[0] if scores else bars_svg("Weights", bytes_, "shorter is better"))
    for device in comparison.devices:
        speeds = [(model.name, model.speed(device)) for model in models]
        on = where_timed(speeds[0][1])
        waits = [Bar(name, f"{digits(s.latency_ms)} ms", (s.latency_ms,), s.latency_p90_ms) for name, s in speeds]
        under = "median; thin line: 90th percentile; shorter is better"
        charts.append(bars_svg(f"One text at a time, {on}", waits, under))
        rates = [Bar(name, f"{rate(s.texts_per_s)} texts/s", (s.texts_per_s,)) for name, s in speeds]
        charts.append(bars_svg(f"Many texts, packed, {on}", rates, "longer is better"))
    return [*charts, *scores[1:]]


def _score(name: str, comparison: Comparison) -> str:
    values = comparison.scores[name]
    made = []
    for place, (model, value) in enumerate(zip(comparison.models, values, strict=True)):
        share = comparison.share_kept(name, place) if place else None
        text = shown(name, value) + (f", {100 * share:.1f} % kept" if share is not None else "")
        made.append(Bar(model.name, text, (max(value or 0.0, 0.0),)))
    if smaller_is_better(name):
        return bars_svg(label(name), made, "lower is better")
    shares = all(value is None or abs(value) <= 1 for value in values)
    return bars_svg(label(name), made, "times 100; longer is better" if shares else "", top=1.0 if shares else 0.0)


def _table(comparison: Comparison) -> str:
    names = [_end(model.name) for model in comparison.models]
    head = ["", safe(names[0])]
    for name in names[1:]:
        head += [safe(name), "" if len(names) == 2 else "against the first"]
    lines = []
    for row in rows(comparison):
        name = safe(row.name.strip())
        inside = f'<span class="small" style="display:block;padding-left:16px">{name}</span>'
        cells = [inside if row.name.startswith(" ") else name, safe(row.values[0])]
        for value, against in zip(row.values[1:], row.against, strict=True):
            cells += [safe(value), _coloured(against)]
        lines.append(cells)
    return html.html_table(head, lines, range(1, len(head)))


def _end(name: str) -> str:
    """Of a long path the end, which tells it from others."""
    return name if len(name) <= NAME else "…" + name[1 - NAME :]


def _coloured(text: str) -> str:
    worse = text.endswith(("larger", "slower", "fewer"))
    kind = "bad" if worse else "good" if text and text != "the same" else ""
    return f'<span class="{kind}">{safe(text)}</span>' if kind else safe(text)
