"""An index: what goes in comes out, with its place, its metadata and the right score."""

import datetime
import gzip
import json
import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest

import bertree
from bertree.errors import UserError
from bertree.search import passage_store
from bertree.search.database import DATABASE
from bertree.search.documents import Document, ReadOptions, ReadSummary, read_documents, total_size
from bertree.search.index import Index
from bertree.search.index_state import seal
from bertree.search.passages import Hit
from tests.support.search_samples import FILTERS, SHIPS, ids
from tests.support.standin import Words


def test_the_nearest_passages_come_first_with_their_metadata(index: Index) -> None:
    assert bertree.Index is Index
    hits = index.search("The brig lay at anchor in the bay", k=2)
    assert len(hits) == 2
    assert hits[0].document == "a"
    assert hits[0].cosine == pytest.approx(1.0, abs=1e-5)
    assert hits[0].metadata == {"book": "Sea", "year": 1851, "tags": ["ship", "bay"]}
    assert (hits[0].start, hits[0].end, hits[0].text) == (0, 34, SHIPS[0]["text"])
    several = index.search(["tea", "lantern"], k=1)
    assert [row[0].document for row in several] == ["d", "b"]
    assert len(index.search("bay", k=1000)) == len(index) == 4, "k larger than the index: all there is"


def test_scores_are_cosines(index: Index) -> None:
    question = "a lantern in the bay"
    vectors = Words().embed([question, *(str(ship["text"]) for ship in SHIPS)]).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = dict(zip("abcd", vectors[1:] @ vectors[0], strict=True))
    for hit in index.search(question, k=4, mode="vectors"):
        assert hit.score == hit.cosine == pytest.approx(expected[hit.document], abs=1e-6)


@pytest.mark.parametrize(("where", "expected"), FILTERS)
def test_a_filter_leaves_the_documents_that_match(index: Index, where: dict[str, object], expected: set[str]) -> None:
    assert set(ids(index, where=where)) == expected


def test_an_unknown_key_of_a_filter_is_named(index: Index) -> None:
    with pytest.raises(UserError, match=r"where 'boook': .*did you mean 'book'"):
        index.search("bay", where={"boook": "Sea"})


def test_add_replaces_and_remove_removes(index: Index) -> None:
    added = index.add([{"id": "b", "text": "The brig sank.", "book": "Sea"}, {"id": "e", "text": "New."}, SHIPS[0]])
    assert (added.new, added.replaced, added.unchanged, added.passages) == (1, 1, 1, 2)
    assert len(index) == 5
    assert set(ids(index)) == {"a", "b", "c", "d", "e"}
    assert set(ids(index, where={"book": "Sea"})) == {"a", "b", "c"}
    assert set(ids(index, where={"book": "Tower"})) == set(), "the old metadata went with the old text"
    assert index.remove(["a", "nobody"]) == 1
    assert index.remove(where={"book": "Sea"}) == 2
    assert set(ids(index)) == {"d", "e"}
    assert len(index) == 2
    assert index.remove(["d", "e"]) == 2
    assert ids(index) == []
    assert index.info["bytes"]["vectors"] == 0, "with the last document the files are empty too"
    index.add([SHIPS[2]])
    assert ids(index) == ["c"]


def test_unchanged_documents_are_not_embedded_again(tmp_path: Path) -> None:
    model = Words()
    index = Index.build(model, SHIPS, tmp_path / "index")
    model.seen = 0
    before = index.info["generation"]
    assert index.add(SHIPS).unchanged == 4
    assert model.seen == 0
    assert index.info["generation"] <= before + 1, "the commit a writer begins with"
    assert index.add([SHIPS[0] | {"year": 1852}]).replaced == 1, "other metadata, another document"


def test_the_last_of_an_id_counts(tmp_path: Path) -> None:
    index = Index.build(Words(), [*SHIPS, {"id": "a", "text": "Something else."}], tmp_path / "index")
    assert index.search("Something else", where={"id": "a"})[0].text == "Something else."
    assert "1 occurred twice with one id" in "".join(index.read.lines())
    index.add([{"id": "b", "text": "One."}, {"id": "b", "text": str(SHIPS[1]["text"]), "book": "Tower", "year": 1815}])
    assert index.search("lantern", where={"id": "b"})[0].text.startswith("A lantern")


def test_long_documents_keep_their_places(tmp_path: Path) -> None:
    text = "\ufeff" + "".join(f"Line {n} of the log — “calm”, wind from the north-west.\r\n\r\n" for n in range(400))
    (tmp_path / "log.txt").write_text(text, newline="")
    index = Index.build(Words(), tmp_path / "log.txt", tmp_path / "index", chunk=60, overlap=12)
    document = (tmp_path / "log.txt").read_bytes().decode("utf-8-sig")
    hits = index.search("the log of line 250", k=2000)
    assert len(hits) == len(index) > 50
    for hit in hits:
        assert document[hit.start : hit.end] == hit.text
        assert hit.document == hit.source == str(tmp_path / "log.txt")


