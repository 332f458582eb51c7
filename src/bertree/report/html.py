"""The shell of a report: one HTML file with its style and its few lines of script inside, and nothing from outside."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from bertree.files import write_atomically
from bertree.report.svg import CSS as CHARTS
from bertree.report.theme import SCRIPT, STYLE


def document(title: str, body: Iterable[str], style: str = "", script: str = SCRIPT) -> str:
    """A whole page; `style` is what it has beside the common look."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{CHARTS}{STYLE}{style}</style></head>\n<body><main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>"
        + (f"<script>{script}</script>" if script else "")
        + "</body></html>\n"
    )


def heading(title: str, under: str, state: str = "", kind: str = "good") -> str:
    """The top of a page."""
    chip = f'<span class="state {kind}">{escape(state)}</span>' if state else ""
    return f'<h1>{escape(title)}{chip}</h1><p class="sub">{escape(under)}</p>'


def tiles(figures: Iterable[tuple[str, str, str]]) -> str:
    """A row of headline figures: name, value, a few words more."""
    made = [
        f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(value)}</dd><div class="more">{escape(more)}</div></div>'
        for name, value, more in figures
    ]
    return f'<dl class="tiles">{"".join(made)}</dl>' if made else ""


def cards(charts: Sequence[str]) -> str:
    """Charts side by side."""
    framed = "".join(f'<figure class="card">{chart}</figure>' for chart in charts)
    return f'<div class="charts">{framed}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), kind: str = "") -> str:
    """A table of plain text; the columns in `numbers` are set flush right."""
    cells = [[escape(cell) for cell in row] for row in rows]
    return html_table([escape(cell) for cell in head], cells, numbers, kind)


def html_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), kind: str = "", above: str = ""
) -> str:
    """A table whose cells are HTML already, as is what stands above it."""
    sides = dict.fromkeys(numbers, ' class="number"')

    def line(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}{sides.get(i, '')}>{cell}</{tag}>" for i, cell in enumerate(cells)) + "</tr>"

    top = f"<thead>{line('th', head)}</thead>" if head else ""
    lines = "".join(line("td", row) for row in rows)
    return f'<div class="scroll {kind}">{above}<table>{top}<tbody>{lines}</tbody></table></div>'


def folded(title: str, inside: str, unfolded: bool = False) -> str:
    """A part that opens at a click."""
    return f"<details{' open' if unfolded else ''}><summary>{escape(title)}</summary>{inside}</details>"


def place(path: Path, text: str) -> Path:
    """Write a file whole or not at all."""
    write_atomically(path, text)
    return path
