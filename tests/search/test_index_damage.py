"""What is broken or does not fit is said in one line, and what is whole stays."""

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertree
from bertree.errors import UserError
from bertree.search import faiss_index
from bertree.search.database import DATABASE
from bertree.search.index import Index
from bertree.search.index_state import seal
from bertree.search.vector_files import sha256_of
from tests.support.standin import Words

pytest.importorskip("faiss")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "index"
    records = [{"id": f"d{n}", "text": f"Word{n} stands here with word{n % 7}.", "n": n % 5} for n in range(300)]
    Index.build(Words(), records, folder, kind="hnsw").close()
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A copy of the index, to be damaged."""
    return shutil.copytree(good, tmp_path / "index")


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in (8, len(data) // 3, 2 * len(data) // 3):
        data[at] ^= 0xFF
    path.write_bytes(bytes(data))


def noise(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def gone(path: Path) -> None:
    path.unlink()


def use(folder: Path) -> None:
    """Whatever a user may do first."""
    index = Index.open(folder, Words())
    index.search("Word3 stands", k=3, where={"n": 3})
    index.search("Word3 stands", k=3)
    index.verify()


@pytest.mark.parametrize("file", ["graph-*.faiss", "vectors-*.bin", DATABASE])
@pytest.mark.parametrize("harm", [cut, flip, noise, empty, gone])
def test_damage_of_any_file_is_one_line_with_advice(file: str, harm: Callable[[Path], None], folder: Path) -> None:
    (path,) = folder.glob(file)
    harm(path)
    with pytest.raises(UserError) as caught:
        use(folder)
    line = str(caught.value)
    assert "\n" not in line
    assert str(folder) in line
    assert "index build" in line or "build the index again" in line or "restore" in line


def state(folder: Path, old: str, new: str) -> None:
    base = sqlite3.connect(folder / DATABASE)
    (text,) = base.execute("SELECT value FROM state").fetchone()
    assert old in text
    text = text.replace(old, new)
    with contextlib.suppress(ValueError):  # a forger computes the checksum, too
        text = seal(json.loads(text))
    base.execute("UPDATE state SET value = ?", (text,))
    base.commit()
    base.close()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"format": 3', '"format": 99', "format 99, newer than this bertree reads"),
        ('"dimension": 128', '"dimension": -1', "no valid state"),
        ('"dimension": 128', '"dimension": 64', "damaged or cut off"),
        ('"vectors-00000002.bin"', '"../vectors-00000002.bin"', "no valid state"),
        ('"vectors-00000002.bin"', '"vectors-00000009.bin"', "is missing"),
        ('"count": 300', '"count": 299', "damaged or cut off"),
        ('{"format"', '["format"', "no valid state"),
        ('"parts"', '"farts"', "no valid state"),
        ('"dimension": 128', '"dimension": "128"', "no valid state"),
        ('"digest": "standin"', '"digest": 5', "no valid state"),
        ('"kind": "hnsw"', '"kind": "foo"', "no valid state"),
        ('"kind": "hnsw"', '"kind": "flat"', "no valid state"),
        ('"kind": "hnsw"', '"kind": "ivfpq"', "no valid state"),
        ('{"beam": 192}', "{}", "no valid state"),
        ('"complete": true', '"complete": "yes"', "no valid state"),
        ('"tokens": 256', '"tokens": 0', "no valid state"),
        ('"language": "en"', '"language": ["en"]', "no valid state"),
        ('"count": 300, "bytes": 1', '"count": "300", "bytes": 1', "no valid state"),
    ],
)
def test_an_invalid_state_is_refused(old: str, new: str, expected: str, folder: Path) -> None:
    state(folder, old, new)
    with pytest.raises(UserError, match=expected) as caught:
        Index.open(folder).nearest(np.ones((1, 128), np.float32), 3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "ask"),
    [
        ("chunks SET text = x'ff00'", lambda index: index.nearest(np.ones((1, 128), np.float32), 300)),
        ("chunks SET text = x'ff00'", list),
        ("chunks SET first = 'x'", list),
        ("documents SET id = x'ff' WHERE id = 'd7'", list),
        ("documents SET source = x'ff'", lambda index: index.info),
        ("documents SET digest = 'text'", lambda index: index.add({"id": "d7", "text": "new"})),
        ("documents SET metadata = '" + "[" * 100_000 + "'", list),
        ("documents SET metadata = '[]'", list),
        ("state SET value = '" + "[" * 100_000 + "'", lambda index: index.info),
        ("state SET value = x'00'", lambda index: index.info),
    ],
)
def test_values_of_the_wrong_type_in_the_database_are_refused(
    change: str, ask: Callable[[Index], object], folder: Path
) -> None:
    index = Index.open(folder, Words())
    with sqlite3.connect(folder / DATABASE) as base:
        base.execute(f"UPDATE {change}")
    with pytest.raises(UserError, match=r"index\.sqlite: .*build the index again") as caught:
        ask(index)
    assert "\n" not in str(caught.value)


CHANGES = (
    "DELETE FROM chunks WHERE number % 7 = 0",
    "DELETE FROM documents WHERE number = 3",
    "DELETE FROM labels WHERE value = '3'",
    "DELETE FROM labels WHERE value = '3' AND document = 4; INSERT INTO labels VALUES ('n', '3', 5)",
    "INSERT INTO dead VALUES (4)",
    "DELETE FROM chunks WHERE number = 4; INSERT INTO dead VALUES (4)",
    "UPDATE chunks SET text = replace(text, 'here', 'there') WHERE number = 3",
    "UPDATE chunks SET first = 1 WHERE number = 3",
    "UPDATE chunks SET document = 5 WHERE number = 3",
    "UPDATE chunks SET number = 1000 WHERE number = 3",
    "UPDATE chunks SET checksum = NULL WHERE number = 3",
    "UPDATE documents SET id = 'other' WHERE id = 'd3'",
    "UPDATE documents SET source = 'other' WHERE id = 'd3'",
    "UPDATE documents SET metadata = '{\"n\": 4}' WHERE id = 'd3'",
    "UPDATE documents SET chunks = 2 WHERE id = 'd3'",
    "UPDATE documents SET digest = x'00' WHERE id = 'd3'",
    "UPDATE state SET value = replace(value, '0.67', '0.5')",
    "UPDATE state SET value = replace(value, '\"dead\": 0', '\"dead\": 1')",
    "CREATE TRIGGER t AFTER INSERT ON documents BEGIN DELETE FROM chunks; END",
    "CREATE VIEW v AS SELECT 1",
    "CREATE TABLE t (x)",
    "CREATE INDEX i ON chunks (first)",
    "DROP INDEX chunks_of",
    "ALTER TABLE dead ADD COLUMN more",
)


@pytest.mark.parametrize("change", CHANGES)
def test_no_change_of_the_database_passes_verification(change: str, folder: Path) -> None:
    with sqlite3.connect(folder / DATABASE) as base:
        base.executescript(change)
    with (
        pytest.raises(UserError, match=r"index\.sqlite: .*build the index again") as caught,
        Index.open(folder) as index,
    ):
        index.verify()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [change for change in CHANGES if "document = 4; INSERT" not in change])
def test_a_search_notices_changed_rows_that_it_reads(change: str, folder: Path) -> None:
    with sqlite3.connect(folder / DATABASE) as base:
        base.executescript(change)
    with pytest.raises(UserError, match=r"index\.sqlite: "), Index.open(folder) as index:
        index.nearest(np.ones((1, 128), np.float32), 300)


def test_nothing_is_added_to_changed_rows(folder: Path) -> None:
    with sqlite3.connect(folder / DATABASE) as base:
        base.execute("CREATE TRIGGER t AFTER INSERT ON documents BEGIN DELETE FROM chunks WHERE number < 9; END")
    with pytest.raises(UserError, match="the trigger 't' is not ours"):
        Index.open(folder, Words())


def test_rows_keep_their_checksums_through_changes(folder: Path) -> None:
    index = Index.open(folder, Words())
    index.add([{"id": "d3", "text": "Another text."}, {"id": "new", "text": "A new one.", "n": [1, 2]}])
    index.remove(where={"n": 4})
    index.verify()
    assert index.state.rows.documents == 241
    index.remove([f"d{n}" for n in range(300)])
    index.verify()
    assert len(index) == 1


def test_an_index_of_an_earlier_version_gets_checksums_with_its_next_change(folder: Path) -> None:
    state(folder, '"format": 3', '"format": 2')
    with sqlite3.connect(folder / DATABASE) as base:
        base.executescript("ALTER TABLE chunks DROP COLUMN checksum; ALTER TABLE documents DROP COLUMN checksum")
    index = Index.open(folder, Words())
    assert len(index.search("Word3 stands", k=3)) == 3
    assert "made by an earlier version" in bertree.verify(folder).unchecked[0]
    index.remove("d1")
    with sqlite3.connect(folder / DATABASE) as base:
        assert base.execute("SELECT count(checksum) FROM chunks").fetchone() == (299,)
        base.execute("UPDATE chunks SET text = 'x' WHERE number = 3")
    with pytest.raises(UserError, match="the checksum of a row differs"):
        Index.open(folder).verify()


@pytest.mark.parametrize("file", ["vectors-*.bin", "words-*.bin"])
def test_a_search_notices_a_flipped_bit_in_what_it_reads(file: str, folder: Path) -> None:
    Index.open(folder).settle("flat")
    (path,) = folder.glob(file)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"{path}: is damaged"), Index.open(folder, Words()) as index:
        index.search("Word3 stands here", k=3)


def test_a_graph_that_is_replaced_meanwhile_is_read_in_its_newer_state(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check of the file and FAISS a writer may put another in its place: the newer state is read."""
    (path,) = folder.glob("graph-*")
    hashed = sha256_of

    def replaced(file: Path) -> str:
        output = hashed(file)
        if path.exists():
            path.rename(folder / "graph-00000099.faiss")
            state(folder, path.name, "graph-00000099.faiss")
        return output

    monkeypatch.setattr(faiss_index, "sha256_of", replaced)
    assert len(Index.open(folder).nearest(np.ones((1, 128), np.float32), 3)[0]) == 3
    assert not path.exists()


