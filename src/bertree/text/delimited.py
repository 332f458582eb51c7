"""Rows of .csv and .tsv files: commas, tabs, and whether a quote is a character.

Files of examples come with every habit of quoting, and a wrong guess moves text into the wrong column without a
sign. So the habit can be said; where nobody says it, all of the file is looked at before it is decided.
"""

import csv
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Literal

from bertree.errors import UserError
from bertree.text.readers import MAX_RECORD

# none: a quote is a character. standard: RFC 4180. cell: a cell of one line that is quoted as a whole loses its
# quotes, in any other a quote is a character (released files that mix both). auto: standard if all of it is, or none.
Quoting = Literal["none", "standard", "cell", "auto"]
Line = tuple[int, str]  # its number, its text without the end
Row = tuple[int, list[str]]  # the line it starts on, its cells


def read_rows(path: Path, lines: Iterator[Line], comma: bool, quoting: Quoting = "auto") -> Iterator[Row]:
    """The rows of a file's lines. `quoting` is that of tabs; commas are always quoted as the standard says."""
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
    whole = list(lines)
    if any('"' in line for _, line in whole):
        try:
            found = list(_read_csv(path, whole, "\t"))
        except UserError:
            found = []
        if len({len(cells) for _, cells in found}) == 1:
            return iter(found)
    return _split_tabs(whole, unquote=False)


def _split_tabs(lines: Iterable[Line], unquote: bool) -> Iterator[Row]:
    for number, line in lines:
        if line:
            cells = line.split("\t")
            yield number, [_unquote(cell) for cell in cells] if unquote and '"' in line else cells


def _unquote(cell: str) -> str:
    """A cell that was quoted when it was written, as it was before."""
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
        raise UserError(f"{path}: line {start}: is not valid CSV ({error}); look for a quote left open") from None
