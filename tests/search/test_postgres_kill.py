"""An export that is killed leaves the database as it was, and the next one ends as if nothing had happened."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import bertree
from bertree.errors import UserError
from bertree.search.index import Index
from tests.support.killing import records
from tests.support.postgres import run_sql
from tests.support.processes import PATIENCE, PROCESSES, wait_until
from tests.support.standin import Words

pytest.importorskip("psycopg")
ROWS = "SELECT document, source, digest, start_at, end_at, text, metadata, labels, embedding FROM bertree ORDER BY 1, 4"


def export_and_die(folder: Path, address: str, steps: int, fresh: bool) -> None:
    """Export an index; die at a step of it."""
    from bertree.search.postgres import export

    export.BLOCK = 7
    left = steps

    def watch(doing: str, count: int, of: int | None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    Index.open(folder).export(address, replace=fresh, watch=watch)


def run(folder: Path, address: str, *arguments: Any) -> int | None:
    process = PROCESSES.Process(target=export_and_die, args=(folder, address, *arguments))
    process.start()
    process.join(PATIENCE)
    # The server notices a moment later that a client was killed; meanwhile its export holds the lock.
    wait_until(lambda: not run_sql(address, "SELECT pid FROM pg_locks WHERE locktype = 'advisory'"))
    return process.exitcode


def tables(address: str) -> list[str]:
    return [row[0] for row in run_sql(address, "SELECT relname FROM pg_class WHERE relname ~ 'bertree' ORDER BY 1")]


def test_killed_at_every_step_of_an_export(tmp_path: Path, database: str) -> None:
    folder, model = tmp_path / "index", Words(16)
    index = Index.build(model, records(0, 30), folder, chunk=12, overlap=3)
    kills = 0
    for steps in (1, 4):
        assert run(folder, database, steps, False) == -signal.SIGKILL, "of the first export"
        assert tables(database) == []
        with pytest.raises(UserError, match="there is no index here"):
            bertree.PostgresIndex(database, model)
        kills += 1
    assert run(folder, database, 0, False) == 0
    old = run_sql(database, ROWS)
    assert len(old) == len(index)
    reader = bertree.PostgresIndex(database, model)
    before, names = reader.search("Word0x0 stands in version", 50), tables(database)
    index.add(records(1, 33))
    index.remove(where={"group": "g3"})
    for fresh in (False, True):
        for steps in range(1, 20):
            if (code := run(folder, database, steps, fresh)) == 0:
                break
            assert code == -signal.SIGKILL
            kills += 1
            if not fresh:
                assert run_sql(database, ROWS) == old, "nothing half there"
                assert reader.search("Word0x0 stands in version", 50) == before
                assert tables(database) == names
        else:
            raise AssertionError("it never ended")
        assert sorted(hit.text for hit in reader.search("Word0x0", 200)) == sorted(p.text for p in index)
    assert kills >= 8
    assert run_sql(database, "SELECT count(*) FROM pg_prepared_xacts") == [(0,)]
    assert index.export(database).passages == 0
