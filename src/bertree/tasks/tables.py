"""Columns of .tsv, .csv, .txt (tabs), .jsonl and .parquet files, plain or compressed, checked line by line.

A file of labelled examples is small beside a corpus, so it is read whole; in return every mistake is said with its
line, and quoting can be decided by looking at all of it. Nothing is repaired in silence: a line that does not fit is
refused, or, where a released file is known to hold broken ones, left out and counted.
"""

import csv
import io
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

from bertree.errors import UserError, suggest
from bertree.text.readers import RECORD
from bertree.text.sources import Source, format_of, opened

# none: a quote is a character. standard: RFC 4180. cell: a cell of one line that is quoted as a whole loses its
# quotes, in any other a quote is a character (released files that mix both). auto: standard if all of it is, or none.
Quoting = Literal["none", "standard", "cell", "auto"]
Row = tuple[int, list[str]]  # the line it starts on, its cells


@dataclass(frozen=True)
class Table:
    """A file's columns. Cells of text files are strings as they stand; JSON and parquet have their own values."""

    path: Path
    names: tuple[str, ...]  # of the columns; none where there is no header
    lines: Sequence[int]  # where each row starts, from 1; for parquet, the row's number
    values: Callable[[int], list[Any]]  # all of one column, by its number
    headless: int | None = None  # without a header: which of the known forms it has
    skipped: int = 0  # rows left out because they had too few or too many fields

    def find(self, alternatives: Sequence[str]) -> int | None:
        """Number of the first of these columns that is there; capitals do not matter if the exact one is missing."""
        folded = [name.casefold() for name in self.names]
        for wanted in alternatives:
            if wanted in self.names:
                return self.names.index(wanted)
        return next((folded.index(a.casefold()) for a in alternatives if a.casefold() in folded), None)

    def column(self, alternatives: Sequence[str]) -> int:
        """As `find`, or one line saying what is there instead."""
        if (number := self.find(alternatives)) is not None:
            return number
        wanted = " or ".join(f"'{name}'" for name in alternatives)
        there = ", ".join(self.names)
        near = suggest(alternatives[0], self.names)
        raise UserError(f"{self.path}: has no column {wanted}; there are: {there}{f'; {near}' if '?' in near else ''}")


def read_table(
    path: Path,
    header: Collection[str] | None = None,
    headless: Sequence[tuple[int, int]] = (),
    quoting: Quoting = "auto",
    skip: bool = False,
    optional: Collection[str] = (),
) -> Table:
    """A file as columns.

    `header`: the first line is a header if it holds one of these names; None: it is one in any case. `headless`: the
    fewest and most fields of a line in files without, form by form. `quoting` is that of tabs; commas are always
    quoted as the standard says. `skip`: lines with the wrong number of fields are left out and counted. `optional`:
    last columns of a header that a line may lack.
    """
    kind = format_of(str(path))
    if kind is None:
        raise UserError(f"{path}: unknown kind of file; a table is .tsv, .csv, .txt, .jsonl or .parquet")
    if not path.is_file():
        raise UserError(f"{path}: {'is a folder, not a file' if path.is_dir() else 'no such file'}")
    with opened(source := Source(str(path), kind, 0, 0)) as (stream, _):
        if kind == "parquet":
            return _parquet(path, stream, bool(source.packed))
        data = stream.read()
    text = _decoded(path, data)
    if not text.strip():
        raise UserError(f"{path}: is empty")
    if kind == "jsonl":
        return _jsonl(path, text)
    rows = list(_rows(path, text, kind, quoting))
    return _delimited(path, rows, header, headless, skip, optional)


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}: line {line}: is not UTF-8 text; convert the file") from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that hold something, without their ends. Only \\n and \\r\\n end one: reviews hold \\x85 as a character."""
    for number, line in enumerate(text.split("\n"), 1):
        if line := line.removesuffix("\r"):
            yield number, line


