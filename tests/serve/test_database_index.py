"""An index in PostgreSQL behind the routes: what the same index in a folder gives; no password is ever shown."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bertree
from bertree.serve.http.telemetry import Log
from bertree.serve.launch import THREADS
from bertree.serve.loading import ServedSource, Swapper, load_sources
from bertree.serve.settings import ServerSettings
from tests.support import asking, learnable
from tests.support.asking import Asker, refused
from tests.support.command import Command
from tests.support.postgres import run_sql

pytest.importorskip("psycopg")
QUERY = "a lamp by the river"
SECRET = "s3cr3t"


@pytest.fixture(autouse=True)
def set_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the verb would start this process again."""
    for name, value in THREADS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def folder(own: Asker, tmp_path: Path) -> Path:
    """A folder with an index that may be changed."""
    return shutil.copytree(own.service.registry.index().index.path, tmp_path / "passages")


@pytest.fixture
def address(folder: Path, database: str) -> str:
    """The same index in a database."""
    bertree.Index.open(folder).export(database)
    return database.replace("//admin@", f"//admin:{SECRET}@")


@pytest.fixture
def both(own: Asker, folder: Path, address: str) -> Iterator[Asker]:
    """The index in a folder and in a database, with a model that answers questions."""
    registry = own.service.registry
    models = [(name, Path(registry.model(name).folder)) for name in ("words", "squad2", "ranker")]
    with asking.start([*models, ("folder", folder), ("", address)]) as started:
        yield started


