"""Build SVG as safe markup. Every text and every attribute value is escaped here, so that no chart has to."""

from collections.abc import Iterable, Mapping
from importlib.resources import files

from markupsafe import Markup, escape

from bertree.report.formats import replace_control_characters

WIDTH = 580
LETTER = 6.3  # mean width of a letter of a chart's text
COLOURS = 8  # classes s0 to s7 of assets/charts.css


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
