"""Columns of .tsv, .csv, .txt (tabs), .jsonl, .json and .parquet files, plain or compressed, checked line by line.

A file of labeled examples is small compared with a corpus, so it is read whole. In return every error names its line,
and quoting can be decided from the whole file. Nothing is repaired silently: a line that does not fit is refused, or,
for released files that are known to contain broken lines, left out and counted.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, dropwhile
from pathlib import Path
from typing import Any

from bertree.errors import UserError, listed, suggest
from bertree.text.records import Quoting, read_lines, read_records, read_rows, suffix_of
from bertree.text.sources import format_of


@dataclass(frozen=True, kw_only=True)
class Table:
    """The columns of a file. Cells of text files are strings as written; JSON and parquet cells keep their types."""

    path: Path
    names: tuple[str, ...]  # of the columns; empty without a header
    lines: Sequence[int]  # line each row starts on, from 1; for parquet, the row's number
    values: Callable[[int], list[Any]]  # all values of one column, by its number
    headless: int | None = None  # without a header: which of the known forms it has
    skipped: int = 0  # rows left out because they had too few or too many fields

    def find(self, alternatives: Sequence[str]) -> int | None:
        """Return the number of the first of these columns that exists; case is ignored if no exact name matches."""
        folded = [name.casefold() for name in self.names]
        for wanted in alternatives:
            if wanted in self.names:
                return self.names.index(wanted)
        return next((folded.index(a.casefold()) for a in alternatives if a.casefold() in folded), None)

    def column(self, alternatives: Sequence[str], role: str = "") -> int:
        """Like `find`, but raise an error that lists the existing columns. `role`: the argument that names it."""
        if (number := self.find(alternatives)) is not None:
            return number
        raise self.lacks({role: alternatives})

    def lacks(self, columns: Mapping[str, Sequence[str]]) -> UserError:
        """Return the error that the table has none of these columns, by the argument that names each."""
        wanted = ", ".join(" or ".join(f"'{name}'" for name in names) for names in columns.values())
        near = suggest(next(iter(columns.values()))[0], self.names) if len(columns) == 1 else ""
        roles = ", ".join(f"`{role}`" for role in columns if role)
        advice = near if "?" in near else f"name yours with {roles}" if roles else ""
        return UserError(
            f"{self.path}: has no column{'s' * (len(columns) > 1)} {wanted}; there are: {listed(self.names)}"
            f"{advice and f'; {advice}'}"
        )


def read_table(
    path: Path,
    header: Collection[str] | None = None,
    headless: Sequence[tuple[int, int]] = (),
    *,
    quoting: Quoting = "auto",
    skip: bool = False,
    optional: Collection[str] = (),
    wanted: Collection[str] | None = None,
) -> Table:
    """Read a file as columns.

    `header`: the first line is a header if it contains one of these names; None: it always is. `headless`: the fewest
    and most fields of a line in files without a header, for each known form. `quoting` is that of tab-separated files;
    commas always follow the standard. `skip`: leave out and count lines with the wrong number of fields. `optional`:
    last columns of a header that a line may lack. `wanted`: columns to keep of a text file with a header (the others
    may be most of it, such as the parse trees of MNLI); None: all.
    """
    kind = "json" if suffix_of(path) == ".json" else format_of(str(path))
    if kind is None:
        raise UserError(f"{path}: unknown kind of file; a table is .tsv, .csv, .txt, .jsonl, .json or .parquet")
    if not path.is_file():
        raise UserError(f"{path}: {'is a folder, not a file' if path.is_dir() else 'no such file'}")
    if kind in ("jsonl", "json", "parquet"):
        return _from_records(path)
    rows = read_rows(path, read_lines(path), kind == "csv", quoting)
    rows = dropwhile(lambda row: not any(cell.strip() for cell in row[1]), rows)
    if (top := next(rows, None)) is None:
        raise UserError(f"{path}: is empty")
    first = [name.strip() for name in top[1]]
    named = header is None or any(name.casefold() in {h.casefold() for h in header} for name in first)
    form = None
    if not named:
        form = next((n for n, (fewest, most) in enumerate(headless) if fewest <= len(first) <= most), None)
    needed = max((number for number, name in enumerate(first, 1) if name not in optional), default=1)
    fewest, most = headless[form] if form is not None else (needed, len(first))
    keep = None if wanted is None or form is not None else {name.casefold() for name in wanted}
    columns: dict[int, list[str]]
    columns = {n: [] for n in range(most) if keep is None or first[n].casefold() in keep}
    numbers: list[int] = []
    skipped = 0
    for number, cells in rows if form is None else chain([top], rows):
        if fewest <= len(cells) <= most:
            numbers.append(number)
            for n, column in columns.items():
                column.append(cells[n] if n < len(cells) else "")
        elif skip:
            skipped += 1
        else:
            expected = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            raise UserError(f"{path}: line {number}: has {len(cells)} fields where {expected} are expected")
    names = () if form is not None else tuple(first)
    table = Table(
        path=path,
        names=names,
        lines=numbers,
        values=columns.__getitem__,
        headless=form,
        skipped=skipped,
    )
    if not numbers and (named or form is not None):  # otherwise the caller reports the missing column
        raise UserError(f"{path}: has a header but no rows" if not skipped else f"{path}: has no complete row")
    return table


def _from_records(path: Path) -> Table:
    rows = list(read_records(path))
    if not rows:
        raise UserError(f"{path}: has no rows")
    names = tuple(dict.fromkeys(chain.from_iterable(record for _, record in rows)))
    return Table(
        path=path,
        names=names,
        lines=[number for number, _ in rows],
        values=lambda column: [record.get(names[column]) for _, record in rows],
    )