def test_another_model_is_refused(good: Path) -> None:
    with pytest.raises(UserError, match=r"was made with another model .weights standin, 128 numbers.*use that"):
        Index.open(good, Words(digest="other"))
    with pytest.raises(UserError, match="128 numbers"):
        Index.open(good, Words(dimension=64))


def test_without_a_model_the_message_shows_how_to_load_it(tmp_path: Path) -> None:
    Index.build(Words(), [{"id": "a", "text": "A brig."}], tmp_path / "named", name="my model's").close()
    with pytest.raises(UserError) as error:
        Index.open(tmp_path / "named").search("x")
    load = "open it with `model=bertree.load(\"my model's\")`; a search with `mode='words'` needs none"
    assert str(error.value) == f"{tmp_path / 'named'}: was opened without its model; {load}"
    Index.build(Words(), [{"id": "a", "text": "A brig."}], tmp_path / "wordless", words=False).close()
    with pytest.raises(UserError, match=r"without its model; open it with `model=bertree.load\(PATH\)`$"):
        Index.open(tmp_path / "wordless").add([{"text": "A brig."}])


class Bad(Words):
    """Breaks at a word."""

    def embed(self, texts: Any) -> Any:
        vectors = super().embed(texts)
        for row, text in enumerate(texts):
            if "poison" in text:
                vectors[row, 3] = np.nan
        return vectors[:, :100] if any("narrow" in text for text in texts) else vectors


