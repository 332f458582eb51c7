"""A process that adds to an index is killed beside a server: nothing is lost, and the server answers all the while."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bertree.inference.load import load
from bertree.inference.model import Model
from bertree.search.index import Index
from tests.support import asking, killing, learnable
from tests.support.asking import Asker
from tests.support.processes import PATIENCE
from tests.support.shared import suite_has

KILLS = 3  # of each kind of index
MOST = 1000  # passages of an answer, more than there are
Contents = dict[str, Any]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable.model(tmp_path_factory.mktemp("model") / "words", learnable.tokenizer())


@pytest.fixture(scope="module")
def model(words: Path) -> Model:
    return load(words)


@pytest.fixture(params=suite_has(["hnsw"], ["flat", "hnsw"]))
def folder(request: pytest.FixtureRequest, tmp_path: Path, words: Path, model: Model) -> Path:
    """An index of the first version."""
    if request.param == "hnsw":
        pytest.importorskip("faiss")
    path = tmp_path / request.param
    Index.build(model, killing.records(0), path, kind=request.param, chunk=12, overlap=3, name=str(words))
    return path


@pytest.fixture
def server(folder: Path, words: Path) -> Iterator[Asker]:
    with asking.start([("words", words), ("index", folder)]) as started:
        yield started


def ask(server: Asker, **body: Any) -> list[dict[str, Any]]:
    """Search in the index; return the hits."""
    answer = server.post("/search", {"query": "Word0x0 stands in version 0.", "k": MOST, **body})
    assert answer.status == 200, answer.body
    hits: list[dict[str, Any]] = answer.json["hits"]
    return hits


def passages(contents: Contents) -> set[tuple[str, int, int, str]]:
    return {(id, *passage) for id, entry in contents.items() for passage in entry["passages"]}


def served(server: Asker) -> set[tuple[str, int, int, str]]:
    """All passages that the server finds. With a filter all are compared, also where there is a graph."""
    hits = ask(server, where={"group": ["g0", "g1", "g2", "g3"]})
    return {(hit["document"], hit["start"], hit["end"], hit["text"]) for hit in hits}


def check_answers(server: Asker, before: Contents, after: Contents, version: int) -> None:
    """Every document is found whole: as it was, or as it will be."""
    for number in (0, 1, 3):
        id, later = f"d{number}", killing.records(version)[number]["text"]
        texts = {hit["text"] for hit in ask(server, where={"id": id})}
        allowed = [{text for *_, text in state[id]["passages"]} if id in state else set() for state in (before, after)]
        # One of the group that is removed in the end may be there in its new form until then.
        assert texts in allowed or (number == 3 and texts and all(text in later for text in texts))


def copied(folder: Path, to: Path) -> Path:
    """A copy made by another process: when this one closes a file of the database, the system drops all locks that
    the server, which is a thread here, has on it, and SQLite in a writer then cuts off memory that the server reads."""
    subprocess.run(["cp", "-r", str(folder), str(to)], check=True)
    return to


def test_a_server_goes_on_while_writers_are_killed(
    folder: Path, server: Asker, words: Path, model: Model, tmp_path: Path
) -> None:
    kind, log = folder.name, tmp_path / "log"
    moments = random.Random(kind)
    before, kills, version = killing.contents(folder, model), 0, 0
    assert served(server) == passages(before)
    while kills < KILLS:
        version += 1
        whole = copied(folder, tmp_path / f"whole{version}")
        killing.start(whole, version, kind, log, 0, words).join(PATIENCE)
        after = killing.contents(whole, model)
        for trial in range(3):
            log.unlink(missing_ok=True)
            lines = int(10 ** moments.uniform(1.5, 3.7)) if trial < 2 else 0
            process = killing.start(folder, version, kind, log, lines, words)
            while process.is_alive():
                check_answers(server, before, after, version)
            process.join(PATIENCE)
            assert process.exitcode in (0, -9)
            kills += process.exitcode == -9
            contents = killing.contents(folder, model)
            assert served(server) == passages(contents), "the last state that was committed"
            for id, entry in before.items():
                removed = entry["metadata"] == '{"group": "g3"}'
                assert removed or contents.get(id) in (entry, after.get(id)), f"{id} is lost"
            if log.exists():
                break
        assert contents == after, "as if no writer had been killed"
        before = after