def test_files_folders_and_tables_are_read_as_documents(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / "one.txt").write_text("First block.\nStill first.\n\n\nSecond block.\n \nThird.\n")
    (folder / "deep" / "two.md").write_text("# A title\n\nA text.\n")
    (folder / "three.jsonl").write_text('{"body": "Row one.", "n": 1}\n{"body": "", "n": 2}\n{"body": null, "n": 3}\n')
    with gzip.open(folder / "four.csv.gz", "wt") as file:
        file.write('key,body,place\nx1,"Quoted, with a comma.",north\n')
    (folder / ".hidden.txt").write_text("Not seen.")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    summary = ReadSummary()
    documents = {d.id: d for d in read_documents([str(folder)], ReadOptions("body"), summary)}
    assert {Path(id).name for id in documents} == {"one.txt", "two.md", "three.jsonl#1", "four.csv.gz#2"}
    assert (summary.documents, summary.empty) == (4, 2)
    assert summary.lines()[-1] == "1 left out: files of other kinds, .png (1)"
    (row,) = read_documents(folder / "four.csv.gz", ReadOptions("body", "key"), ReadSummary())
    assert (row.id, row.text, row.metadata) == ("x1", "Quoted, with a comma.", {"place": "north"})
    blocks = list(read_documents(folder / "one.txt", ReadOptions(blocks=True), ReadSummary()))
    first = "First block.\nStill first."
    assert [(b.text, b.metadata["line"]) for b in blocks] == [(first, 1), ("Second block.", 5), ("Third.", 7)]
    sizes = [(folder / name).stat().st_size for name in ("one.txt", "deep/two.md")]
    assert total_size([folder / "one.txt", folder / "deep"]) == sum(sizes)
    assert total_size([folder]) is None, "what is packed is longer than it looks"


def test_dates_and_lists_of_parquet_are_metadata(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"text": ["One."], "when": [datetime.date(1851, 11, 14)], "scores": [[1.5, 2.0]]})
    parquet.write_table(table, tmp_path / "t.parquet")
    index = Index.build(Words(), tmp_path / "t.parquet", tmp_path / "index")
    (hit,) = index.search("one", where={"when": "1851-11-14", "scores": 2})
    assert hit.metadata == {"when": "1851-11-14", "scores": [1.5, 2.0]}


def test_texts_that_are_not_valid_unicode_are_stored(tmp_path: Path) -> None:
    odd = ["\ud800 half a pair", "nul \x00 inside", "\u200b", "🙂" * 50, "x" * 200_000, "a\u0301" * 3]
    records = [{"id": f"o{n}", "text": text, "k\udfff": "\ud800", "n": float("nan")} for n, text in enumerate(odd)]
    index = Index.build(Words(), [*records, {"text": "  \n"}, {"text": ""}], tmp_path / "index")
    assert index.read.empty == 2
    assert index.info["documents"] == len(odd)
    (hit,) = index.search("nul inside", k=1)
    assert hit.text == "nul \x00 inside"
    index.verify()
    json.dumps([h.json() for h in index.search("half", k=100)]).encode()
    assert index.add(records).unchanged == len(odd)


def test_an_empty_index_finds_nothing_and_can_grow(tmp_path: Path) -> None:
    index = Index.build(Words(), [], tmp_path / "index")
    assert (len(index), index.search("anything"), index.search("x", where={"a": "b"})) == (0, [], [])
    index.add(SHIPS)
    assert len(index) == 4


def test_records_without_an_id_are_told_apart_by_their_text(tmp_path: Path) -> None:
    index = Index.build(Words(), [{"text": "One."}, {"text": "Two."}], tmp_path / "index")
    index.add([{"text": "Three."}, {"text": "One."}])
    assert sorted(hit.text for hit in index.search("one")) == ["One.", "Three.", "Two."], "none takes another's place"


def test_documents_keep_their_source_and_metadata(tmp_path: Path) -> None:
    metadata = {"a": 1, "day": datetime.date(1851, 11, 14), "page": "long " * 1000}
    index = Index.build(
        Words(), [Document("x", "One text.", source="somewhere", metadata=metadata)], tmp_path / "index"
    )
    (hit,) = index.search("text", where={"source": "somewhere", "day": "1851-11-14"})
    assert (hit.document, hit.source, hit.metadata) == ("x", "somewhere", metadata | {"day": "1851-11-14"})
    with pytest.raises(UserError, match="where 'page'"):
        index.search("text", where={"page": "long"})


