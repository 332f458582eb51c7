"""The SQLite file of an index: opened by one writer, by concurrent readers, and from read-only media.

Readers of a database that is being written need further files next to it, which SQLite creates. Where it has no right
to, the file is opened as immutable, and opened again as soon as it has changed.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from urllib.parse import quote

from bertree.errors import UserError

DATABASE = "index.sqlite"
BROKEN = "is damaged ({}); restore this file, or remove the folder and build the index again"


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
            base.execute("SELECT 1 FROM state").fetchone()  # only reading shows whether it can be read
        except sqlite3.Error:
            base.close()
            raise
        return base

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
