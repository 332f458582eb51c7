"""Build SVG as safe markup, and the charts of bars and of dots.

Every text and every attribute value is escaped by `element`, so that no chart has to escape anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from markupsafe import Markup, escape

from bertree.report.formats import end_of_path
from bertree.report.history import Floats
from bertree.report.scales import Axis, Scale, scale
from bertree.result_table import replace_control_characters

WIDTH = 580
LETTER = 6.3  # mean width of a letter of a chart's text
COLOURS = 8  # classes s0 to s7 of assets/charts.css
MARGIN, ROW, THICK = 10, 42, 13
OPACITIES = (1.0, 0.55, 0.3)  # of the parts of a bar
NAME = 46  # letters of a name that are shown
HEIGHT = 430
POINTS = 2500  # drawn at most
STEPS = 20  # of gold, for the quartiles
FEWEST = 5  # examples in a step that has quartiles
LEFT, RIGHT, TOP, BOTTOM = 54, WIDTH - 14, 34, HEIGHT - 44


def element(name: str, *inside: object, **attributes: object) -> Markup:
    """Return one element. What is inside is escaped unless it is markup already.

    The attribute `kind` becomes `class`, underscores become hyphens, None and "" are left out.
    """
    written = "".join(
        f' {"class" if key == "kind" else key.replace("_", "-")}="{_escape(value)}"'
        for key, value in attributes.items()
        if value is not None and value != ""
    )
    content = "".join(map(_escape, inside))
    return Markup(f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>")


def group(kind: str, *inside: object, **attributes: object) -> Markup:
    """Return elements that share a class."""
    return element("g", *inside, kind=kind, **attributes)


def path(kind: str, points: str) -> Markup:
    """Return a path; empty if it has no points."""
    return element("path", kind=kind, d=points) if points else Markup("")


def text(x: object, y: object, label: object, kind: str = "", anchor: str = "") -> Markup:
    """Return a line of text."""
    return element("text", label, kind=kind, x=x, y=y, text_anchor=anchor)


def picture(
    title: str, height: int, parts: Iterable[Markup], left: int = 8, data: Mapping[str, str] | None = None
) -> Markup:
    """Return a chart, which takes its colours from the page it is in; `data` is for the page's script."""
    return element("svg", text(left, 18, title, "title"), *parts, **_about(title, height), **(data or {}))


def standalone_picture(title: str, height: int, parts: Iterable[Markup]) -> Markup:
    """Return a chart that carries its colours and its size."""
    size: dict[str, object] = {"width": WIDTH, "height": height}
    paper = element("rect", kind="paper", **size, rx=6)
    heading = text(8, 18, title, "title")
    return element("svg", element("style", stylesheet()), paper, heading, *parts, **_about(title, height), **size)


def _about(title: str, height: int) -> dict[str, object]:
    about: dict[str, object] = {"xmlns": "http://www.w3.org/2000/svg", "kind": "chart"}
    return about | {"viewBox": f"0 0 {WIDTH} {height}", "role": "img", "aria_label": title}


def stylesheet() -> Markup:
    """Return the rules of charts; they follow the reader's light or dark scheme."""
    return Markup(files("bertree.report").joinpath("assets", "charts.css").read_text(encoding="utf-8"))


def _escape(value: object) -> Markup:
    return value if isinstance(value, Markup) else escape(replace_control_characters(str(value)))


class ModelBar(NamedTuple):
    """The bar of one model: its parts lie end to end; a thin line behind them ends at `until` (a 90th percentile)."""

    name: str
    text: str  # the value as it is shown
    parts: Sequence[float]
    until: float = 0.0


def bars_svg(title: str, bars: Sequence[ModelBar], under: str = "", top: float = 0.0) -> Markup:
    """Draw horizontal bars, one measurement of several models, with the names above them: names are often paths, and a
    narrow screen has no room beside a bar. `top` is the value at the full width; the default is the largest bar."""
    most = top or max((max(sum(bar.parts), bar.until) for bar in bars), default=0.0) or 1.0
    scale = (WIDTH - 2 * MARGIN) / most
    above = 46 if under else 32
    parts = [text(MARGIN, 36, under)] if under else []
    for number, bar in enumerate(bars):
        y = above + ROW * number
        room = min(NAME, int((WIDTH - 3 * MARGIN - LETTER * len(bar.text) * 1.1) / LETTER))
        parts += [
            text(MARGIN, y + 14, end_of_path(bar.name, max(room, 2)), "key"),
            text(WIDTH - MARGIN, y + 14, bar.text, "key value", "end"),
            group(f"s{number % COLOURS}", element("title", f"{bar.name}: {bar.text}"), *_draw(bar, y + 20, scale)),
        ]
    return picture(title, above + ROW * len(bars) + 4, parts, MARGIN)


