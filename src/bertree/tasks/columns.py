"""Columns of a file -> text, pair and gold answer of an example.

Columns are found by the names in the header. Each role has several names, since the same data is published under
several; only files without a header are read by position.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertree.errors import UserError, listed
from bertree.files.formats import Json
from bertree.text.records import Quoting, first_cells, location, suffix_of
from bertree.text.tables import Table, read_table


class TextExample(NamedTuple):
    """A text or a pair of texts, and the gold answer if it is known."""

    id: str  # its number in the file, or its position
    text: str
    pair: str | None = None
    gold: str | float | None = None
    file: str = ""
    line: int = 0
    left_out: int = 0  # broken rows of its file that were skipped

    @property
    def where(self) -> str:
        """The file and line, which messages begin with."""
        if not self.file:
            return f"example {self.id}"
        return location(Path(self.file), self.line)


class RawRow(NamedTuple):
    """A row as it stands in the file: the label is not parsed yet; None if there is no such column."""

    id: str
    text: str
    pair: str | None
    label: str | None
    first: int  # the number of the first class, if the file numbers its classes
    file: str
    line: int


class HeaderlessLayout(NamedTuple):
    """The positions of the columns in a file without a header."""

    fewest: int
    most: int
    text: int
    pair: int | None = None
    label: int | None = None
    lead: int | None = None  # text before the text: a headline
    first: int = 0  # the number of the first class


@dataclass(frozen=True)
class Columns:
    """The names of each role's column in the releases of a task; the first one that exists is used."""

    text: tuple[str, ...] = ("text",)
    pair: tuple[str, ...] = ()
    label: tuple[str, ...] = ("label",)
    id: tuple[str, ...] = ("index", "idx", "id")
    lead: tuple[tuple[str, str], ...] = ()  # (text column, column put before it)
    from_one: tuple[str, ...] = ()  # label columns that number the classes from 1
    headless: tuple[HeaderlessLayout, ...] = ()
    quoting: Quoting = "none"
    skip: bool = False  # the released file has broken rows: skip and count them
    optional: tuple[str, ...] = ()  # last columns that may be missing in a row
    labeled: bool = False  # the user named the label column, so it must exist
    roles: bool = True  # a table may also name its columns text, pair and label

    def read(self, path: Path) -> tuple[list[RawRow], int]:
        """Return the rows of a file, and how many broken ones were skipped."""
        header = (*self.text, *self.pair) if self.headless else None
        wanted = (*self.text, *self.pair, *self.label, *self.id, *(name for _, name in self.lead))
        wanted += ("text", "pair", "label") if self.roles else ()
        forms = [(form.fewest, form.most) for form in self.headless]
        table = read_table(
            path,
            header,
            forms,
            quoting=self.quoting,
            skip=self.skip,
            optional=self.optional,
            wanted=wanted,
        )
        if table.headless is not None:
            form = self.headless[table.headless]
            numbers = _ColumnNumbers(
                text=form.text, pair=form.pair, label=form.label, id=None, lead=form.lead, first=form.first
            )
        else:
            numbers = self._column_numbers(table)
        return _rows(table, numbers, self.skip)

    def _column_numbers(self, table: Table) -> "_ColumnNumbers":
        names = {role: getattr(self, role) for role in ("text", "pair", "label") if getattr(self, role)}
        numbers = {role: table.find((*names[role], *([role] if self.roles else ()))) for role in names}
        missing = {role: names[role] for role, number in numbers.items() if number is None}
        if missing.keys() - (() if self.labeled else ("label",)):
            if len(missing) == 1:
                role, alternatives = next(iter(missing.items()))
                missing = {role if tuple(alternatives) == (role,) else "": alternatives}
            raise table.lacks(missing)
        text, label = numbers["text"], numbers.get("label")
        assert text is not None
        return _ColumnNumbers(
            text=text,
            pair=numbers.get("pair"),
            label=label,
            id=table.find(self.id),
            lead=next((table.find([lead]) for name, lead in self.lead if name == table.names[text]), None),
            first=1 if label is not None and table.names[label] in self.from_one else 0,
        )

    def fits(self, path: Path) -> bool:
        """True if a text file begins as the released files of the task do: with a header that names the text's column,
        or, if they have no header, with the same number of fields."""
        if suffix_of(path) not in (".tsv", ".csv", ".txt"):
            return False
        cells = first_cells(path)
        names = {cell.strip().casefold() for cell in cells}
        if not self.headless or names & {name.casefold() for name in (*self.text, *self.pair)}:
            return bool(names & {name.casefold() for name in self.text})
        return any(form.fewest <= len(cells) <= form.most for form in self.headless)

    def text_of(self, record: Json, role: str, where: str) -> str:
        """Return the text of a role in an object: under the column's name used in training, or else the role's name."""
        alternatives: Sequence[str] = tuple(dict.fromkeys((*getattr(self, role), role)))
        name = next((name for name in alternatives if name in record), None)
        if name is None:
            columns = ", ".join(name for name in alternatives if name != role)
            present = listed(record) or "nothing"
            raise UserError(
                f"{where}: an object needs '{role}' as text{columns and f' (or {columns})'}; there is: {present}"
            )
        if not isinstance(text := record[name], str):
            raise UserError(f"{where}: '{name}' {_not_text(text)}")
        return text.strip()


class _ColumnNumbers(NamedTuple):
    """The number of each role's column."""

    text: int
    pair: int | None
    label: int | None
    id: int | None
    lead: int | None
    first: int


def _rows(table: Table, numbers: _ColumnNumbers, skip: bool) -> tuple[list[RawRow], int]:
    empty: list[Any] = [None] * len(table.lines)
    columns = [empty if column is None else table.values(column) for column in numbers[:5]]
    file = str(table.path)
    rows: list[RawRow] = []
    skipped = table.skipped
    # A test file may have no label in any row; if other rows have one, a row without is broken.
    labeled = numbers.label is not None and any(label not in (None, "") for label in columns[2])
    for number, (line, cells) in enumerate(zip(table.lines, zip(*columns, strict=True), strict=True)):
        text, pair, label, index, lead = cells
        if skip and (None in (text, "" if numbers.pair is None else pair) or (labeled and label in (None, ""))):
            skipped += 1
            continue
        for name, cell in (("text", text), ("pair", pair)):
            if not isinstance(cell, str) and (name == "text" or numbers.pair is not None):
                raise UserError(f"{location(table.path, line)}: the {name} column {_not_text(cell)}")
        if lead is not None:
            text = f"{lead} {text}"
        name = str(number) if index is None else _text(index)
        answer = None if numbers.label is None else "" if label is None else _text(label)
        pair = pair if pair is None else pair.strip()
        rows.append(RawRow(name, text.strip(), pair, answer, numbers.first, file, line))
    return rows, skipped


def _not_text(cell: Any) -> str:
    """Return what is wrong with a cell that should hold text."""
    return "is empty; a text is needed" if cell is None else f"holds {type(cell).__name__} {cell!r:.40}, not text"


def _text(value: Any) -> str:
    """Return a label or number as text; 1.0, as integers with gaps are stored, is 1."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    return str(value).strip()
