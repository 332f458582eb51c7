"""Curves over shared axes: losses, scores and rates along the steps of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup

from bertree.report.formats import duration
from bertree.report.history import Floats
from bertree.report.scales import Axis, Scale, ThinCurve, end_at, scale, smooth, thin
from bertree.report.svg import COLOURS, LETTER, WIDTH, element, group, path, picture, text

HEIGHT = 320
MARK_ROWS = 3  # in which the words of marks are set, so that near ones do not cover each other
Style = Literal["line", "smooth", "dots"]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve. "line" shows every value; "smooth" the trend over its faint values; "dots" few measured points."""

    name: str
    x: Floats
    y: Floats
    style: Style = "line"
    colour: int | None = None  # None: by its index in the chart
    right: bool = False  # measured on the right axis


@dataclass(frozen=True)
class Mark:
    """An event at a position of the x-axis: a vertical line with a few words, or a small red triangle (`skip`)."""

    x: float
    text: str
    short: str = ""
    skip: bool = False


@dataclass(frozen=True, kw_only=True)
class _Plot:
    """The area of the curves, and how values become coordinates in it."""

    left: float
    right: float
    top: float
    bottom: float
    x: Scale
    y: Scale
    right_y: Scale

    def across(self, values: Floats) -> Floats:
        return self.left + self.x(values) * (self.right - self.left)

    def up(self, values: Floats, right: bool = False) -> Floats:
        return self.bottom - (self.right_y if right else self.y)(values) * (self.bottom - self.top)


def curve_svg(
    title: str,
    series: Sequence[Series],
    *,
    x: Axis = Axis(),  # noqa: B008
    y: Axis = Axis(),  # noqa: B008
    right: Axis = Axis(zero=True),  # noqa: B008
    x_label: str = "step",
    marks: Sequence[Mark] = (),
    span: tuple[float, float] | None = None,
    clock: tuple[Floats, Floats] | None = None,
) -> Markup:
    """Draw curves over shared axes.

    `span` is the range of the x-axis to show where the curves cover less. `clock` gives positions of the x-axis and
    the seconds at which they were reached, for a second axis above. Values that are not finite are left out of the
    curves and counted in the legend.
    """
    series = [curve for curve in series if len(curve.x)]
    curves = [(curve, thin(curve.x, curve.y)) for curve in series]
    keys, lines = _legend(series)
    has_right = any(curve.right for curve in series)
    plot = _Plot(
        left=62,
        right=WIDTH - (62 if has_right else 24),
        top=34 + 18 * lines + (20 if clock is not None else 0),
        bottom=HEIGHT - 40,
        x=_x_scale(x, [np.array(span or ()), *(points.x for _, points in curves)]),
        y=_y_scale(y, [points for curve, points in curves if not curve.right]),
        right_y=_y_scale(right, [points for curve, points in curves if curve.right]),
    )
    rules, words = _marks(plot, marks)
    parts = [
        *keys,
        *_grid(plot, has_right, x_label),
        *(_clock(plot, *clock) if clock is not None else ()),
        *rules,
        *(_curve(plot, curve, points, number) for number, (curve, points) in enumerate(curves)),
        *words,
    ]
    return picture(title, HEIGHT, parts, data=_script_data(plot, clock, x_label))


def _x_scale(axis: Axis, positions: Sequence[Floats]) -> Scale:
    """Return the scale of the x-axis; it ends where the curves end."""
    x = np.concatenate(positions)
    x = x[np.isfinite(x)]
    x_scale = scale(axis, x)
    if len(x) and x.min() < x.max():
        x_scale = end_at(x_scale, 0.0 if x_scale.low == 0 else float(x.min()), float(x.max()))
    return x_scale


def _y_scale(axis: Axis, curves: Sequence[ThinCurve]) -> Scale:
    """Return a scale that holds every value, also those that were thinned out."""
    ends = [side for points in curves for side in (points.low, points.high)]
    return scale(axis, np.concatenate([np.zeros(0), *ends]), 5)


