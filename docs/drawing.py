"""Draw the figures of the documentation as SVG: boxes, arrows, labels, attention masks and bars.

A figure is 360 units wide, so that its text of 12 units and more can be read on a phone without scrolling. It has no
colours of its own: docs/assets/site.css gives each kind a fill in the light and in the dark theme, and a test computes
their contrast with the text.
"""

from collections.abc import Callable, Sequence

from markupsafe import Markup

from bertree.report.svg import element

WIDTH = 360
LINE = 15  # height of a line of text
KINDS = ("plain", "blue", "orange", "green", "violet")  # fills of boxes


def drawing(title: str, height: int, *parts: Markup, caption: str = "") -> Markup:
    """Return a figure. `title` describes it to readers who do not see it; the caption stands below it."""
    about = {"viewBox": f"0 0 {WIDTH} {height}", "xmlns": "http://www.w3.org/2000/svg", "aria_label": title}
    role = "group" if any("<a " in part for part in parts) else "img"
    svg = element("svg", *parts, role=role, **about)
    return element("figure", svg, element("figcaption", caption or title), kind="drawing")


def label(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> Markup:
    """Write text; several lines begin at `y`."""
    lines = words.split("\n")
    return Markup("").join(
        element("text", line, x=f"{x:g}", y=f"{y + LINE * number:g}", text_anchor=anchor, kind=kind)
        for number, line in enumerate(lines)
    )


def box(x: float, y: float, width: float, height: float, words: str = "", kind: str = "plain") -> Markup:
    """Draw a box with its words in the middle."""
    assert kind in (*KINDS, "pad", "mark"), kind
    lines = words.count("\n") + 1
    middle = y + height / 2 - LINE * (lines - 1) / 2 + 4.5
    outline = element("rect", x=f"{x:g}", y=f"{y:g}", width=f"{width:g}", height=f"{height:g}", rx=4, kind=kind)
    return outline + (label(x + width / 2, middle, words, "middle") if words else Markup(""))


def row(x: float, y: float, width: float, words: Sequence[str], kind: str = "plain", height: float = 26) -> Markup:
    """Draw boxes of equal width side by side."""
    return Markup("").join(box(x + width * n, y, width - 4, height, word, kind) for n, word in enumerate(words))


def line(*points: tuple[float, float], kind: str = "") -> Markup:
    """Draw a line through points."""
    return element("polyline", points=" ".join(f"{x:g},{y:g}" for x, y in points), kind=kind)


def arrow(*points: tuple[float, float], kind: str = "") -> Markup:
    """Draw a line through points with a head at the last one."""
    (x0, y0), (x, y) = points[-2:]
    length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
    dx, dy = (x - x0) / length, (y - y0) / length
    base = (x - 7 * dx, y - 7 * dy)
    corners = [(x, y), (base[0] - 4 * dy, base[1] + 4 * dx), (base[0] + 4 * dy, base[1] - 4 * dx)]
    head = element("polygon", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in corners), kind="head")
    return line(*points[:-1], base, kind=kind) + head


def mask(
    x: float,
    y: float,
    cell: float,
    rows: Sequence[str],
    columns: Sequence[str],
    sees: Callable[[int, int], str],
    title: str = "",
) -> Markup:
    """Draw which columns each row sees: a square for each pair, filled with the kind that `sees` returns, or empty."""
    parts = [label(x, y - (24 if any(columns) else 8), title, kind="strong")] if title else []
    parts += [label(x + cell * (j + 0.5), y - 5, word, "middle") for j, word in enumerate(columns) if word]
    for i, word in enumerate(rows):
        parts += [label(x - 5, y + cell * (i + 0.5) + 4.5, word, "end")] if word else []
        for j in range(len(columns)):
            parts.append(
                element(
                    "rect",
                    x=f"{x + cell * j + 1:g}",
                    y=f"{y + cell * i + 1:g}",
                    width=f"{cell - 2:g}",
                    height=f"{cell - 2:g}",
                    kind=sees(i, j) or "unseen",
                )
            )
    return Markup("").join(parts)


def bars(
    y: float, values: Sequence[tuple[str, float, str]], most: float = 0.0, left: float = 130, kind: str = "mark"
) -> Markup:
    """Draw horizontal bars: the name of each, its value, and the text behind it."""
    most = most or max(value for _, value, _ in values)
    room = WIDTH - left - 62
    parts = []
    for number, (name, value, shown) in enumerate(values):
        top, length = y + 26 * number, max(room * value / most, 1)
        parts += [label(left - 8, top + 14, name, "end"), box(left, top, length, 19, kind=kind)]
        parts += [label(left + length + 5, top + 14, shown)]
    return Markup("").join(parts)


def linked(page: str, part: Markup) -> Markup:
    """Make a part of a figure a link to a page, named by its path below docs/."""
    return element("a", part, href=page)
