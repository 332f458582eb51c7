"""Curves as SVG, drawn by hand: nothing to install, nothing to load, sharp at every size.

`curve_svg` draws one chart. In a page it takes its colours from `CSS`; standing alone it carries them and
follows the reader's light or dark scheme.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

import numpy as np

from bertree.report.formats import duration
from bertree.report.history import Floats
from bertree.report.scales import Axis, Scale, Thinned, scale, smooth, thin, within

WIDTH, HEIGHT = 580, 320
LETTER = 6.3  # mean width of a letter of a chart's text
LIGHT = {"ink": "#1f2430", "soft": "#667085", "grid": "#e6e8ee", "paper": "#ffffff", "bad": "#c62f3b"}
DARK = {"ink": "#e6e8ee", "soft": "#98a2b3", "grid": "#2d3340", "paper": "#171a21", "bad": "#ff7b83"}
LIGHT_LINES = ("#2563c9", "#d55e00", "#0a8f6a", "#a0459f", "#b58900", "#0891b2", "#7c4a2d", "#5b6472")
DARK_LINES = ("#6ea8ff", "#ff9a4d", "#3ecf9f", "#dd8ee0", "#e6c14a", "#4fd0e8", "#c99a7c", "#aab3c0")


def _rules(tones: dict[str, str], lines: Sequence[str]) -> str:
    series = "".join(f".chart .s{number}{{color:{tone}}}" for number, tone in enumerate(lines))
    return (
        f".chart text{{fill:{tones['soft']}}}.chart .title,.chart .key{{fill:{tones['ink']}}}"
        f".chart .grid{{stroke:{tones['grid']}}}.chart .paper{{fill:{tones['paper']}}}"
        f".chart .mark line{{stroke:{tones['soft']}}}.chart .bad{{color:{tones['bad']}}}"
        f".chart .dot,.chart .word{{stroke:{tones['paper']}}}{series}"
    )


CSS = (
    ".chart text{font:11.5px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    ".chart .title{font-size:14px;font-weight:600}.chart .key{font-size:12px}"
    ".chart path,.chart .grid{fill:none;stroke-width:1}"
    ".chart .line{stroke:currentColor;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}"
    ".chart .raw{stroke:currentColor;stroke-width:1;opacity:.35}.chart .band{fill:currentColor;opacity:.2}"
    ".chart .dashed{stroke-dasharray:6 4}.chart .dot{fill:currentColor;stroke-width:1}"
    ".chart .mark line{stroke-dasharray:3 3}.chart .skip{fill:currentColor}"
    ".chart .word{font-size:11px;paint-order:stroke;stroke-width:3px;stroke-linejoin:round}"
    + _rules(LIGHT, LIGHT_LINES)
    + f"@media screen and (prefers-color-scheme:dark){{{_rules(DARK, DARK_LINES)}}}"
)


Style = Literal["line", "smooth", "dots"]


@dataclass(frozen=True)
class Series:
    """One curve. "line" shows every value; "smooth" the trend over its faint values; "dots" few measured points."""

    name: str
    x: Floats
    y: Floats
    style: Style = "line"
    colour: int | None = None  # None: by its place in the chart
    right: bool = False  # measured on the right axis


@dataclass(frozen=True)
class Mark:
    """Something that happened at a place of the x-axis: a line with a few words, or a small red triangle."""

    x: float
    text: str
    short: str = ""
    skip: bool = False


@dataclass(frozen=True)
class _Frame:
    """Where the plot lies in the picture and how values become places in it."""

    left: float
    right: float
    top: float
    bottom: float
    x: Scale
    y: Scale
    other: Scale

    def across(self, values: Floats) -> Floats:
        return self.left + self.x(values) * (self.right - self.left)

    def up(self, values: Floats, right: bool = False) -> Floats:
        return self.bottom - (self.other if right else self.y)(values) * (self.bottom - self.top)


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
    standalone: bool = False,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> str:
    """A chart of curves over shared axes.

    `span` is the stretch of the x-axis to show where the curves cover less. `clock` gives places of the x-axis
    and the seconds at which they were reached: a second axis, above. Values that are not finite are left out of
    the curves and counted in the legend.
    """
    series = [curve for curve in series if len(curve.x)]
    curves = [(curve, thin(curve.x, curve.y)) for curve in series]
    keys, lines = _legend(series, width)
    has_right = any(curve.right for curve in series)
    frame = _Frame(
        left=62,
        right=width - (62 if has_right else 24),
        top=34 + 18 * lines + (20 if clock is not None else 0),
        bottom=height - 40,
        x=_across(x, [np.array(span or ()), *(points.x for _, points in curves)]),
        y=_upward(y, [points for curve, points in curves if not curve.right]),
        other=_upward(right, [points for curve, points in curves if curve.right]),
    )
    rules, words = _marks(frame, marks)
    parts = [
        f'<text class="title" x="8" y="18">{escape(title)}</text>',
        keys,
        _grid(frame, has_right, x_label),
        _clock(frame, *clock) if clock is not None else "",
        rules,
        *(_curve(frame, curve, points, number) for number, (curve, points) in enumerate(curves)),
        words,
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}" {_hints(frame, clock, x_label)}'
    )
    if standalone:
        paper = f'<style>{CSS}</style><rect class="paper" width="{width}" height="{height}" rx="6"/>'
        return f'{head} width="{width}" height="{height}">{paper}{"".join(parts)}</svg>\n'
    return f"{head}>{''.join(parts)}</svg>"


def _across(axis: Axis, places: Sequence[Floats]) -> Scale:
    """The scale of the x-axis; it ends where the curves end."""
    every = np.concatenate(places)
    every = every[np.isfinite(every)]
    made = scale(axis, every)
    if len(every) and every.min() < every.max():
        made = within(made, 0.0 if made.low == 0 else float(every.min()), float(every.max()))
    return made


def _upward(axis: Axis, curves: Sequence[Thinned]) -> Scale:
    """The scale of the y-axis; every single value fits on it, also those that were thinned out."""
    return scale(
        axis, np.concatenate([np.zeros(0), *(side for points in curves for side in (points.low, points.high))]), 5
    )


def _legend(series: Sequence[Series], width: int) -> tuple[str, int]:
    """Names of the curves beside a stroke of their colour, in as many lines as they need."""
    parts, at, line = [], 8.0, 0
    for number, curve in enumerate(series):
        if not curve.name:
            continue
        missing = int(len(curve.y) - np.isfinite(curve.y).sum())
        name = curve.name + (f" ({missing:,} not finite)" if missing else "") + (" (right)" if curve.right else "")
        wide = 22 + LETTER * 1.06 * len(name) + 16
        if at > 8 and at + wide > width:
            at, line = 8.0, line + 1
        y = 36 + 18 * line
        sign = f'<path class="line{_dash(number, curve)}" d="M{at:g},{y - 4} {at + 16:g},{y - 4}"/>'
        if curve.style == "dots":
            sign += f'<circle class="dot" cx="{at + 8:g}" cy="{y - 4}" r="3.5"/>'
        parts.append(f'<g class="{_colour(number, curve)}">{sign}</g>')
        parts.append(f'<text class="key" x="{at + 21:g}" y="{y}">{escape(name)}</text>')
        at += wide
    return "".join(parts), line + 1 if parts else 0


def _grid(frame: _Frame, has_right: bool, x_label: str) -> str:
    parts = []
    for tick, text in zip(frame.up(np.array(frame.y.ticks)), frame.y.labels, strict=True):
        parts.append(f'<path class="grid" d="M{frame.left},{tick:.1f} {frame.right},{tick:.1f}"/>')
        parts.append(f'<text x="{frame.left - 7}" y="{tick + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    if has_right:
        for tick, text in zip(frame.up(np.array(frame.other.ticks), True), frame.other.labels, strict=True):
            parts.append(f'<text x="{frame.right + 7}" y="{tick + 4:.1f}">{escape(text)}</text>')
    for tick, text in zip(frame.across(np.array(frame.x.ticks)), frame.x.labels, strict=True):
        parts.append(f'<path class="grid" d="M{tick:.1f},{frame.bottom} {tick:.1f},{frame.bottom + 4}"/>')
        parts.append(f'<text x="{tick:.1f}" y="{frame.bottom + 17}" text-anchor="middle">{escape(text)}</text>')
    middle = (frame.left + frame.right) / 2
    parts.append(f'<text x="{middle:g}" y="{frame.bottom + 34}" text-anchor="middle">{escape(x_label)}</text>')
    return "".join(parts)


def _clock(frame: _Frame, places: Floats, seconds: Floats) -> str:
    """The second axis: round times, at the places where the run reached them."""
    known = np.isfinite(seconds)
    places, seconds = places[known], np.maximum.accumulate(seconds[known])
    if len(places) < 2 or seconds[-1] <= seconds[0]:
        return ""
    times = scale(Axis(time=True, text=duration), np.array([0.0, seconds[-1]]), 5)
    start = np.array([places[0] - seconds[0] * (places[-1] - places[0]) / (seconds[-1] - seconds[0])])
    parts = [f'<text x="{frame.left - 7}" y="{frame.top - 9}" text-anchor="end">time</text>']
    at_before = frame.left - 7.0
    for tick, text in zip(times.ticks, times.labels, strict=True):
        place = np.interp([tick], np.append([0.0], seconds), np.append(np.maximum(start, 0), places), right=np.nan)
        at, half = float(frame.across(place)[0]), LETTER * len(text) / 2
        if np.isfinite(at) and frame.left - 1 <= at <= frame.right + 1 and at - half > at_before + 8:
            parts.append(f'<path class="grid" d="M{at:.1f},{frame.top} {at:.1f},{frame.top - 4}"/>')
            parts.append(f'<text x="{at:.1f}" y="{frame.top - 9}" text-anchor="middle">{escape(text)}</text>')
            at_before = at + half
    return "".join(parts)


def _marks(frame: _Frame, marks: Sequence[Mark]) -> tuple[str, str]:
    """Lines, and words for beside them, in three rows so that near ones do not cover each other."""
    parts: list[str] = []
    words: list[str] = []
    ends = [0.0, 0.0, 0.0]
    said: dict[str, float] = {}  # the same word is not repeated beside itself
    drawn: set[tuple[int, bool]] = set()
    for mark in sorted(marks, key=lambda mark: mark.x):
        at = float(frame.across(np.array([mark.x]))[0])
        if not frame.left - 1 <= at <= frame.right + 1 or (round(at), mark.skip) in drawn:
            continue
        drawn.add((round(at), mark.skip))
        hint = f"<title>{escape(mark.text)}</title>"
        if mark.skip:
            low = frame.bottom
            shape = f"M{at - 4:.1f},{low} {at + 4:.1f},{low} {at:.1f},{low - 7}Z"
            parts.append(f'<g class="bad"><path class="skip" d="{shape}"/>{hint}</g>')
            continue
        wide = LETTER * len(mark.short) + 6
        before = at + wide > frame.right  # no room on the right of the line
        start = at - wide if before else at
        row = next((row for row, end in enumerate(ends) if start >= end), None)
        if mark.short and row is not None and start >= said.get(mark.short, 0.0):
            anchor = f'x="{at - 4:.1f}" text-anchor="end"' if before else f'x="{at + 4:.1f}"'
            words.append(f'<text class="word" {anchor} y="{frame.top + 12 + 13 * row}">{escape(mark.short)}</text>')
            ends[row] = said[mark.short] = start + wide
        line = f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{frame.top}" y2="{frame.bottom}"/>'
        parts.append(f'<g class="mark">{line}{hint}</g>')
    return "".join(parts), "".join(words)


def _curve(frame: _Frame, curve: Series, points: Thinned, number: int) -> str:
    across = frame.across(points.x)
    main = smooth(points.y) if curve.style == "smooth" else points.y
    up = frame.up(main, curve.right)
    parts = []
    if not points.whole:
        low, high = frame.up(points.low, curve.right), frame.up(points.high, curve.right)
        for run in _runs(np.isfinite(low) & np.isfinite(high)):
            there, back = _points(across[run], high[run]), _points(across[run][::-1], low[run][::-1])
            parts.append(f'<path class="band" d="M{there} {back}Z"/>')
    elif curve.style == "smooth" and len(points.x) >= 8:
        parts.append(_path("raw", across, frame.up(points.y, curve.right)))
    parts.append(_path(f"line{_dash(number, curve)}", across, up))
    known = np.flatnonzero(np.isfinite(up) & np.isfinite(across))
    if (curve.style == "dots" and len(known) <= 60) or len(known) == 1:
        for i in known:
            hint = f"{curve.name}: {points.y[i]:,.6g} at {points.x[i]:,.10g}"
            circle = f'<circle class="dot" cx="{across[i]:.1f}" cy="{up[i]:.1f}" r="3.5">'
            parts.append(f"{circle}<title>{escape(hint)}</title></circle>")
    side = ' data-right="1"' if curve.right else ""
    name = f' data-name="{escape(curve.name)}"' if curve.name else ""
    return f'<g class="series {_colour(number, curve)}"{name}{side}>{"".join(parts)}</g>'


def _path(kind: str, across: Floats, up: Floats) -> str:
    """A line that is broken where values are missing."""
    runs = _runs(np.isfinite(across) & np.isfinite(up))
    drawn = "".join(f"M{_points(across[run], up[run])}" for run in runs)
    return f'<path class="{kind}" d="{drawn}"/>' if drawn else ""


def _points(across: Floats, up: Floats) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in zip(across.tolist(), up.tolist(), strict=True))


def _runs(known: np.ndarray) -> list[slice]:
    """The stretches without a gap."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], known, [False])).astype(np.int8)))
    return [slice(first, behind) for first, behind in zip(edges[::2], edges[1::2], strict=True)]


