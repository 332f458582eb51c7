"""Search and maps of an index over HTTP: what the Python API gives; mistakes in one line."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import bertree
from bertree.search.passages import Hit
from tests.support import asking
from tests.support.asking import Asker, refused

QUERY = "a lamp by the river"


def same(hits: list[dict[str, Any]], wanted: list[Hit]) -> None:
    assert [hit["document"] for hit in hits] == [hit.document for hit in wanted]
    for passage, hit in zip(hits, wanted, strict=True):
        assert passage["score"] == pytest.approx(hit.score, abs=1e-6)
        for name in ("cosine", "word_score"):
            value = getattr(hit, name)
            assert passage[name] == (None if value is None else pytest.approx(value, abs=1e-6))
        assert (passage["vector_rank"], passage["word_rank"]) == (hit.vector_rank, hit.word_rank)
        assert (passage["text"], passage["start"], passage["end"]) == (hit.text, hit.start, hit.end)
        assert passage["metadata"] == hit.metadata


def test_hits_are_those_of_the_index(own: Asker) -> None:
    index = own.service.registry.index().index
    filters = ({"place": "garden"}, {"year": [1815, 1902], "id": ["b", "d"]})
    for body in ({}, {"k": 2}, {"mode": "vectors"}, {"mode": "words"}, *({"where": where} for where in filters)):
        answer = own.post("/search", {"query": QUERY, **body})
        assert answer.json["index"] == "passages"
        assert answer.json["milliseconds"] > 0
        same(answer.json["hits"], index.search(QUERY, **{"k": 10, **body}))


@pytest.mark.parametrize("name", ["pair", "ranker", "words"])
def test_hits_are_reranked_as_by_the_index(own: Asker, name: str) -> None:
    index, model = own.service.registry.index().index, own.service.registry.model(name).model
    report = own.post("/search", {"query": QUERY, "rerank": name}).json["hits"]
    same(report, index.search(QUERY, 10, rerank=model))
    some = own.post("/search", {"query": QUERY, "rerank": name, "candidates": 2, "k": 3}).json["hits"]
    same(some, index.search(QUERY, 3, rerank=model, candidates=2))


def test_a_classifier_of_texts_does_not_rerank(own: Asker, classifiers: Path) -> None:
    served = own.service.registry.index()
    sources = [("words", Path(served.model.folder)), ("own", served.index.path), ("classes", classifiers / "classes")]
    with asking.start(sources) as asker:
        message = refused(asker, "/search", {"query": QUERY, "rerank": "classes"}, "rerank")
    assert "'classes' cannot score pairs" in message


def test_words_of_the_query_are_marked(own: Asker) -> None:
    hits = own.post("/search", {"query": "The lamps of Ada"}).json["hits"]
    marked = {hit["document"]: [hit["text"][start:end] for start, end in hit["highlights"]] for hit in hits}
    assert marked == {"a": ["Ada"], "b": ["lamp"], "c": [], "d": []}


def test_a_query_of_stop_words_is_refused_where_only_words_are_searched(own: Asker) -> None:
    assert "only stop words" in refused(own, "/search", {"query": "the?", "mode": "words"}, "query")
    assert own.post("/search", {"query": "the?"}).json["mode"] == "hybrid"


def test_no_path_of_the_server_is_told(own: Asker, tmp_path: Path) -> None:
    words = own.service.registry.model("words")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "harbour.txt").write_text("The lighthouse burned twice.")
    index = bertree.Index.build(words.model, [tmp_path / "notes"], tmp_path / "index", name=words.folder)
    assert str(tmp_path) in next(iter(index)).source
    with asking.start([("words", Path(words.folder)), ("notes", tmp_path / "index")]) as asker:
        body = {"query": "lighthouse", "where": {"source": str(tmp_path / "notes" / "harbour.txt")}}
        answer = asker.post("/search", body)
        (hit,) = answer.json["hits"]
        assert (hit["source"], hit["document"]) == ("harbour.txt", "harbour.txt")
        assert str(tmp_path) not in answer.body.decode() + asker.get("/map").body.decode()
        served = asker.service.registry.index("notes")
        for part in served.index.state.parts:
            (tmp_path / "index" / part.name).unlink()
        served.index.close()
        served.index = bertree.Index.open(tmp_path / "index", served.model.model)
        broken = asker.post("/search", {"query": "lighthouse"})
        assert broken.status == 503
        assert "index 'notes' cannot be read" in broken.message
        assert str(tmp_path) not in broken.body.decode()


def test_a_map_is_kept_until_the_index_changes(own: Asker, tmp_path: Path) -> None:
    served = own.service.registry.index()
    folder = shutil.copytree(served.index.path, tmp_path / "index")
    with asking.start([("words", Path(own.service.registry.model("words").folder)), ("copy", folder)]) as asker:
        report = asker.get("/map?index=copy").json
        wanted = bertree.map_index(served.index)
        assert [point["document"] for point in report["points"]] == ["a", "b", "c", "d"]
        for point, place, label in zip(report["points"], wanted.points, wanted.labels, strict=True):
            assert (point["x"], point["y"]) == pytest.approx(tuple(place), abs=1e-4)
            assert point["cluster"] == label
        assert (report["clusters"], report["sampled"], report["total"]) == (wanted.clusters, False, 4)
        kept = asker.service.registry.index().map
        assert asker.get("/map").json == report
        assert asker.service.registry.index().map is kept
        few = asker.get("/map?most=2").json
        assert (len(few["points"]), few["sampled"], few["total"]) == (2, True, 4)
        with bertree.Index.open(folder) as other:
            other.remove("c")
        assert [point["document"] for point in asker.get("/map").json["points"]] == ["a", "b", "d"]


def test_a_wrong_field_of_a_search_is_named(own: Asker) -> None:
    for query in ("", "  \n", 5, None, ["a"]):
        refused(own, "/search", {"query": query}, "query")
    for k in (0, -3, 1001, 2.5, "3"):
        refused(own, "/search", {"query": QUERY, "k": k}, "k")
    refused(own, "/search", {"query": QUERY, "candidates": 0, "rerank": "pair"}, "candidates")
    refused(own, "/search", {"query": QUERY, "index": "pasages"}, "index", 404)
    for where in ("a", ["a"], {"place": {"a": 1}}, {"place": [[1]]}, 5):
        refused(own, "/search", {"query": QUERY, "where": where}, "where")
    assert "did you mean 'place'" in refused(own, "/search", {"query": QUERY, "where": {"plce": "road"}}, "where")
    refused(own, "/search", {"query": QUERY, "rerank": "nobody"}, "rerank", 404)
    assert own.post("/search", {"query": QUERY, "where": {"place": "nowhere"}}).json["hits"] == []
    for query in ("?most=0", "?most=x", "?most=100000"):
        answer = own.get(f"/map{query}")
        assert answer.status == 422
        assert answer.message.startswith("most:")
    assert own.get("/map?index=nothing").status == 404
