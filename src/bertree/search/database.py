"""The SQLite file of an index, opened: for one writer, for readers beside it, and where nothing can be written.

Readers of a database that others write need files beside it, which SQLite makes where it may. Where it may not, the
file is read as if it never changed, and opened again as soon as it has.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from urllib.parse import quote

from bertree.errors import UserError

DATABASE = "index.sqlite"
BROKEN = "is damaged ({}); restore this file, or remove the folder and build the index again"


class Database:
    """One connection, guarded, so that threads may share it."""

    def __init__(self, folder: Path, write: bool = False) -> None:
        self.path = folder / DATABASE
        self._lock = RLock()
        if not self.path.is_file():
            what = "is not an index" if folder.is_dir() else "no such folder"
            raise UserError(f"{folder}: {what}; make one with `bertree index build MODEL DOCS --out {folder}`")
        self._write = write
        self._seen: tuple[int, int] | None = None  # time and size of a file that is read as if it never changed
        with self._report_errors():
            self._base = self._open()

    def _open(self) -> sqlite3.Connection:
        """A connection; where the files SQLite keeps beside a database cannot be made, one that needs none."""
        try:
            return self._connect("rw" if self._write else "ro")
        except sqlite3.OperationalError as error:
            beside = self.path.with_name(f"{DATABASE}-wal")
            if self._write or not error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
                raise
            if beside.exists() and beside.stat().st_size:  # the newest changes are in there
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
        """Open again what was read as if it never changed, if it has, or if somebody is about to change it."""
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
            found = self.path.stat()
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read ({error.strerror or error})") from None
        return found.st_mtime_ns, found.st_size

    def close(self) -> None:
        """Let go of the file."""
        self._base.close()

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        """What SQLite finds wrong, in one line."""
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise UserError(f"{self.path}: cannot be used any more ({error})") from None
        except (sqlite3.DatabaseError, OverflowError) as error:
            if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
                raise UserError(f"{self.path}: cannot be read or written ({error})") from None
            raise UserError(f"{self.path}: {BROKEN.format(error)}") from None