def ask_both(asker: Asker, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask about both indexes; return the answer, which must be the same."""
    first, second = (asker.post(path, {**body, "index": index}).json for index in ("folder", "bertree"))
    for answer in (first, second):
        for changing in ("index", "milliseconds"):
            answer.pop(changing, None)
    _compare(second, first)
    return second


def _compare(hits: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert hits.keys() == expected.keys()
        for key, value in expected.items():
            _compare(hits[key], value)
    elif isinstance(expected, list):
        assert len(hits) == len(expected)
        for left, right in zip(hits, expected, strict=True):
            _compare(left, right)
    else:
        assert hits == (pytest.approx(expected, abs=1e-6) if isinstance(expected, float) else expected)


def test_it_answers_like_the_same_index_in_a_folder(both: Asker) -> None:
    for options in (
        {},
        {"k": 2},
        {"where": {"place": "garden"}},
        {"where": {"year": [1815, 1902]}, "rerank": "ranker"},
    ):
        assert ask_both(both, "/search", {"query": QUERY, "mode": "vectors", **options})["hits"]
    asked = {"question": QUERY, "k": 4}  # all passages, whose order may differ: words have another score in a database
    answers = [both.post("/answer", {**asked, "index": name}).json["answer"] for name in ("folder", "bertree")]
    assert answers[0] == answers[1]
    hybrid = both.post("/search", {"query": QUERY, "index": "bertree", "k": 1}).json
    assert (hybrid["mode"], hybrid["hits"][0]["word_rank"]) == ("hybrid", 1)
    for most in (1, 3, 2000):
        first, second = (both.get(f"/map?index={name}&most={most}").json for name in ("folder", "bertree"))
        _compare(second | {"index": "folder"}, first)
    assert "did you mean 'place'" in refused(
        both, "/search", {"query": QUERY, "index": "bertree", "where": {"plce": "road"}}, "where"
    )
    entries = {entry["id"]: entry for entry in both.get("/v1/models").json["data"]}
    assert entries["bertree"] | {"id": "folder", "created": 0} == entries["folder"] | {"created": 0}


def test_what_is_exported_later_is_found_at_once(both: Asker, folder: Path, database: str) -> None:
    assert len(both.get("/map?index=bertree").json["points"]) == 4
    model = both.service.registry.model("words").model
    with bertree.Index.open(folder, model) as index:
        index.add([{"id": "d", "text": QUERY, "place": "road", "year": 1815}])
        index.export(database)
    best = ask_both(both, "/search", {"query": QUERY, "k": 1, "mode": "vectors"})
    assert best["hits"][0]["document"] == "d"
    points = both.get("/map?index=bertree").json["points"]
    assert QUERY in [point["text"] for point in points], "as many passages, but another text"


@pytest.mark.parametrize("name", ["words", "wide"])
def test_another_model_is_loaded_when_its_index_replaces_the_old_one(
    name: str, tmp_path: Path, address: str, database: str
) -> None:
    source = ServedSource(path=address, name="books", device="cpu")
    registry = load_sources([source])
    assert list(registry.models) == ["words"], "an index brings its model"
    notes: list[tuple[str, dict[str, str]]] = []
    swapper = Swapper(registry, [source], lambda event, **values: notes.append((event, values)))
    asyncio.run(swapper.check(settled=True))
    assert notes == []
    wide = learnable.model(tmp_path / "other" / name, learnable.tokenizer(), width=48)
    index = bertree.Index.build(bertree.load(wide), [{"id": "z", "text": "a boat"}], tmp_path / "wide", name=str(wide))
    index.export(database, replace=True)
    asyncio.run(swapper.check(settled=True))
    assert notes == [("swapped", {"name": "books"})]
    assert registry.index("books").model.dimension == 48
    assert list(registry.models) == [name], "and the old one is gone"
    with asking.with_registry(registry) as server:
        assert [hit["document"] for hit in server.post("/search", {"query": QUERY}).json["hits"]] == ["z"]


def test_no_password_is_shown(
    both: Asker, address: str, database: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(Log, "write", lambda self, event, **values: logged.append(json.dumps([event, values])))
    swapper = Swapper(both.service.registry, [ServedSource(path=address, device="cpu")], both.service.log.write)
    name = database.partition("@/")[2].partition("?")[0]
    admin = database.replace(f"/{name}?", "/postgres?")
    run_sql(admin, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    try:
        run_sql(admin, f"SELECT pg_terminate_backend(pid, 9000) FROM pg_stat_activity WHERE datname = '{name}'")
        swapper.request()
        asyncio.run(swapper.check(settled=True))
        answers = [both.post("/search", {"query": QUERY, "index": "bertree"}), both.get("/map?index=bertree")]
        assert [(answer.status, answer.message) for answer in answers] == [
            (503, "index 'bertree' cannot be read; the server's log says why")
        ] * 2
        listed = both.get("/v1/models")
        assert [entry["passages"] for entry in listed.json["data"] if entry["kind"] == "index"] == [4, None]
        answers += [listed, both.get("/info"), both.get("/metrics")]
        result = command("serve", address, "--port", "0")
        assert (result.code, len(result.lines)) == (2, 1)
        assert "cannot be reached" in result.err
        assert "index failed" in "".join(logged)
        shown = [*(answer.body.decode() for answer in answers), result.err, *logged]
        shown += [repr(ServedSource(path=address)), repr(ServerSettings(sources=(address,)))]
        assert not [text for text in shown if SECRET in text]
    finally:
        run_sql(admin, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    assert both.post("/search", {"query": QUERY, "index": "bertree"}).status == 200, "it is there again"


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql:/me:{SECRET}@host/books",
        f"postgres:me:{SECRET}@host/books",
        f"postgresql://me:a@{SECRET}@host/books",
        f"postgresql://me:{SECRET}/b@host/books",
        f"postgresql://me:{SECRET}?b@host/books",
        f"postgresql://me:{SECRET}%zz@host/books",
        f"postgresql://me@127.0.0.1:1/books?password={SECRET}",
    ],
)
def test_a_wrong_address_is_one_line_without_it(address: str, command: Command) -> None:
    result = command("serve", address, "--port", "0")
    assert (result.code, len(result.lines)) == (2, 1)
    assert SECRET not in result.err
