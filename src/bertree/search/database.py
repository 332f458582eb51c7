"""The SQLite file of an index: opened by one writer, by concurrent readers, and from read-only media.

The schema must be exactly ours: a trigger or view that someone has added could change what is written or read. Every
row of a document or passage has a checksum, and the state has their totals, so that damage is found when a row is read,
and missing rows when the database is checked.

Readers of a database that is being written need further files next to it, which SQLite creates. Where it has no right
to, the file is opened as immutable, and opened again as soon as it has changed.
"""

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any
from urllib.parse import quote

import numpy as np

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.search.index_state import IndexState, RowTotals
from bertree.search.passages import label_rows
from bertree.search.vector_files import MappedVectors, Numbers
from bertree.text.records import json_object

DATABASE = "index.sqlite"
SCHEMA = """
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), value TEXT NOT NULL);
CREATE TABLE documents (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, source TEXT NOT NULL, digest BLOB NOT NULL,
    metadata TEXT NOT NULL, characters INTEGER NOT NULL, chunks INTEGER NOT NULL, checksum INTEGER);
CREATE TABLE chunks (number INTEGER PRIMARY KEY, document INTEGER NOT NULL, first INTEGER NOT NULL,
    last INTEGER NOT NULL, text TEXT NOT NULL, checksum INTEGER);
CREATE INDEX chunks_of ON chunks (document);
CREATE TABLE labels (key TEXT NOT NULL, value TEXT NOT NULL, document INTEGER NOT NULL,
    PRIMARY KEY (key, value, document)) WITHOUT ROWID;
CREATE INDEX labels_of ON labels (document);
CREATE INDEX sources ON documents (source);
CREATE TABLE dead (number INTEGER PRIMARY KEY);
"""


def row_checksum(*values: str | int | bytes) -> int:
    """Return the checksum of a row, as SQLite can store it."""
    digest = hashlib.blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _statements(schema: str) -> set[str]:
    return {" ".join(statement.split()) for statement in schema.split(";") if statement.strip()}


EXPECTED = _statements(SCHEMA)
EARLIER = _statements(SCHEMA.replace(", checksum INTEGER", ""))


class Database:
    """One connection with a lock, so that threads can share it."""

    def __init__(self, folder: Path, write: bool = False) -> None:
        self.path = folder / DATABASE
        self._lock = RLock()
        if not self.path.is_file():
            what = "is not an index" if folder.is_dir() else "no such folder"
            raise UserError(f"{folder}: {what}; make one with `bertree index build`")
        self._write = write
        self._seen: tuple[int, int] | None = None  # time and size of a file that is opened as immutable
        with self._report_errors():
            self._base = self._open()

    def _open(self) -> sqlite3.Connection:
        """Return a connection; an immutable one if SQLite's further files cannot be created."""
        try:
            return self._connect("rw" if self._write else "ro")
        except sqlite3.OperationalError as error:
            log = self.path.with_name(f"{DATABASE}-wal")
            if self._write or not error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
                raise
            if log.exists() and log.stat().st_size:  # it has the newest changes
                raise
        self._seen = self._stamp()
        return self._connect("ro&immutable=1")

    def _connect(self, mode: str) -> sqlite3.Connection:
        base = sqlite3.connect(
            f"file:{quote(str(self.path.resolve()))}?mode={mode}",
            uri=True,
            timeout=60,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            for line in ("trusted_schema=OFF", "cell_size_check=ON", "synchronous=FULL"):
                base.execute(f"PRAGMA {line}")
            if not self._write:
                base.execute("PRAGMA query_only=ON")
            self._check_schema(base)
        except (sqlite3.Error, UserError):
            base.close()
            raise
        return base

    def _check_schema(self, base: sqlite3.Connection) -> None:
        """Raise an error unless the tables are exactly ours; `has_checksums`: their rows have checksums."""
        base.execute("SELECT 1 FROM state").fetchone()  # only reading shows whether it can be read
        rows = base.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        statements = {" ".join(str(sql).split()): f"{kind} '{name}'" for kind, name, sql in rows}
        self.has_checksums = not EXPECTED - set(statements)
        expected = EXPECTED if self.has_checksums else EARLIER
        if missing := sorted(expected - set(statements)):
            raise self._damage(f"it lacks: {missing[0][:40]}")
        if others := sorted(set(statements) - expected):
            raise self._damage(f"the {statements[others[0]]} is not ours")

    def _damage(self, reason: object) -> UserError:
        """Return the error that this file is damaged."""
        advice = "restore this file, or remove the folder and build the index again"
        return UserError(f"{self.path}: is damaged ({reason}); {advice}")

    def _reopen_if_changed(self) -> None:
        """Open an immutable database again if it has changed, or if someone is about to change it."""
        if self._seen is None:
            return
        if self._seen != self._stamp() or self.path.with_name(f"{DATABASE}-wal").exists():
            old, seen, self._seen = self._base, self._seen, None
            try:
                self._base = self._open()
            except sqlite3.Error:
                self._seen = seen
                raise
            old.close()

    def _stamp(self) -> tuple[int, int]:
        try:
            status = self.path.stat()
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read ({error.strerror or error})") from None
        return status.st_mtime_ns, status.st_size

    def close(self) -> None:
        """Close the file. SQLite's further files go with the last connection that may write."""
        self._base.close()
        if self._seen is None and not self._write and self.path.with_name(f"{DATABASE}-wal").exists():
            with suppress(sqlite3.Error):
                self._connect("rw").close()

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        """Report SQLite's errors in one line."""
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise UserError(f"{self.path}: cannot be used any more ({error})") from None
        except (sqlite3.DatabaseError, OverflowError) as error:
            if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
                raise UserError(f"{self.path}: cannot be read or written ({error})") from None
            raise self._damage(error) from None


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
            raise self._damage("a value has the wrong type")
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
                    raise self._damage("the checksum of a row differs")
                start += len(columns)
        return rows

    def _parse_metadata(self, text: str) -> Json:
        try:
            return json_object(text, "metadata")
        except UserError as error:
            raise self._damage(error) from None

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
                raise self._damage(f"{table} has {rows:,} rows where {count:,} belong")

    def check(self, state: IndexState, vectors: MappedVectors) -> None:
        """Read the whole database and report damage: rows, their checksums, and that they belong to the vectors.

        Within a transaction.
        """
        result = self._base.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if result != "ok":
            raise self._damage(result)
        self.check_counts(state)
        numbers = np.sort(np.concatenate([self._numbers("SELECT number FROM chunks"), self.dead()]))
        if not np.array_equal(numbers, vectors.numbers):
            raise self._damage("passages and vectors do not belong together")
        totals, passages = self._count_rows()
        if self.has_checksums and totals != state.rows:
            raise self._damage("the checksum of all rows differs")
        if passages:
            raise self._damage(f"document {min(passages)} has other passages than it should")

    def _count_rows(self) -> tuple[RowTotals, dict[int, int]]:
        """Compare every row with its checksum; return the totals, and documents with too many or too few passages."""
        totals = RowTotals()
        passages: dict[int, int] = {}
        for row in self._all_rows("documents", DOCUMENT, DOCUMENT_TYPES):
            labels = label_rows(self._parse_metadata(row[4]))
            stored = self._select("SELECT key, value FROM labels WHERE document = ?", row[:1], str, str)
            if set(stored) != labels:
                raise self._damage(f"the labels of document {row[0]} differ from its metadata")
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
