"""The rows of an index's database: read with their types and checksums, counted, and checked as a whole.

Every row of a document or passage has a checksum, and the state has their totals, so that damage is found when a row is
read, and missing rows when the database is checked.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.search.database import BROKEN, Database, RowTotals, row_checksum
from bertree.search.index_state import IndexState
from bertree.search.passages import label_rows
from bertree.search.vector_files import MappedVectors, Numbers
from bertree.text.records import json_object

# The columns that a checksum covers, in order.
DOCUMENT, DOCUMENT_TYPES = (
    "number, id, source, digest, metadata, characters, chunks",
    (int, str, str, bytes, str, int, int),
)
CHUNK, CHUNK_TYPES = "number, document, first, last, text", (int, int, int, int, str)
SOME = 500  # values per SQL query


class CheckedRows(Database):
    """The rows of an index's database, without their meaning."""

    _rows = RowTotals()  # of the transaction

    def _select(self, query: str, values: Sequence[Any], *types: type) -> list[tuple[Any, ...]]:
        """Return rows whose columns have these types: SQLite stores any type in any column."""
        rows = self._base.execute(query, values).fetchall()
        if any(type(value) is not kind for row in rows for value, kind in zip(row, types, strict=True)):
            raise UserError(f"{self.path}: {BROKEN.format('a value has the wrong type')}")
        return rows

    def _numbers(self, query: str, values: Sequence[Any] = ()) -> Numbers:
        rows = self._base.execute(query, values).fetchall()  # a primary key is always an integer
        return np.fromiter((row[0] for row in rows), np.int64, len(rows))

    def _select_checked(
        self, query: str, values: Sequence[Any], types: Sequence[tuple[type, ...]], checksums: str
    ) -> list[tuple[Any, ...]]:
        """Return rows of one or more tables after comparing each with its checksum, if there are checksums.

        `query` has a place for the columns of the checksums; `types`: of the other columns of each table.
        """
        all_types = [kind for columns in types for kind in columns]
        if not self.has_checksums:
            return self._select(query.format(""), values, *all_types)
        rows = self._select(query.format(checksums), values, *all_types, *(int for _ in types))
        for row in rows:
            start = 0
            for columns, checksum in zip(types, row[len(all_types) :], strict=True):
                if row_checksum(*row[start : start + len(columns)]) != checksum:
                    raise UserError(f"{self.path}: {BROKEN.format('the checksum of a row differs')}")
                start += len(columns)
        return rows

    def _parse_metadata(self, text: str) -> Json:
        try:
            return json_object(text, "metadata")
        except UserError as error:
            raise UserError(f"{self.path}: {BROKEN.format(error)}") from None

    def dead(self) -> Numbers:
        """Return the numbers of the vectors of deleted passages."""
        return self._numbers("SELECT number FROM dead")

    def check_counts(self, state: IndexState) -> None:
        """Raise an error unless the tables have as many rows as the state says. Within a transaction."""
        expected = {"chunks": state.vectors - state.dead, "dead": state.dead}
        if self.has_checksums:
            expected |= {"documents": state.rows.documents, "labels": state.rows.labels}
        for table, count in expected.items():
            (rows,) = self._base.execute(f"SELECT count(*) FROM {table}").fetchone()
            if rows != count:
                raise UserError(f"{self.path}: {BROKEN.format(f'{table} has {rows:,} rows where {count:,} belong')}")

    def check(self, state: IndexState, vectors: MappedVectors) -> None:
        """Read the whole database and report damage: rows, their checksums, and that they belong to the vectors.

        Within a transaction.
        """
        result = self._base.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if result != "ok":
            raise UserError(f"{self.path}: {BROKEN.format(result)}")
        self.check_counts(state)
        numbers = np.sort(np.concatenate([self._numbers("SELECT number FROM chunks"), self.dead()]))
        if not np.array_equal(numbers, vectors.numbers):
            raise UserError(f"{self.path}: {BROKEN.format('passages and vectors do not belong together')}")
        totals, passages = self._count_rows()
        if self.has_checksums and totals != state.rows:
            raise UserError(f"{self.path}: {BROKEN.format('the checksum of all rows differs')}")
        if passages:
            raise UserError(
                f"{self.path}: {BROKEN.format(f'document {min(passages)} has other passages than it should')}"
            )

    def _count_rows(self) -> tuple[RowTotals, dict[int, int]]:
        """Compare every row with its checksum; return the totals, and documents with too many or too few passages."""
        totals = RowTotals()
        passages: dict[int, int] = {}
        for row in self._all_rows("documents", DOCUMENT, DOCUMENT_TYPES):
            labels = label_rows(self._parse_metadata(row[4]))
            stored = self._select("SELECT key, value FROM labels WHERE document = ?", row[:1], str, str)
            if set(stored) != labels:
                raise UserError(
                    f"{self.path}: {BROKEN.format(f'the labels of document {row[0]} differ from its metadata')}"
                )
            totals.documents, totals.labels = totals.documents + 1, totals.labels + len(labels)
            totals.change([row_checksum(*row)])
            passages[row[0]] = row[6]
        for row in self._all_rows("chunks", CHUNK, CHUNK_TYPES):
            passages[row[1]] = passages.get(row[1], 0) - 1
            totals.change([row_checksum(*row)])
        return totals, {number: count for number, count in passages.items() if count}

    def _all_rows(self, table: str, columns: str, types: tuple[type, ...]) -> Iterator[tuple[Any, ...]]:
        """Yield all rows in the order of their numbers, checked."""
        last = -(1 << 63)
        query = f"SELECT {columns}{{}} FROM {table} WHERE number > ? ORDER BY number LIMIT {SOME}"
        while rows := self._select_checked(query, (last,), (types,), ", checksum"):
            yield from (row[: len(types)] for row in rows)
            last = rows[-1][0]

    def add_checksums(self, state: IndexState, vectors: MappedVectors) -> None:
        """Give the rows of an index of an earlier version their checksums. Within a transaction that may write."""
        self.check(state, vectors)
        self._rows = self._count_rows()[0]
        for table, columns, types in (("documents", DOCUMENT, DOCUMENT_TYPES), ("chunks", CHUNK, CHUNK_TYPES)):
            self._base.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER")
            for row in self._all_rows(table, columns, types):
                self._base.execute(f"UPDATE {table} SET checksum = ? WHERE number = ?", (row_checksum(*row), row[0]))
        self.has_checksums = True
