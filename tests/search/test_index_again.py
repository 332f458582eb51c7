"""Files that are added again after they changed, values of every kind, and answers that do not hang on chance."""

import datetime
import json
from pathlib import Path

import numpy as np
import pytest

from bertree.errors import UserError
from bertree.files.atomic import exclusive_lock
from bertree.search.documents import DEEPEST, Document
from bertree.search.index import Index
from bertree.search.open_files import QUERIES
from bertree.search.vector_files import top_k
from bertree.search.writer import create_index
from tests.support.standin import Words


def texts(index: Index, **arguments: object) -> set[str]:
    return {hit.text for hit in index.search("a text", 1000, **arguments)}


def test_what_is_gone_from_a_file_is_gone_from_the_index(tmp_path: Path) -> None:
    path, other = tmp_path / "b.txt", tmp_path / "b.txt.txt"
    path.write_text("One.\n\nTwo.\n\nThree.\n")
    other.write_text("Another.")
    index = Index.build(Words(), [path, other], tmp_path / "index", blocks=True)
    path.write_text("One.\n")
    added = index.add(path, blocks=True)
    assert (added.unchanged, added.gone, texts(index)) == (1, 2, {"One.", "Another."})
    assert index.add(path).gone == 1, "one document now, where there was a block"
    path.write_text(" \n")
    assert (index.add(path).gone, texts(index)) == (1, {"Another."})
    index.verify()


def test_rows_of_a_table_that_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("key,text\nx,One.\ny,Two.\nz,Three.\n")
    index = Index.build(Words(), path, tmp_path / "index")
    path.write_text("key,text\nx,One.\ny,\n")
    assert (index.add(path).gone, texts(index)) == (2, {"One."})
    assert (index.add(path, id="key").gone, texts(index)) == (1, {"One."}), "the row has a name of its own now"
    path.write_text("key,text\nw,Zero.\n")
    assert (index.add(path, id="key").gone, texts(index)) == (0, {"One.", "Zero."}), "ids of one's own stay"


def test_nothing_is_taken_out_where_a_file_breaks_off(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [json.dumps({"text": f"Row {n}."}) for n in range(3)]
    path.write_text("\n".join(rows))
    index = Index.build(Words(), path, tmp_path / "index")
    path.write_text(rows[0] + "\nbroken\n")
    with pytest.raises(UserError, match="line 2: is not valid JSON"):
        index.add(path)
    assert len(texts(index)) == 3


def test_a_file_that_moved_and_shrank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "b.txt").write_text("One.\n\nTwo.\n")
    monkeypatch.chdir(tmp_path / "old")
    index = Index.build(Words(), "b.txt", tmp_path / "index", blocks=True)
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.chdir(tmp_path / "new")
    Path("b.txt").write_text("One.\n")
    assert (index.add("b.txt", blocks=True).gone, texts(index)) == (1, {"One."})


def test_documents_that_only_look_like_those_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("b.txt").write_text("One.\n")
    documents = [Document("b.txt#7", "A text of nowhere."), Document("b.txt#9", "Another's.", source="elsewhere/c.txt")]
    index = Index.build(Words(), documents, tmp_path / "index")
    assert (index.add("b.txt", blocks=True).gone, len(index)) == (0, 3)


def test_values_that_json_does_not_have(tmp_path: Path) -> None:
    day = datetime.date(1851, 11, 14)
    records = [{"id": np.int64(5), "text": "One.", "n": np.int64(7), "x": np.float32(0.5), "day": day, "odd": "a\0b🙂"}]
    index = Index.build(Words(), records, tmp_path / "index")
    for where in (
        {"n": 7},
        {"n": np.int64(7)},
        {"n": "7"},
        {"x": 0.5},
        {"day": day},
        {"id": 5},
        {"id": np.int64(5)},
        {"odd": "a\0b🙂"},
    ):
        assert texts(index, where=where) == {"One."}, where
    assert index.search("one")[0].metadata == {"n": 7, "x": 0.5, "day": "1851-11-14", "odd": "a\0b🙂"}
    assert index.remove("5") == 1


def test_metadata_named_like_our_own(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("A text of a file.")
    records = [{"id": "r", "text": "A text of a record.", "source": "radio"}]
    index = Index.build(Words(), [*records, str(tmp_path / "b.txt")], tmp_path / "index")
    assert texts(index, where={"source": "radio"}) == {"A text of a record."}
    assert texts(index, where={"source": str(tmp_path / "b.txt")}) == {"A text of a file."}
    assert index.remove(where={"source": tmp_path / "b.txt"}) == 1


@pytest.mark.slow
def test_a_filter_of_very_many_values(tmp_path: Path) -> None:
    index = Index.build(Words(), [{"id": f"{n}", "text": f"A text {n}."} for n in range(20)], tmp_path / "index")
    assert texts(index, where={"id": [str(n) for n in range(19, 300_000)]}) == {"A text 19."}


def test_of_equals_the_first(tmp_path: Path) -> None:
    records = [{"id": f"{n:04d}", "text": "A text."} for n in range(3000)]
    index = Index.build(Words(), records, tmp_path / "index")
    assert [hit.document for hit in index.search("a text", 3)] == ["0000", "0001", "0002"]
    scores = np.array([[1, 3, 2, 3, 2, 2], [0, 0, 0, 0, 0, 5]], np.float32)
    columns, best = top_k(scores, 3)
    assert columns.tolist() == [[1, 3, 2], [5, 0, 1]]
    assert best.tolist() == [[3, 3, 2], [5, 0, 0]]


def test_many_questions_are_asked_in_parts(tmp_path: Path) -> None:
    names = [f"word{n}" for n in range(QUERIES + 50)]
    index = Index.build(Words(), [{"id": name, "text": name} for name in names], tmp_path / "index")
    assert [hits[0].document for hits in index.search(names, 1)] == names


def test_values_of_the_wrong_type_are_refused(tmp_path: Path) -> None:
    deep: list[object] = []
    for _ in range(DEEPEST + 5):
        deep = [deep]
    for wrong in (Document(5, "t"), Document("q", None), {"text": "t", "deep": deep}):
        with pytest.raises(UserError, match="document 1"):
            Index.build(Words(), [wrong], tmp_path / "none")
        assert not (tmp_path / "none").exists()
    index = Index.build(Words(), [{"text": "t"}], tmp_path / "index")
    for options in ({"k": "5"}, {"k": 2.5}, {"k": 0}, {"where": ["a"]}):
        with pytest.raises(UserError, match=r"must be a|is not a"):
            index.search("t", **options)


def test_a_build_that_is_refused_leaves_the_other_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process made the folder, another was first to write: the one that made it takes nothing away."""
    from bertree.search import index as module

    create = create_index
    locks = []

    def create_and_lose(folder: Path, state: object) -> None:
        create(folder, state)
        locks.append(exclusive_lock(folder))
        locks[0].__enter__()

    monkeypatch.setattr(module, "create_index", create_and_lose)
    with pytest.raises(UserError, match="another"):
        Index.build(Words(), [{"text": "t"}], tmp_path / "index")
    locks[0].__exit__(None, None, None)
    assert len(Index(tmp_path / "index")) == 0