def _legend(series: Sequence[Series]) -> tuple[list[Markup], int]:
    """Return the names of the curves, each after a stroke of its colour, and the number of lines they take."""
    parts, at, line = [], 8.0, 0
    for number, curve in enumerate(series):
        if not curve.name:
            continue
        missing = int(len(curve.y) - np.isfinite(curve.y).sum())
        name = curve.name + (f" ({missing:,} not finite)" if missing else "") + (" (right)" if curve.right else "")
        wide = 22 + LETTER * 1.06 * len(name) + 16
        if at > 8 and at + wide > WIDTH:
            at, line = 8.0, line + 1
        y = 36 + 18 * line
        colour, line_class = _look(number, curve)
        stroke = path(line_class, f"M{at:g},{y - 4} {at + 16:g},{y - 4}")
        dot = [element("circle", kind="dot", cx=f"{at + 8:g}", cy=y - 4, r=3.5)] if curve.style == "dots" else []
        parts += [group(colour, stroke, *dot), text(f"{at + 21:g}", y, name, "key")]
        at += wide
    return parts, line + 1 if parts else 0


def _grid(plot: _Plot, has_right: bool, x_label: str) -> list[Markup]:
    parts = []
    for at, label in zip(plot.up(np.array(plot.y.ticks)), plot.y.labels, strict=True):
        parts.append(path("grid", f"M{plot.left},{at:.1f} {plot.right},{at:.1f}"))
        parts.append(text(plot.left - 7, f"{at + 4:.1f}", label, anchor="end"))
    if has_right:
        ticks = zip(plot.up(np.array(plot.right_y.ticks), True), plot.right_y.labels, strict=True)
        parts += [text(plot.right + 7, f"{at + 4:.1f}", label) for at, label in ticks]
    for at, label in zip(plot.across(np.array(plot.x.ticks)), plot.x.labels, strict=True):
        parts.append(path("grid", f"M{at:.1f},{plot.bottom} {at:.1f},{plot.bottom + 4}"))
        parts.append(text(f"{at:.1f}", plot.bottom + 17, label, anchor="middle"))
    return [*parts, text(f"{(plot.left + plot.right) / 2:g}", plot.bottom + 34, x_label, anchor="middle")]


def _clock(plot: _Plot, steps: Floats, seconds: Floats) -> list[Markup]:
    """Return the second axis: round times at the steps where the run reached them."""
    finite = np.isfinite(seconds)
    steps, seconds = steps[finite], np.maximum.accumulate(seconds[finite])
    if len(steps) < 2 or seconds[-1] <= seconds[0]:
        return []
    times = scale(Axis(time=True, text=duration), np.array([0.0, seconds[-1]]), 5)
    start = np.array([steps[0] - seconds[0] * (steps[-1] - steps[0]) / (seconds[-1] - seconds[0])])
    parts = [text(plot.left - 7, plot.top - 9, "time", anchor="end")]
    at_before = plot.left - 7.0
    for tick, label in zip(times.ticks, times.labels, strict=True):
        step = np.interp([tick], np.append([0.0], seconds), np.append(np.maximum(start, 0), steps), right=np.nan)
        at, half = float(plot.across(step)[0]), LETTER * len(label) / 2
        if np.isfinite(at) and plot.left - 1 <= at <= plot.right + 1 and at - half > at_before + 8:
            parts.append(path("grid", f"M{at:.1f},{plot.top} {at:.1f},{plot.top - 4}"))
            parts.append(text(f"{at:.1f}", plot.top - 9, label, anchor="middle"))
            at_before = at + half
    return parts