def test_passages_come_in_the_order_they_were_added(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passage_store, "SOME", 3)  # of four
    passages = list(index)
    assert [passage.document for passage in passages] == ["a", "b", "c", "d"]
    assert len(passages) == len(index)
    assert (passages[0].start, passages[0].end, passages[0].text) == (0, 34, SHIPS[0]["text"])
    assert passages[1].metadata == {"book": "Tower", "year": 1815}
    index.remove("b")
    index.add({"id": "e", "text": "A new one."})
    assert [passage.document for passage in index] == ["a", "c", "d", "e"]
    assert list(Index.build(Words(), [], tmp_path / "empty")) == []


@pytest.mark.slow
def test_an_index_records_the_name_of_its_model(small_folder: Path, tmp_path: Path) -> None:
    for number, (name, recorded) in enumerate(
        {"default": "default", small_folder: str(small_folder.resolve())}.items()
    ):
        with Index.build(bertree.load(name), SHIPS, tmp_path / str(number)) as index:
            assert index.state.model == recorded


def test_a_hit_shows_itself() -> None:
    hit = Hit(score=0.5, text="<b>", document="a", source="x", start=0, end=3, metadata={"book": "Moby Dick"})
    page = hit._repr_html_()
    assert "<tr><th>book</th><td>Moby Dick</td></tr>" in page
    assert "<td>&lt;b&gt;</td>" in page


def test_an_index_shows_itself(tmp_path: Path) -> None:
    index = Index.build(Words(), SHIPS, tmp_path / "<b>index</b>", name="<i>model</i>")
    assert re.fullmatch(
        r"Index\('.*index</b>', documents=4, passages=4, model=<i>model</i>, kind=flat, size=\S+ MB\)", repr(index)
    )
    page = index._repr_html_()
    assert "<b>index" not in page
    assert "<i>" not in page
    assert "<tr><th>documents</th><td>4</td></tr>" in page
    assert "&lt;i&gt;model&lt;/i&gt;" in page
    index.close()
    assert "closed" in repr(index)
    assert "<table>" in index._repr_html_()


def test_an_index_is_closed_by_with(tmp_path: Path) -> None:
    with Index.build(Words(), SHIPS, tmp_path / "index") as index:
        assert index.nearest(np.empty((0, 128), np.float32)) == index.nearest([]) == []
    with pytest.raises(UserError, match="cannot be used any more"):
        index.search("brig")


def test_the_same_relative_path_of_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(f"The text of {name}.")
        (tmp_path / name / "rows.jsonl").write_text(json.dumps({"key": "r", "text": f"The row of {name}."}))
    monkeypatch.chdir(tmp_path / "one")
    index = Index.build(Words(), ["a.txt", "rows.jsonl"], tmp_path / "index")
    assert index.search("text", where={"source": "a.txt"})[0].source == str(tmp_path / "one" / "a.txt")
    monkeypatch.chdir(tmp_path / "two")
    for name, id in (("a.txt", "a.txt"), ("rows.jsonl", "rows.jsonl#1")):
        both = f"{id}: is in the index from {tmp_path}/one/{name}, and this is {tmp_path}/two/{name}; "
        with pytest.raises(UserError, match=re.escape(both)):
            index.add([name])
    index.add(tmp_path / "two" / "a.txt")
    texts = {hit.text for hit in index.search("text", k=9)}
    assert texts == {"The text of one.", "The text of two.", "The row of one."}
    index.add(tmp_path / "one" / "rows.jsonl", id="key")
    assert index.add(tmp_path / "two" / "rows.jsonl", id="key").replaced == 1, "an id of one's own means what it says"


def test_a_folder_that_was_moved_is_found_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.txt").write_text("A text.")
    monkeypatch.chdir(tmp_path / "old")
    index = Index.build(Words(), "a.txt", tmp_path / "index")
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.chdir(tmp_path / "new")
    assert index.add("a.txt").unchanged == 1
    assert index.search("text", k=1)[0].source == str(tmp_path / "new" / "a.txt")


def test_a_prompt_that_the_model_lacks_is_named(minilm: Path, tmp_path: Path) -> None:
    model = bertree.load(minilm)
    Index.build(model, SHIPS, tmp_path / "index").close()
    with sqlite3.connect(tmp_path / "index" / DATABASE) as base:
        state = json.loads(base.execute("SELECT value FROM state").fetchone()[0])
        base.execute("UPDATE state SET value = ?", (seal(state | {"prompts": ["", "../passwd"]}),))
    with pytest.raises(UserError, match=r"index: uses the prompt '../passwd'"):
        Index.open(tmp_path / "index", model)
