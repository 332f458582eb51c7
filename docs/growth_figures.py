"""The figures of docs/growth.md: time and memory by size, on logarithmic scales, from committed rows."""

import functools
import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from benchmarks.tables import Row, read_rows
from docs.drawing import LINE, box, drawing, label, line

KINDS = ("mark", "orange", "green")
TOP, BOTTOM, SIDE = 34, 154, 126  # of a panel: top and bottom line, width
MEMORY = {"peak_mb": "held", "mapped_mb": "mapped files"}
Points = Sequence[tuple[float, float]]


def points_of(rows: Mapping[str, Row], curve: str, figure: str) -> Points:
    """Return the sizes of a curve and one of its figures, by size."""
    name = f"growth/{curve}/"
    return sorted(
        (float(key.removeprefix(name).replace(",", "")), float(row["figures"][figure]))
        for key, row in rows.items()
        if key.startswith(name)
    )


def short(number: float) -> str:
    """Return a number in a few letters."""
    for suffix, unit in (("M", 1e6), ("k", 1e3)):
        if number >= unit:
            return f"{number / unit:g}{suffix}"
    return f"{number:g}"


def panel(x: float, title: str, series: Sequence[Points], slope: float | None) -> Markup:
    """Draw curves between the powers of ten around them; dashed, a line of the slope that the method has."""
    sizes = [size for size, _ in series[0]]
    values = [max(value, 1e-3) for points in series for _, value in points]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values) * 1.01))
    height = (BOTTOM - TOP) / (high - low)

    def place(size: float, value: float) -> tuple[float, float]:
        along = math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])
        return round(x + 8 + (SIDE - 16) * along, 1), round(BOTTOM - height * (math.log10(max(value, 1e-3)) - low), 1)

    parts = [label(x - 30, 16, title, kind="strong"), line((x, TOP), (x, BOTTOM), (x + SIDE, BOTTOM))]
    for power in range(low, high + 1):
        y = BOTTOM - height * (power - low)
        parts += [line((x - 3, y), (x, y)), label(x - 5, y + 4, short(10.0**power), "end")]
    for size in (sizes[0], sizes[-1]):
        parts.append(label(place(size, 10.0**low)[0], BOTTOM + 17, short(size), "middle"))
    if slope is not None:
        size, value = series[0][-1]
        start = max(sizes[0], size * (10.0**low / value) ** (1 / slope)) if slope else sizes[0]
        parts.append(line(place(start, value * (start / size) ** slope), place(size, value), kind="dashed"))
    for points, kind in zip(series, KINDS, strict=False):
        places = [place(*point) for point in points]
        parts += [line(*places), *(box(a - 2.5, b - 2.5, 5, 5, "", kind) for a, b in places)]
    return Markup("").join(parts)


def growth(curve: str, what: str, unit: str, times: Mapping[str, str], slope: float) -> Markup:
    """Draw the times and the memory of a curve. `times`: figures with their names; `slope`: that of the method."""
    rows = read_rows()
    slopes = rows[f"growth-slope/{curve}"]["figures"]
    parts = [
        panel(34, unit, [points_of(rows, curve, key) for key in times], slope),
        panel(222, "megabytes", [points_of(rows, curve, key) for key in MEMORY], None),
    ]
    columns = ((4, times), (192, MEMORY))
    for x, keys in columns:
        for number, ((key, name), kind) in enumerate(zip(keys.items(), KINDS, strict=False)):
            y = BOTTOM + 40 + LINE * number * 1.2
            parts.append(box(x, y - 7, 7, 7, "", kind))
            parts.append(label(x + 12, y, f"{name}: {slopes[f'{key}_last_slope']:.2f}"))
    return drawing(
        f"Time and peak memory of {what} by size, on logarithmic scales, with the slope at the end of each curve",
        BOTTOM + 46 + 18 * (max(len(keys) for _, keys in columns) - 1),
        *parts,
        caption=f"Time and peak memory by size: {what}. Behind the names: the slope between the two largest "
        f"sizes. Dashed: a slope of {slope:g}.",
    )


SECONDS = {"cpu_seconds": "CPU", "seconds": "clock"}
FIGURES = {
    f"growth-{curve}": functools.partial(growth, curve, what, unit, times, slope)
    for curve, what, unit, times, slope in (
        ("prepare", "bertree prepare, megabytes of text", "seconds", SECONDS, 1),
        ("step", "a training step, tokens", "ms", {"step_cpu_ms": "CPU"}, 1),
        ("embed", "bertree embed, texts", "seconds", SECONDS, 1),
        ("build", "bertree index build, passages", "seconds", SECONDS, 1),
        ("add", "adding 1,000 passages to an index, passages of the index", "seconds", SECONDS, 0),
        (
            "query",
            "a query, passages of the index",
            "ms",
            {"hybrid_ms": "hybrid", "vectors_ms": "vectors", "words_ms": "words"},
            1,
        ),
        ("serve", "the server, clients", "ms", {"p50_ms": "median", "request_cpu_ms": "CPU"}, 1),
    )
}
