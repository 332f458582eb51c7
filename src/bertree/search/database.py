"""The SQLite file of an index: opened by one writer, by concurrent readers, and from read-only media.

Every row has a checksum, and the schema must be exactly ours: a trigger or view that someone has added could change
what is written or read.

Readers of a database that is being written need further files next to it, which SQLite creates. Where it has no right
to, the file is opened as immutable, and opened again as soon as it has changed.
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from urllib.parse import quote

from bertree.errors import UserError

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
BROKEN = "is damaged ({}); restore this file, or remove the folder and build the index again"


@dataclass
class RowTotals:
    """What the rows of an index add up to."""

    documents: int = 0
    labels: int = 0
    checksum: int = 0  # sum of the checksums of documents and passages, modulo 2^64

    def change(self, checksums: Iterable[int], sign: int = 1) -> None:
        """Add rows with these checksums, or remove them."""
        self.checksum = (self.checksum + sign * sum(checksums)) % (1 << 64)


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
            raise UserError(f"{self.path}: {BROKEN.format(f'it lacks: {missing[0][:40]}')}")
        if others := sorted(set(statements) - expected):
            raise UserError(f"{self.path}: {BROKEN.format(f'the {statements[others[0]]} is not ours')}")

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
            raise UserError(f"{self.path}: {BROKEN.format(error)}") from None