def _rows(path: Path, text: str, kind: str, quoting: Quoting) -> Iterator[Row]:
    # STS benchmark files are named .csv and are separated by tabs.
    comma = kind == "csv" and "\t" not in text.split("\n", 1)[0]
    if comma or quoting == "standard":
        yield from _quoted(path, text, "," if comma else "\t")
        return
    if quoting == "auto" and '"' in text:
        try:
            rows = list(_quoted(path, text, "\t"))
        except UserError:
            rows = []
        if len({len(cells) for _, cells in rows}) == 1:
            yield from rows
            return
    for number, line in _lines(text):
        cells = line.split("\t")
        yield number, [_unquoted(cell) for cell in cells] if quoting == "cell" and '"' in line else cells


def _unquoted(cell: str) -> str:
    """A cell that was quoted when it was written, as it was before."""
    if len(cell) < 2 or cell[0] != '"' or cell[-1] != '"' or '"' in (inner := cell[1:-1]).replace('""', ""):
        return cell
    return inner.replace('""', '"')


def _quoted(path: Path, text: str, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(RECORD)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for cells in rows:
            if cells:
                yield line, cells
            line = rows.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}: line {line}: is not valid CSV ({error}); look for a quote left open") from None


def _delimited(
    path: Path,
    rows: list[Row],
    header: Collection[str] | None,
    headless: Sequence[tuple[int, int]],
    skip: bool,
    optional: Collection[str],
) -> Table:
    first = [name.strip() for name in rows[0][1]]
    named = header is None or any(name.casefold() in {h.casefold() for h in header} for name in first)
    form = None
    if not named:
        form = next((n for n, (fewest, most) in enumerate(headless) if fewest <= len(first) <= most), None)
    needed = max((number for number, name in enumerate(first, 1) if name not in optional), default=1)
    fewest, most = headless[form] if form is not None else (needed, len(first))
    body = rows if form is not None else rows[1:]
    kept: list[Row] = []
    for number, cells in body:
        if fewest <= len(cells) <= most:
            kept.append((number, cells))
        elif not skip:
            wanted = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            raise UserError(f"{path}: line {number}: has {len(cells)} fields where {wanted} are expected")
    names = () if form is not None else tuple(first)
    table = Table(
        path=path,
        names=names,
        lines=[number for number, _ in kept],
        values=lambda column: [cells[column] for _, cells in kept],
        headless=form,
        skipped=len(body) - len(kept),
    )
    if not kept and (named or form is not None):  # else the header is not what was expected: say that instead
        raise UserError(f"{path}: has a header but no rows" if not body else f"{path}: has no whole row")
    return table


def _jsonl(path: Path, text: str) -> Table:
    records: list[dict[str, Any]] = []
    lines: list[int] = []
    for number, line in _lines(text):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise UserError(f"{path}: line {number}: is not a JSON object; one object a line is expected")
        records.append(record)
        lines.append(number)
    names = tuple(dict.fromkeys(chain.from_iterable(records)))
    return Table(path, names, lines, lambda column: [record.get(names[column]) for record in records])


def _parquet(path: Path, stream: IO[bytes], packed: bool) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{path}: reading .parquet needs pyarrow; pip install 'bertree[parquet]'") from None
    file: Any = stream
    if packed:  # parquet is read from its end
        file = io.BytesIO()
        shutil.copyfileobj(stream, file, 1 << 20)
        file.seek(0)
    try:
        table = pyarrow.parquet.read_table(file, use_threads=False)
        if not table.num_rows:
            raise UserError(f"{path}: has no rows")
        table.validate(full=True)  # text that is not UTF-8 would fail far from here
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split()) or "damaged"
        raise UserError(f"{path}: is not a readable parquet file ({reason})") from None
    names = tuple(table.column_names)
    return Table(path, names, range(1, table.num_rows + 1), lambda column: table.column(column).to_pylist())