def _colour(number: int, curve: Series) -> str:
    return f"s{(number if curve.colour is None else curve.colour) % len(LIGHT_LINES)}"


def _dash(number: int, curve: Series) -> str:
    """From the ninth curve on colours repeat, dashed."""
    return " dashed" if (number if curve.colour is None else curve.colour) >= len(LIGHT_LINES) else ""


def _hints(frame: _Frame, clock: tuple[Floats, Floats] | None, x_label: str) -> str:
    """What the page's script needs to read values off the curves."""
    found = {
        "plot": f"{frame.left} {frame.right} {frame.top} {frame.bottom}",
        "x": f"{frame.x.low:.9g} {frame.x.high:.9g} {int(frame.x.log)}",
        "y": f"{frame.y.low:.9g} {frame.y.high:.9g} {int(frame.y.log)}",
        "other": f"{frame.other.low:.9g} {frame.other.high:.9g} {int(frame.other.log)}",
        "unit": escape(x_label),
    }
    if clock is not None and len(clock[0]):
        knots = thin(*clock, points=50)
        pairs = zip(knots.x, knots.y, strict=True)
        found["clock"] = " ".join(f"{place:.9g},{seconds:.6g}" for place, seconds in pairs if np.isfinite(seconds))
    return " ".join(f'data-{name}="{value}"' for name, value in found.items())
