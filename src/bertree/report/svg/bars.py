"""Horizontal bars: one measurement of several models.

Names stand above their bars: they are often paths, and a narrow screen has no room beside a bar.
"""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from bertree.report.formats import end_of_path
from bertree.report.svg.element import COLOURS, LETTER, WIDTH, element, group, path, picture, text

MARGIN, ROW, THICK = 10, 42, 13
OPACITIES = (1.0, 0.55, 0.3)  # of the parts of a bar
NAME = 46  # letters of a name that are shown


class ModelBar(NamedTuple):
    """The bar of one model: its parts lie end to end; a thin line behind them ends at `until` (a 90th percentile)."""

    name: str
    text: str  # the value as it is shown
    parts: Sequence[float]
    until: float = 0.0


def bars_svg(title: str, bars: Sequence[ModelBar], under: str = "", top: float = 0.0) -> Markup:
    """Draw bars. `top` is the value at the full width; the default is the largest bar."""
    most = top or max((max(sum(bar.parts), bar.until) for bar in bars), default=0.0) or 1.0
    scale = (WIDTH - 2 * MARGIN) / most
    above = 46 if under else 32
    parts = [text(MARGIN, 36, under)] if under else []
    for place, bar in enumerate(bars):
        y = above + ROW * place
        room = min(NAME, int((WIDTH - 3 * MARGIN - LETTER * len(bar.text) * 1.1) / LETTER))
        parts += [
            text(MARGIN, y + 14, end_of_path(bar.name, max(room, 2)), "key"),
            text(WIDTH - MARGIN, y + 14, bar.text, "key value", "end"),
            group(f"s{place % COLOURS}", element("title", f"{bar.name}: {bar.text}"), *_draw(bar, y + 20, scale)),
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