def _draw(bar: ModelBar, y: float, scale: float) -> list[Markup]:
    x, drawn = float(MARGIN), []
    for part, opacity in zip(bar.parts, OPACITIES, strict=False):
        width = max(part * scale, 0.0)
        size = {"x": f"{x:.1f}", "y": y, "width": f"{width:.1f}", "height": THICK}
        drawn.append(element("rect", kind="part", **size, opacity=opacity))
        x += width
    end = MARGIN + bar.until * scale
    if end > x:
        middle = y + THICK / 2
        drawn.append(path("line", f"M{x:.1f},{middle} {end:.1f},{middle}M{end:.1f},{y + 2} {end:.1f},{y + 11}"))
    return drawn


class Dot(NamedTuple):
    """A value with its spread to both sides."""

    value: float
    spread: float = 0.0


def differences_svg(title: str, rows: Sequence[tuple[str, Mapping[str, Dot]]], under: str) -> Markup:
    """Draw differences from zero as dots, a line for each name, in the colours of their series; names stand above."""
    ends = [
        end for _, dots in rows for dot in dots.values() for end in (dot.value - dot.spread, dot.value + dot.spread)
    ]
    x, series = scale(Axis(), np.array([0.0, *ends])), list(dict.fromkeys(key for _, dots in rows for key in dots))
    top, row = 58, 36
    bottom = top + row * len(rows)

    def across(value: float) -> float:
        return MARGIN + 14 + float(x(np.array([value]))[0]) * (WIDTH - 2 * MARGIN - 28)

    parts, at = [text(MARGIN, 36, under)], WIDTH - MARGIN - sum(LETTER * len(key) + 28 for key in series)
    for number, key in enumerate(series):
        parts += [group(f"s{number}", element("circle", kind="dot", cx=f"{at:.1f}", cy=32, r=4.5))]
        parts += [text(f"{at + 8:.1f}", 36, key, "key")]
        at += LETTER * len(key) + 28
    for tick, label in zip(x.ticks, x.labels, strict=True):
        parts += [path("grid", f"M{across(tick):.1f},{top - 12} {across(tick):.1f},{bottom}")]
        parts += [text(f"{across(tick):.1f}", bottom + 17, label, anchor="middle")]
    parts.append(group("mark", element("line", x1=f"{across(0):.1f}", x2=f"{across(0):.1f}", y1=top - 12, y2=bottom)))
    for number, (name, dots) in enumerate(rows):
        y = top + row * number + 20
        parts.append(text(MARGIN, y - 12, name, "key word"))
        for key, dot in dots.items():
            low, high = across(dot.value - dot.spread), across(dot.value + dot.spread)
            spread = f" ± {dot.spread:.2f}" if dot.spread else ""
            shapes = [path("line", f"M{low:.1f},{y} {high:.1f},{y}")] if dot.spread else []
            shapes.append(element("circle", kind="dot", cx=f"{across(dot.value):.1f}", cy=y, r=4.5))
            hint = element("title", f"{name}, {key}: {dot.value:+.2f}{spread}")
            parts.append(group(f"s{series.index(key)}", hint, *shapes))
    return picture(title, bottom + 24, parts, MARGIN)


class ScorePoint(NamedTuple):
    """A model in a plot of scores against costs; `best`: it is on the frontier."""

    name: str
    cost: float
    score: float
    interval: tuple[float, float] | None
    best: bool
    hint: str


def scatter_svg(title: str, points: Sequence[ScorePoint], across: Axis, axes: str) -> Markup:
    """Draw scores over costs: points of the frontier filled and joined, others as circles, each with its name."""
    ends = [end for point in points for end in (point.score, *(point.interval or ()))]
    x, y = scale(across, np.array([point.cost for point in points])), scale(Axis(), np.array(ends))
    frontier = sorted((point.cost, point.score) for point in points if point.best)
    line = _points(x, y, *np.array(frontier).reshape(-1, 2).T)
    parts = [*_grid(x, y, axes), group("s7", path("ideal", f"M{line}" if len(frontier) > 1 else ""))]
    boxes: list[tuple[float, float, float]] = []  # names that are drawn: left, right, middle
    for number, point in enumerate(points):
        (at,), (up,) = _across(x, np.array([point.cost])), _up(y, np.array([point.score]))
        wide = LETTER * 1.06 * len(point.name)
        before = at + 9 + wide > WIDTH
        left = at - 9 - wide if before else at + 9
        places = [up + 4 + 14 * step for step in (0, -1, 1, -2, 2, -3, 3)]
        free = [
            place for place in places if all(left > b or left + wide < a or abs(place - m) > 13 for a, b, m in boxes)
        ]
        middle = next((place for place in free if TOP < place < BOTTOM), places[0])
        boxes.append((left, left + wide, middle))
        span = _up(y, np.array(point.interval or ()))
        shapes = [path("line", f"M{at:.1f},{span[0]:.1f} {at:.1f},{span[1]:.1f}")] if span else []
        circle = element("circle", kind="dot" if point.best else "open", cx=f"{at:.1f}", cy=f"{up:.1f}", r=5)
        parts += [group(f"s{number % COLOURS}", element("title", point.hint), *shapes, circle)]
        x_of_name, anchor = (at - 9, "end") if before else (at + 9, "")
        parts += [text(f"{x_of_name:.1f}", f"{middle:.1f}", point.name, "key word", anchor)]
    return picture(title, HEIGHT, parts)


