"""Rows of .csv and .tsv files, with the quoting they use.

Files of examples use every style of quoting, and a wrong guess silently moves text into the wrong column. So the style
can be given; if it is not, the whole file is read before it is decided.
"""

import csv
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Literal

from bertree.errors import UserError
from bertree.text.readers import MAX_RECORD

# none: a quote is a character. standard: RFC 4180. cell: only a cell that is quoted as a whole loses its quotes
# (released files that mix both). auto: standard if the whole file can be read so, else none.
Quoting = Literal["none", "standard", "cell", "auto"]
Line = tuple[int, str]  # line number, text without the line end
Row = tuple[int, list[str]]  # line it starts on, cells


def read_rows(path: Path, lines: Iterator[Line], comma: bool, quoting: Quoting = "auto") -> Iterator[Row]:
    """Return the rows of a file. `quoting` is that of tab-separated files; commas always follow the standard."""
    first = next(lines, None)
    if first is None:
        return iter(())
    lines = chain([first], lines)
    if comma and "\t" not in first[1]:  # STS benchmark files are named .csv and are separated by tabs
        return _read_csv(path, lines, ",")
    if quoting == "standard":
        return _read_csv(path, lines, "\t")
    if quoting != "auto":
        return _split_tabs(lines, quoting == "cell")
    everything = list(lines)
    if any('"' in line for _, line in everything):
        try:
            found = list(_read_csv(path, everything, "\t"))
        except UserError:
            found = []
        if len({len(cells) for _, cells in found}) == 1:
            return iter(found)
    return _split_tabs(everything, unquote=False)


def _split_tabs(lines: Iterable[Line], unquote: bool) -> Iterator[Row]:
    for number, line in lines:
        if line:
            cells = line.split("\t")
            yield number, [_unquote(cell) for cell in cells] if unquote and '"' in line else cells


def _unquote(cell: str) -> str:
    """Undo the quoting of a cell that is quoted as a whole."""
    if len(cell) < 2 or cell[0] != '"' or cell[-1] != '"' or '"' in (inner := cell[1:-1]).replace('""', ""):
        return cell
    return inner.replace('""', '"')


def _read_csv(path: Path, lines: Iterable[Line], delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(MAX_RECORD)
    found = csv.reader((f"{line}\n" for _, line in lines), delimiter=delimiter, strict=True)
    start = 1
    try:
        for cells in found:
            if cells:
                yield start, cells
            start = found.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}: line {start}: is not valid CSV ({error}); look for an unclosed quote") from None
