"""Killed at any moment, an index opens as it was after its last commit, and the same command brings it to its end."""

import random
from pathlib import Path

import pytest

from bertree.search.database import DATABASE
from bertree.search.index import Index
from tests.support import killing
from tests.support.processes import PATIENCE
from tests.support.shared import suite_has
from tests.support.standin import Words

pytest.importorskip("faiss")


KILLS = 3  # of each kind, each way; `make kill` has more
WAYS = [("flat", "lines"), ("flat", "time"), ("hnsw", "lines"), ("hnsw", "time")]
Ends = tuple[str, list[dict]]


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """What uninterrupted runs come to: the build and two adds after it."""
    folder = tmp_path_factory.mktemp(request.param)
    ends = []
    for version in range(3):
        process = killing.start(folder / "index", version, request.param, folder / "log")
        process.join(PATIENCE)
        assert process.exitcode == 0
        ends.append(killing.contents(folder / "index"))
    assert all(ends)
    assert ends[0] != ends[1] != ends[2]
    return request.param, ends


def committed(folder: Path) -> int:
    return Index.open(folder).info["generation"] if (folder / DATABASE).is_file() else -1


def check(folder: Path, version: int, ends: list[dict]) -> None:
    """Whatever is there is whole, and is either what was there before or what is to come."""
    contents = killing.contents(folder)
    before = ends[version - 1] if version else {}
    for id, entry in contents.items():
        expected = [end[id] for end in (before, ends[version]) if id in end]
        # A document of the group that is removed in the end may be there in its new form until then.
        assert entry in expected or entry["metadata"] == '{"group": "g3"}', id
    for id in before:
        assert id in contents or before[id]["metadata"] == '{"group": "g3"}', f"{id} was committed, and is lost"


@pytest.mark.parametrize(("whole", "by"), suite_has((WAYS[0], WAYS[3]), WAYS), indirect=["whole"])
def test_killed_at_random_moments(by: str, whole: Ends, tmp_path: Path) -> None:
    kind, ends = whole
    moments = random.Random(f"{kind} {by}")
    kills, longest = 0, 1.0  # seconds until a kill; less after a run that ended before it, more after a kill
    for number in range(3 * KILLS):
        folder, log = tmp_path / f"index{number}", tmp_path / f"log{number}"
        for version in range(3):
            log.unlink(missing_ok=True)
            for trial in range(9):
                if log.exists():
                    break
                before = committed(folder)
                lines = int(10 ** moments.uniform(1, 4)) if by == "lines" and trial < 8 else 0
                process = killing.start(folder, version, kind, log, lines)
                if by == "time" and trial < 8:
                    process.join(moments.uniform(0.1, 1.0) * longest)
                    process.kill()
                process.join(PATIENCE)
                longest *= 0.7 if process.exitcode == 0 else 1.1
                assert process.exitcode in (0, -9), "a run after a kill finds nothing wrong"
                kills += process.exitcode == -9
                assert committed(folder) >= before
                if committed(folder) >= 0:
                    check(folder, version, ends)
            assert killing.contents(folder) == ends[version], "as if it had never been interrupted"
        assert Index.open(folder).info["complete"]
        names = {path.name for path in folder.iterdir()} - {f"{DATABASE}-wal", f"{DATABASE}-shm"}
        assert names == files(folder), "nothing half written is left"
        if kills >= KILLS:
            return
    raise AssertionError(f"only {kills} kills came in time to try anything")


def files(folder: Path) -> set[str]:
    """What the index says it has."""
    index = Index.open(folder)
    with index._store.transaction() as state:
        return state.files | {DATABASE}


def test_dead_at_every_line_of_a_commit(tmp_path: Path) -> None:
    """After 20, 400, 780 ... lines of a build, one after another: each run goes on where the last died."""
    folder, log = tmp_path / "index", tmp_path / "log"
    ends: list[dict] = []
    process = killing.start(tmp_path / "other", 0, "flat", log)
    process.join(PATIENCE)
    ends.append(killing.contents(tmp_path / "other"))
    log.unlink()
    reached = -1
    for lines in [*range(20, 4000, 380), 0]:
        process = killing.start(folder, 0, "flat", log, lines)
        process.join(PATIENCE)
        if process.exitcode == 0:
            break
        assert committed(folder) >= reached
        reached = committed(folder)
        if reached >= 0:
            check(folder, 0, ends)
    assert log.exists()
    assert killing.contents(folder) == ends[0]


def test_two_read_while_one_adds(tmp_path: Path) -> None:
    """Whoever asks meanwhile sees one state or the next, whole, and in the end the last one."""
    folder, log = tmp_path / "index", tmp_path / "log"
    Index.build(Words(16), killing.records(0), folder, kind="hnsw", chunk=12, overlap=3)
    readers = [Index.open(folder, Words(16)) for _ in range(2)]
    asked, generations = 0, set()
    for version in (1, 2, 3):
        process = killing.start(folder, version, "hnsw", log)
        alive = True
        while alive:  # once more after its end
            alive = process.is_alive()
            for reader in readers:
                for n in (0, 1, 6):
                    (hit,) = reader.search(f"Word{n}x0", k=1, where={"id": f"d{n}"})
                    assert hit.text.startswith(f"Word{n}x0 stands in version")
                    assert len(reader.search("stands in version", k=200)) > 100
                    asked += 1
                generations.add(reader.info["generation"])
        process.join(PATIENCE)
        assert process.exitcode == 0
    assert asked >= 18
    assert len(generations) > 2, "the readers saw states in between"
    for reader in readers:
        (hit,) = reader.search("Word0x0", k=1, where={"id": "d0"})
        assert "version 3" in hit.text
        assert reader.search("Word3x0", where={"group": "g3"}) == [], "what was removed is not found"
