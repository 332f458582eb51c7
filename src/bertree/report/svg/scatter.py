"""Gold values against computed ones, a dot for each example."""

import numpy as np
from markupsafe import Markup

from bertree.report.history import Floats
from bertree.report.scales import Axis, Scale, scale
from bertree.report.svg.element import WIDTH, element, group, path, picture, text

HEIGHT = 430
POINTS = 2500  # drawn at most
STEPS = 20  # of gold, for the quartiles
FEWEST = 5  # examples in a step that has quartiles
LEFT, RIGHT, TOP, BOTTOM = 54, WIDTH - 14, 34, HEIGHT - 44


def agreement_svg(title: str, gold: Floats, predicted: Floats) -> Markup:
    """Draw gold against predicted values on one scale, with the line on which they agree."""
    known = np.isfinite(gold) & np.isfinite(predicted)
    gold, predicted = gold[known], predicted[known]
    both = scale(Axis(), np.concatenate([gold, predicted]))
    line = group("s1", path("ideal", f"M{LEFT},{BOTTOM} {RIGHT},{TOP}"))
    parts = [*_grid(both, both, "gold (across), predicted (up)"), line, _dots(both, both, gold, predicted)]
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
    place = np.minimum(((gold - gold.min()) / span * STEPS).astype(np.int64), STEPS - 1)
    steps = [step for step in range(STEPS) if (place == step).sum() >= FEWEST]
    at = np.array([gold[place == step].mean() for step in steps])
    return at, np.array([np.quantile(cosine[place == step], (0.25, 0.5, 0.75)) for step in steps]).reshape(-1, 3).T


def _across(x: Scale, values: Floats) -> list[float]:
    return list((LEFT + x(values) * (RIGHT - LEFT)).tolist())


def _up(y: Scale, values: Floats) -> list[float]:
    return list((BOTTOM - y(values) * (BOTTOM - TOP)).tolist())


def _points(x: Scale, y: Scale, across: Floats, up: Floats) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(_across(x, across), _up(y, up), strict=True))


def _dots(x: Scale, y: Scale, across: Floats, up: Floats) -> Markup:
    step = max(1, -(-len(across) // POINTS))
    places = zip(_across(x, across[::step]), _up(y, up[::step]), strict=True)
    return group("s0 dots", *(element("circle", cx=f"{a:.1f}", cy=f"{b:.1f}", r=2.5) for a, b in places))


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