def test_vectors_that_are_not_finite_or_of_another_width_are_refused(folder: Path) -> None:
    index = Index.open(folder, Bad())
    with pytest.raises(UserError, match="bad: the model gave a vector with NaN"):
        index.add([{"id": "fine", "text": "Fine."}, {"id": "bad", "text": "With poison in it."}])
    with pytest.raises(UserError, match=r"1 x 100, .*1 x 128"):
        index.add([{"id": "narrow", "text": "A narrow one."}])
    with pytest.raises(UserError, match="NaN"):
        index.search("poison")
    with pytest.raises(UserError, match="2 x 128"):
        index.nearest(np.ones((2, 5), np.float32), 3)
    assert len(index) == 300
    index.verify()
    assert index.add([{"id": "fine", "text": "Fine."}]).new == 1


def test_empty_questions_are_refused(good: Path) -> None:
    index = Index.open(good, Words())
    for question in ("", "  \n"):
        with pytest.raises(UserError, match=r"^question: is empty"):
            index.search(question)
    with pytest.raises(UserError, match=r"^question \d: is empty"):
        index.search(["x", ""])
    with pytest.raises(UserError, match="k: "):
        index.search("x", k=0)
    assert index.search([]) == []


def test_wrong_folders_and_documents_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.doc").write_text("x")
    (tmp_path / "t.jsonl").write_text('{"text": "One."}\n{"text": 5}\n')
    with pytest.raises(UserError, match="no such folder; make one with"):
        Index.open(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is not an index"):
        Index.open(tmp_path)
    for documents, out, options, message in (
        ([], "", {}, "holds other files"),
        ([], "mine.doc", {}, "is a file"),
        ([tmp_path / "mine.doc"], "new", {}, r"unknown kind of file; known: .*\.md"),
        (["This is no path."], "new", {}, r"give ..text.: "),
        ([{"texts": "x"}], "new", {}, r"has no column 'text'.*did you mean 'texts'"),
        ([tmp_path / "t.jsonl"], "other", {}, "line 2: 'text' must be a text"),
        ([tmp_path / "t.jsonl"], "third", {"id": "key"}, "has no column 'key'"),
    ):
        with pytest.raises(UserError, match=message):
            Index.build(Words(), documents, tmp_path / out, **options)
    assert not list(tmp_path.glob("new/vectors*"))


@pytest.mark.parametrize("byte", [0x42, 0xFF])  # a number far too large, and none
def test_scribbled_vectors_are_not_answered_from(byte: int, folder: Path) -> None:
    (path,) = folder.glob("vectors-*")
    data = bytearray(path.read_bytes())
    data[-128 * 4 * 200 :] = bytes([byte]) * (128 * 4 * 200)
    path.write_bytes(bytes(data))
    for where in (None, {"n": 3}):
        with pytest.raises(UserError, match=r"vectors-\S+: is damaged"):
            Index.open(folder, Words()).search("Word250 stands", k=50, where=where)


def test_a_mistake_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    for wrong in ([{"body": "no text"}], [tmp_path / "none.txt"]):
        with pytest.raises(UserError):
            Index.build(Words(), wrong, tmp_path / "index")
        assert not (tmp_path / "index").exists()
    assert len(Index.build(Words(), [{"text": "a text"}], tmp_path / "index")) == 1


def test_nothing_is_added_to_what_is_broken(folder: Path) -> None:
    cut(next(folder.glob("vectors-*")))
    index = Index.open(folder, Words())
    with pytest.raises(UserError, match="damaged or cut off"):
        index.add([{"text": "More."}])
    with pytest.raises(UserError, match="damaged or cut off"):
        index.remove("d1")
