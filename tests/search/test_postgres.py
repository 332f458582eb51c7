"""An index in PostgreSQL: it finds what the index on disk finds, and an export writes what has changed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import bertree
from bertree.errors import UserError
from bertree.search.index import Index
from bertree.search.passages import Hit
from bertree.search.searcher import Searcher
from tests.support.killing import records
from tests.support.postgres import PostgresServer, run_sql
from tests.support.search_samples import ALL, FILTERS, SHIPS, ids
from tests.support.standin import Words

psycopg = pytest.importorskip("psycopg")
QUESTIONS = [f"Word{n}x0 Word{n + 1}x1 Word{n + 2}x0 Word{2 * n}x2 stands" for n in range(40)]


def writers(database: str) -> dict[str, str]:
    """The transaction that wrote each document."""
    return dict(run_sql(database, "SELECT document, max(xmin::text) FROM bertree GROUP BY document"))


def same(mine: list[Hit], theirs: list[Hit]) -> bool:
    """Whether these are the same hits, with scores that differ by rounding only."""
    scores = [[number for hit in hits for number in (hit.score, hit.cosine)] for hits in (mine, theirs)]
    plain = [[replace(hit, score=0.0, cosine=0.0) for hit in hits] for hits in (mine, theirs)]
    return plain[0] == plain[1] and scores[0] == pytest.approx(scores[1], abs=1e-6)


def test_the_same_top_ten_as_the_flat_index(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Words(64)
    index = Index.build(model, records(0, 400), tmp_path / "index", chunk=12, overlap=3)
    assert index.info["kind"] == "flat"
    done = index.export(database)
    assert (done.new, done.documents, done.passages, done.graph) == (400, 400, len(index), True)
    exported = bertree.PostgresIndex(database, model)
    assert len(exported) == len(index) > 700
    expected = index.search(QUESTIONS, 10, mode="vectors")
    for mine, theirs in zip(exported.search(QUESTIONS, 10, mode="vectors"), expected, strict=True):
        assert same(mine, theirs)
    assert same(exported.search("Word1x0", 2000, mode="vectors"), index.search("Word1x0", 2000, mode="vectors")), (
        "all there are"
    )

    monkeypatch.setattr("bertree.search.postgres.queries.EXACT", 1)  # as in a large index
    by_graph = f"{database}&options=-c%20enable_seqscan%3Doff"
    nearest = "EXPLAIN SELECT 1 FROM bertree ORDER BY embedding <=> (SELECT embedding FROM bertree LIMIT 1) LIMIT 5"
    assert "bertree_embedding_idx" in str(run_sql(by_graph, nearest)), "the HNSW index is used"
    hits = bertree.PostgresIndex(by_graph, model).search(QUESTIONS, 10, mode="vectors")
    shared = sum(
        hit.text in {other.text for other in theirs}
        for mine, theirs in zip(hits, expected, strict=True)
        for hit in mine
    )
    assert shared >= 0.98 * 10 * len(QUESTIONS)


@pytest.mark.parametrize(("where", "expected"), FILTERS)
def test_filters_mean_the_same(where: dict[str, object], expected: set[str], ships: Searcher) -> None:
    assert set(ids(ships, where=where)) == expected


@pytest.fixture(scope="module")
def ships(tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer) -> Searcher:
    index = Index.build(Words(), SHIPS, tmp_path_factory.mktemp("ships") / "index")
    address = postgres_server.address(postgres_server.create_database())
    index.export(address)
    return bertree.PostgresIndex(address, Words())


def test_words_and_both_are_searched_with_the_database_own_score(ships: Searcher) -> None:
    assert set(ids(ships, "brigs lantern", mode="words")) == {"a", "b", "c"}
    assert ids(ships, "brigs dawn", mode="words") == ["c", "a"]
    (hit,) = ships.search("lantern", k=1)
    assert (hit.document, hit.word_rank, hit.vector_rank) == ("b", 1, 1)
    assert hit.text[slice(*hit.highlights[0])] == "lantern"
    with pytest.raises(UserError, match="only stop words or none"):
        ships.search("the ?", mode="words")


def test_bad_questions_are_refused_in_one_line(ships: Searcher) -> None:
    for options, message in (
        ({"question": ""}, "is empty"),
        ({"question": "bay", "k": 0}, "at least 1"),
        ({"question": "bay", "where": {"boook": "Sea"}}, "did you mean 'book'"),
        ({"question": "bay", "where": "book"}, "is not a dict"),
    ):
        with pytest.raises(UserError, match=message):
            ships.search(**options)


def test_a_filter_that_many_passages_match_is_searched_in_the_graph(
    ships: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertree.search.postgres.queries.EXACT", 1)
    assert ids(ships, where={"book": "Sea"}) == ["a", "c"]


def test_a_search_in_the_graph_that_ends_early_is_completed(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Words(64)
    index = Index.build(model, records(0, 200), tmp_path / "index", chunk=12, overlap=3)
    index.export(database)
    monkeypatch.setattr("bertree.search.postgres.queries.EXACT", 1)
    monkeypatch.setattr("bertree.search.postgres.queries.BEAM", 1)
    options = "-c%20enable_seqscan%3Doff%20-c%20enable_bitmapscan%3Doff%20-c%20hnsw.max_scan_tuples%3D1"
    exported = bertree.PostgresIndex(f"{database}&options={options}", model)
    rare = {"id": [f"d{number}" for number in range(180, 196)]}
    assert {len(hits) for hits in exported.search(QUESTIONS, 10, mode="vectors", where=rare)} == {10}
    monkeypatch.setattr("bertree.search.postgres.queries.EXACT", 1000)
    exported_hits, expected = (
        exported.search(QUESTIONS, 10, mode="vectors", where=rare),
        index.search(QUESTIONS, 10, mode="vectors", where=rare),
    )
    assert all(map(same, exported_hits, expected)), "whatever is set there"


def test_the_passages_of_a_document_are_in_order(tmp_path: Path, database: str) -> None:
    text = " ".join(f"Line {n} of the log says calm." for n in range(40))
    index = Index.build(Words(), [{"id": "log", "text": text}, *SHIPS], tmp_path / "index", chunk=20, overlap=4)
    index.export(database)
    exported = bertree.PostgresIndex(database, Words())
    assert exported.document("log") == index.document("log")
    assert len(exported.document("log")) > 5
    assert exported.document("nobody") == index.document("nobody") == []


@pytest.mark.filterwarnings("error::RuntimeWarning")  # of an empty index
def test_a_second_export_writes_only_what_has_changed(index: Index, database: str) -> None:
    index.export(database)
    before = writers(database)
    assert index.export(database).unchanged == 4
    assert writers(database) == before
    index.add([SHIPS[0] | {"text": "The brig sank."}, {"id": "e", "text": "New in the bay."}])
    index.remove("d")
    done = index.export(database)
    assert (done.new, done.replaced, done.removed, done.unchanged, done.passages) == (1, 1, 1, 2, 2)
    after = writers(database)
    assert {id for id in after if after[id] == before.get(id)} == {"b", "c"}
    exported = bertree.PostgresIndex(database, Words())
    assert same(
        exported.search("brig in the bay", 9, mode="vectors"), index.search("brig in the bay", 9, mode="vectors")
    )
    assert (len(exported), exported.info["documents"]) == (4, 4)
    index.remove(["a", "b", "c", "e"])
    assert index.export(database).removed == 4
    assert exported.search("brig") == exported.search("brig", where={"any": "key"}) == []


def test_readers_see_the_old_index_until_the_new_one_is_complete(index: Index, database: str) -> None:
    index.export(database)
    exported, seen = bertree.PostgresIndex(database, Words()), []

    def watch(doing: str, count: int, of: int | None) -> None:
        seen.append((doing, sorted(ids(exported)), len(exported)))

    index.add([SHIPS[0] | {"text": "The brig sank."}, {"id": "e", "text": "New in the bay."}])
    for fresh, last in ((False, "writing documents"), (True, "building the indexes")):
        seen.clear()
        before = sorted(ids(exported))
        index.export(database, replace=fresh, watch=watch)
        assert {(tuple(names), count) for _, names, count in seen} == {(tuple(before), len(before))}
        assert seen[-1][0] == last
        assert sorted(ids(exported)) == ["a", "b", "c", "d", "e"]


def test_one_export_at_a_time(index: Index, database: str) -> None:
    index.export(database)
    second = []

    def watch(doing: str, count: int, of: int | None) -> None:
        with pytest.raises(UserError, match="another export is writing here"):
            index.export(database)
        second.append(index.export(database, table="other").new)

    index.export(database, watch=watch)
    assert second == [4]


def test_another_model_is_refused_and_can_replace(index: Index, tmp_path: Path, database: str) -> None:
    index.export(database)
    for model in (Words(digest="other"), Words(64)):
        with pytest.raises(UserError, match=r"public\.bertree: was made with another model"):
            bertree.PostgresIndex(database, model)
    other = Index.build(Words(64), SHIPS[:2], tmp_path / "other")
    with pytest.raises(UserError, match=r"holds an index with another model .* or `replace=True`"):
        other.export(database)
    opened = bertree.PostgresIndex(database, Words())
    assert other.export(database, replace=True).new == 2
    with pytest.raises(UserError, match="was made with another model"):
        opened.search("brig")
    assert len(bertree.PostgresIndex(database, Words(64)).search("brig")) == 2
    with pytest.raises(UserError, match="was opened without its model"):
        bertree.PostgresIndex(database).search("brig")


def test_another_index_does_not_take_the_place_of_one(index: Index, tmp_path: Path, database: str) -> None:
    index.export(database)
    other = Index.build(Words(), [{"id": "z", "text": "Something else."}], tmp_path / "other")
    with pytest.raises(UserError, match=r"holds another index, exported from .*index, without a document of this one"):
        other.export(database)
    assert other.export(database, table="second").new == 1
    assert set(ids(bertree.PostgresIndex(database, Words()))) == ALL


def test_names_are_quoted(index: Index, database: str) -> None:
    names = {"schema": 'My "schema"; DROP', "table": "Ta'ble {x}"}
    index.export(database, **names)
    assert index.export(database, **names).unchanged == 4
    assert index.export(database, replace=True, **names).new == 4
    exported = bertree.PostgresIndex(database, Words(), **names)
    assert set(ids(exported)) == ALL
    assert exported.info["bytes"]["all"] > 0
    for bad in ({"table": "x" * 58}, {"table": ""}, {"schema": "a\0b"}, {"table": "a%sb"}):
        with pytest.raises(UserError, match="must be a name of 1 to"):
            index.export(database, **bad)


def test_texts_with_nul_and_long_ids_are_stored(tmp_path: Path, database: str) -> None:
    odd = ["nul \x00 inside", "\u200b", "🙂" * 50, "x" * 200_000, "a\u0301 \\u0000 \\N \t\n", "\ufeff'\"\\"]
    records = [
        {"id": f"o{n}\x00", "text": text, "k\x00": "v\x00", "n": float("nan"), "deep": [{"x": ["\x00", 1.5e300]}]}
        for n, text in enumerate(odd)
    ]
    index = Index.build(Words(), [*records, {"id": "i" * 9000, "text": "Long id."}], tmp_path / "index")
    index.export(database)
    assert index.export(database).unchanged == len(odd) + 1
    exported = bertree.PostgresIndex(database, Words())
    (hit,) = exported.search("nul inside", k=1)
    assert (hit.text, hit.document) == ("nul \ufffd inside", "o0\ufffd"), "PostgreSQL cannot store U+0000"
    assert (hit.metadata["k\ufffd"], hit.metadata["n"]) == ("v\ufffd", "nan")
    assert len(exported.search("x", 20, where={"k\x00": "v\x00"})) >= len(odd)
    assert exported.document("o0\x00") == exported.document("o0\ufffd") != []
    assert [hit.document for hit in exported.search("long", where={"id": "i" * 9000})] == ["i" * 9000]
    by_text = {passage.text for passage in index}
    assert {hit.text for hit in exported.search("x", 2000)} == {text.replace("\x00", "\ufffd") for text in by_text}
    json.dumps([hit.json() for hit in exported.search("x", 20)]).encode()


def test_vectors_too_wide_for_a_graph_are_compared_one_by_one(tmp_path: Path, database: str) -> None:
    index = Index.build(Words(2500), SHIPS, tmp_path / "index")
    assert not index.export(database).graph
    assert ids(bertree.PostgresIndex(database, Words(2500))) == ids(index)


def test_a_lost_connection_is_opened_again(index: Index, database: str) -> None:
    index.export(database)
    exported = bertree.PostgresIndex(database, Words())
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = "
    run_sql(database, f"{others} current_database()")
    assert set(ids(exported)) == ALL
