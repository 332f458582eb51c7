"""Horizontal bars as SVG: one figure of several models, drawn in the look of `charts`.

Names stand above their bars, not beside them: they are paths as often as words, and a narrow screen has no room.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from bertree.report.svg import LETTER, WIDTH

MARGIN, ROW, THICK = 10, 42, 13
FADED = (1.0, 0.55, 0.3)  # the parts of a bar, one after the other
NAME = 46  # letters of a name that are shown


class Bar(NamedTuple):
    """One bar: its parts lie end to end; `until` is where a thin line behind it ends (a 90th percentile)."""

    name: str
    text: str  # the figure, as people read it
    parts: Sequence[float]
    until: float = 0.0


def bars_svg(title: str, bars: Sequence[Bar], under: str = "", top: float = 0.0) -> str:
    """A chart; `top` is what the full width stands for, if not the largest bar."""
    most = top or max((max(sum(bar.parts), bar.until) for bar in bars), default=0.0) or 1.0
    scale = (WIDTH - 2 * MARGIN) / most
    above = 46 if under else 32
    height = above + ROW * len(bars) + 4
    out = [f'<text class="title" x="{MARGIN}" y="18">{safe(title)}</text>']
    if under:
        out.append(f'<text x="{MARGIN}" y="36">{safe(under)}</text>')
    for place, bar in enumerate(bars):
        y = above + ROW * place
        room = min(NAME, int((WIDTH - 3 * MARGIN - LETTER * len(bar.text) * 1.1) / LETTER))
        short = bar.name if len(bar.name) <= room else "…" + bar.name[1 - max(room, 2) :]
        out.append(f'<text class="key" x="{MARGIN}" y="{y + 14}">{safe(short)}</text>')
        # Inline, because the rules of the page give the text of a chart one weight.
        look = 'style="font-weight:600;font-size:13px"'
        out.append(
            f'<text class="key" x="{WIDTH - MARGIN}" y="{y + 14}" text-anchor="end" {look}>{safe(bar.text)}</text>'
        )
        out.append(f'<g class="s{place % 8}"><title>{safe(bar.name)}: {safe(bar.text)}</title>')
        out.append(_drawn(bar, y + 20, scale) + "</g>")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {height}" role="img"'
    return f'{head} aria-label="{safe(title)}">{"".join(out)}</svg>'


def _drawn(bar: Bar, y: float, scale: float) -> str:
    x, made = float(MARGIN), []
    for part, strength in zip(bar.parts, FADED, strict=False):
        width = max(part * scale, 0.0)
        made.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{THICK}" fill="currentColor" opacity="{strength}"/>'
        )
        x += width
    end = MARGIN + bar.until * scale
    if end > x:
        middle = y + THICK / 2
        made.append(
            f'<path class="line" d="M{x:.1f},{middle} {end:.1f},{middle}M{end:.1f},{y + 2} {end:.1f},{y + 11}"/>'
        )
    return "".join(made)


def printable(text: str) -> str:
    """A text of someone else's without what has no place in a page."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def safe(text: str) -> str:
    """A text of someone else's as HTML that says just this."""
    return escape(printable(text))