def agreement_svg(title: str, gold: Floats, predicted: Floats) -> Markup:
    """Draw gold against predicted values on one scale, with the line on which they agree."""
    finite = np.isfinite(gold) & np.isfinite(predicted)
    gold, predicted = gold[finite], predicted[finite]
    shared = scale(Axis(), np.concatenate([gold, predicted]))
    line = group("s1", path("ideal", f"M{LEFT},{BOTTOM} {RIGHT},{TOP}"))
    parts = [*_grid(shared, shared, "gold (across), predicted (up)"), line, _dots(shared, shared, gold, predicted)]
    return picture(title, HEIGHT, parts)


def cloud_svg(title: str, gold: Floats, cosine: Floats) -> Markup:
    """Draw gold scores against cosines, with the quartiles of the cosine along gold."""
    x, y = scale(Axis(), gold), scale(Axis(), cosine)
    parts = [*_grid(x, y, "gold (across), cosine (up)"), _dots(x, y, gold, cosine)]
    at, (low, middle, high) = quartiles(gold, cosine)
    if len(at) > 1:
        band = f"M{_points(x, y, at, low)} {_points(x, y, at[::-1], high[::-1])}Z"
        parts.append(group("s1", path("band", band), path("middle", f"M{_points(x, y, at, middle)}")))
    return picture(title, HEIGHT, parts)


def quartiles(gold: Floats, cosine: Floats) -> tuple[Floats, Floats]:
    """Return the mean gold score of equal steps of gold, and the quartiles of the cosine there (3 x steps).

    Steps with fewer than FEWEST pairs are left out.
    """
    span = float(np.ptp(gold))
    if not span:
        return np.empty(0), np.empty((3, 0))
    step_of = np.minimum(((gold - gold.min()) / span * STEPS).astype(np.int64), STEPS - 1)
    steps = [step for step in range(STEPS) if (step_of == step).sum() >= FEWEST]
    at = np.array([gold[step_of == step].mean() for step in steps])
    return at, np.array([np.quantile(cosine[step_of == step], (0.25, 0.5, 0.75)) for step in steps]).reshape(-1, 3).T


def _across(x: Scale, values: Floats) -> list[float]:
    return list((LEFT + x(values) * (RIGHT - LEFT)).tolist())


def _up(y: Scale, values: Floats) -> list[float]:
    return list((BOTTOM - y(values) * (BOTTOM - TOP)).tolist())


def _points(x: Scale, y: Scale, across: Floats, up: Floats) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(_across(x, across), _up(y, up), strict=True))


def _dots(x: Scale, y: Scale, across: Floats, up: Floats) -> Markup:
    step = max(1, -(-len(across) // POINTS))
    centers = zip(_across(x, across[::step]), _up(y, up[::step]), strict=True)
    return group("s0 dots", *(element("circle", cx=f"{a:.1f}", cy=f"{b:.1f}", r=2.5) for a, b in centers))


def _grid(x: Scale, y: Scale, axes: str) -> list[Markup]:
    parts = []
    for at, label in zip(_across(x, np.array(x.ticks)), x.labels, strict=True):
        parts += [
            path("grid", f"M{at:.1f},{TOP} {at:.1f},{BOTTOM}"),
            text(f"{at:.1f}", BOTTOM + 17, label, anchor="middle"),
        ]
    for at, label in zip(_up(y, np.array(y.ticks)), y.labels, strict=True):
        parts += [
            path("grid", f"M{LEFT},{at:.1f} {RIGHT},{at:.1f}"),
            text(LEFT - 7, f"{at + 4:.1f}", label, anchor="end"),
        ]
    return [*parts, text((LEFT + RIGHT) / 2, BOTTOM + 36, axes, anchor="middle")]
