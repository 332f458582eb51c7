"""Results show themselves as short tables: as text at a Python prompt, as HTML in a notebook."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

MOST_ROWS = 20
ROOM, CELL = 200, 40  # characters of a row at a prompt, and of any cell
TITLE, PAGE_CELL = 240, 2000  # characters of a title, and of a cell in a notebook
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class ResultTable:
    """A title, and rows of cells below their heads. Rows beyond the twentieth are counted, long cells cut."""

    title: str
    rows: Sequence[Sequence[str]]
    heads: Sequence[str] = ()

    def __str__(self) -> str:
        shown = [*([self.heads] if self.heads else []), *self.rows[:MOST_ROWS]]
        rows = [[_one_line(cell, max(CELL, ROOM // len(row))) for cell in row] for row in shown]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        number = [_is_number(column) for column in zip(*rows[bool(self.heads) :], strict=True)]
        lines = [_one_line(self.title, TITLE)]
        for row in rows:
            cells = zip(row, widths, number or [False] * len(row), strict=True)
            line = "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells)
            lines.append(line.rstrip())
        return "\n".join(lines + self._rest)

    def html(self) -> str:
        """Return the table as HTML."""
        head = "".join(f"<th>{escape(_one_line(name, PAGE_CELL))}</th>" for name in self.heads)
        lines = [f"<p><b>{escape(_one_line(self.title, TITLE))}</b></p>", "<table>"]
        lines += [f"<tr>{head}</tr>"] if head else []
        for name, *cells in self.rows[:MOST_ROWS]:
            values = "".join(f"<td>{escape(_one_line(cell, PAGE_CELL))}</td>" for cell in cells)
            lines.append(f"<tr><th>{escape(_one_line(name, PAGE_CELL))}</th>{values}</tr>")
        return "\n".join([*lines, "</table>", *(f"<p>{line}</p>" for line in self._rest)])

    @property
    def _rest(self) -> list[str]:
        return [f"... ({len(self.rows):,} in all)"] if len(self.rows) > MOST_ROWS else []


class ShownAsTable:
    """A result whose repr is a short table. Dataclasses among its subclasses set `repr=False`."""

    def _result_table(self) -> ResultTable:
        raise NotImplementedError

    def __repr__(self) -> str:
        return str(self._result_table())

    def _repr_html_(self) -> str:
        return self._result_table().html()


def figure_rows(figures: dict[str, object]) -> list[tuple[str, str]]:
    """Return the numbers among named values as rows of a table, each with its 95 % interval if there is one."""
    intervals = figures.get("intervals")
    spans = intervals if isinstance(intervals, dict) else {}
    rows = []
    for name, value in figures.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            low_high = "".join(f" ({low:,.4g} to {high:,.4g})" for low, high in [spans[name]]) if name in spans else ""
            rows.append((name, f"{value:,.4g}{low_high}" if isinstance(value, float) else f"{value:,}"))
    return rows


def replace_control_characters(text: str) -> str:
    """Replace characters that neither HTML nor XML allows."""
    return CONTROL_CHARACTERS.sub("\ufffd", text)


def _one_line(text: str, most: int) -> str:
    """Return a text in one line of printable characters, cut if it is long."""
    line = " ".join(replace_control_characters(text).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _is_number(cells: Sequence[str]) -> bool:
    return all(not cell or cell.replace(",", "").replace(".", "").removeprefix("-").isdigit() for cell in cells)