def _marks(plot: _Plot, marks: Sequence[Mark]) -> tuple[list[Markup], list[Markup]]:
    """Return lines, and the words next to them."""
    rules: list[Markup] = []
    words: list[Markup] = []
    row_ends = [0.0] * MARK_ROWS
    word_ends: dict[str, float] = {}  # where each word ends, so that it is not repeated next to itself
    drawn: set[tuple[int, bool]] = set()
    for mark in sorted(marks, key=lambda mark: mark.x):
        at = float(plot.across(np.array([mark.x]))[0])
        if not plot.left - 1 <= at <= plot.right + 1 or (round(at), mark.skip) in drawn:
            continue
        drawn.add((round(at), mark.skip))
        hint = element("title", mark.text)
        if mark.skip:
            low = plot.bottom
            triangle = f"M{at - 4:.1f},{low} {at + 4:.1f},{low} {at:.1f},{low - 7}Z"
            rules.append(group("bad", path("skip", triangle), hint))
            continue
        wide = LETTER * len(mark.short) + 6
        before = at + wide > plot.right  # no room on the right of the line
        start = at - wide if before else at
        row = next((row for row, end in enumerate(row_ends) if start >= end), None)
        if mark.short and row is not None and start >= word_ends.get(mark.short, 0.0):
            x, anchor = (at - 4, "end") if before else (at + 4, "")
            words.append(text(f"{x:.1f}", plot.top + 12 + 13 * row, mark.short, "word", anchor))
            row_ends[row] = word_ends[mark.short] = start + wide
        line = element("line", x1=f"{at:.1f}", x2=f"{at:.1f}", y1=plot.top, y2=plot.bottom)
        rules.append(group("mark", line, hint))
    return rules, words


def _curve(plot: _Plot, curve: Series, points: ThinCurve, number: int) -> Markup:
    across = plot.across(points.x)
    main = smooth(points.y) if curve.style == "smooth" else points.y
    up = plot.up(main, curve.right)
    parts = []
    if not points.complete:
        low, high = plot.up(points.low, curve.right), plot.up(points.high, curve.right)
        for run in _runs(np.isfinite(low) & np.isfinite(high)):
            upper, lower = _points(across[run], high[run]), _points(across[run][::-1], low[run][::-1])
            parts.append(path("band", f"M{upper} {lower}Z"))
    elif curve.style == "smooth" and len(points.x) >= 8:
        parts.append(path("raw", _line(across, plot.up(points.y, curve.right))))
    colour, line_class = _look(number, curve)
    parts.append(path(line_class, _line(across, up)))
    finite = np.flatnonzero(np.isfinite(up) & np.isfinite(across))
    if (curve.style == "dots" and len(finite) <= 60) or len(finite) == 1:
        for i in finite:
            hint = element("title", f"{curve.name}: {points.y[i]:,.6g} at {points.x[i]:,.10g}")
            parts.append(element("circle", hint, kind="dot", cx=f"{across[i]:.1f}", cy=f"{up[i]:.1f}", r=3.5))
    right = 1 if curve.right else None
    return group(f"series {colour}", *parts, data_name=curve.name, data_right=right)


def _line(across: Floats, up: Floats) -> str:
    """Return the points of a line that is broken where values are missing."""
    return "".join(f"M{_points(across[run], up[run])}" for run in _runs(np.isfinite(across) & np.isfinite(up)))


def _points(across: Floats, up: Floats) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in zip(across.tolist(), up.tolist(), strict=True))


def _runs(finite: np.ndarray) -> list[slice]:
    """Return the ranges without a gap."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], finite, [False])).astype(np.int8)))
    return [slice(first, end) for first, end in zip(edges[::2], edges[1::2], strict=True)]


def _look(number: int, curve: Series) -> tuple[str, str]:
    """Return the classes of a curve's colour and line; lines whose colours repeat are dashed."""
    colour = number if curve.colour is None else curve.colour
    return f"s{colour % COLOURS}", "line dashed" if colour >= COLOURS else "line"


def _script_data(plot: _Plot, clock: tuple[Floats, Floats] | None, x_label: str) -> dict[str, str]:
    """Return the attributes from which the page's script reads values off the curves."""
    scales = {"data_x": plot.x, "data_y": plot.y, "data_other": plot.right_y}
    attributes = {"data_plot": f"{plot.left} {plot.right} {plot.top} {plot.bottom}"}
    attributes |= {name: f"{side.low:.9g} {side.high:.9g} {int(side.log)}" for name, side in scales.items()}
    attributes["data_unit"] = x_label
    if clock is not None and len(clock[0]):
        knots = thin(*clock, points=50)
        pairs = zip(knots.x, knots.y, strict=True)
        attributes["data_clock"] = " ".join(
            f"{step:.9g},{seconds:.6g}" for step, seconds in pairs if np.isfinite(seconds)
        )
    return attributes
