"""What a writer leaves: few files, one entry for each id, and a folder that others can read meanwhile."""

import multiprocessing
import os
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from bertree.errors import UserError
from bertree.search import writer as index_writer
from bertree.search.database import DATABASE
from bertree.search.index import Index
from bertree.search.vector_files import merge_start
from tests.support.processes import PATIENCE
from tests.support.search_samples import SHIPS, ids
from tests.support.standin import Words


@pytest.mark.slow
def test_removed_vectors_leave_the_disk_and_files_stay_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_writer, "MERGE", 4)
    index = Index.build(Words(), SHIPS, tmp_path / "index")
    for n in range(30):
        index.add([{"id": f"n{n}", "text": f"Number {n} of the brig.", "even": n % 2 == 0}])
        vectors = [path for path in (tmp_path / "index").iterdir() if path.name.startswith("vectors-")]
        assert len(vectors) <= 4
    assert len(index) == 34
    assert len(ids(index, k=100)) == 34
    many = [{"id": f"m{n}", "text": f"Number {n} of the sloop."} for n in range(3000)]
    index.add(many)
    size = index.info["bytes"]["vectors"]
    assert index.remove([f"m{n}" for n in range(2000)]) == 2000
    assert index.info["removed"] == 0
    assert index.info["bytes"]["vectors"] < size / 2, "what is removed is gone from the disk too"
    assert len(ids(index, k=5000)) == len(index) == 1034
    assert set(ids(index, k=100, where={"even": True})) == {f"n{n}" for n in range(0, 30, 2)}
    index.verify()


def test_an_interrupted_build_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_writer, "COMMIT_ROWS", 1)
    monkeypatch.setattr(index_writer, "EMBED_BATCH", 1)

    def broken() -> object:
        yield from SHIPS[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Index.build(Words(), broken(), tmp_path / "index")
    assert not Index.open(tmp_path / "index").info["complete"]
    assert set(ids(Index.open(tmp_path / "index", Words()))) == {"a", "b", "c"}
    with pytest.raises(UserError, match="another model"):
        Index.build(Words(digest="other"), SHIPS, tmp_path / "index")
    with pytest.raises(UserError, match="another chunking"):
        Index.build(Words(), SHIPS, tmp_path / "index", chunk=7)
    model = Words()
    index = Index.build(model, SHIPS, tmp_path / "index")
    assert model.seen == 1
    assert index.info["complete"]
    assert set(ids(index)) == {"a", "b", "c", "d"}
    with pytest.raises(UserError, match=r"already an index; .*index add`, or give another folder"):
        Index.build(Words(), SHIPS, tmp_path / "index")


def test_a_second_writer_is_refused(index: Index) -> None:
    with index_writer.open_writer(index.path), pytest.raises(UserError, match="another run is writing here"):
        index.add([{"text": "More."}])
    index.add([{"text": "More."}])


def stranger(path: Path, ends: Connection) -> None:
    """Asks an index in whose folder it may not write, each time it is told to."""
    if os.getuid() == 0:  # the permissions do not bind root
        os.setuid(65534)
    index = Index.open(path, Words())
    while ends.recv():
        ends.send((ids(index), index._store._seen is not None))


def test_a_folder_that_only_others_may_write_to_is_read() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as root:  # pytest's own folders are closed to others
        os.chmod(root, 0o755)
        path = Path(root) / "index"
        with Index.build(Words(), SHIPS[:1], path):
            pass
        for file in path.glob(f"{DATABASE}-*"):
            file.unlink()
        before = {file.name for file in path.iterdir()}
        os.chmod(path, 0o555)
        ends, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=stranger, args=(path, theirs))
        process.start()
        theirs.close()
        try:
            for number in (1, 2, 3):
                ends.send(True)
                answer, frozen = ends.recv()
                assert len(answer) == number, "what was added meanwhile is seen"
                assert frozen or number > 1
                assert number > 1 or {file.name for file in path.iterdir()} == before, "nothing was written"
                os.chmod(path, 0o755)
                with Index.open(path, Words()) as index:
                    index.add([SHIPS[number]])
                os.chmod(path, 0o555)
            ends.send(False)
            process.join(PATIENCE)
            assert process.exitcode == 0
        finally:
            process.kill()
            os.chmod(path, 0o755)


def test_many_commits_leave_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_writer, "COMMIT_ROWS", 1)
    most = 0
    names = index_writer.IndexWriter._name

    def counted(writer: index_writer.IndexWriter, what: str, suffix: str) -> str:
        nonlocal most
        most = max(most, len(writer.state.parts))
        if what == "vectors":
            files = {path.name for path in writer.folder.glob("*.bin")}
            assert files == writer.state.files, "no file is left behind"
        return names(writer, what, suffix)

    monkeypatch.setattr(index_writer.IndexWriter, "_name", counted)
    index = Index.build(Words(), ({"id": f"d{n}", "text": f"Word{n} stands."} for n in range(100)), tmp_path / "index")
    assert 3 < most < index_writer.MERGE
    assert [index.search(f"Word{n} stands", k=1)[0].document for n in (0, 50, 99)] == ["d0", "d50", "d99"]
    index.verify()


def test_no_vector_is_written_often() -> None:
    sizes: list[int] = []
    written = most = 0
    for _ in range(5000):
        first = merge_start(sizes, 10 << 20, index_writer.MERGE)
        sizes = [*sizes[:first], sum(sizes[first:], 10 << 20)]
        written, most = written + sizes[-1], max(most, len(sizes))
    assert sum(sizes) == 5000 * (10 << 20)
    assert most < 40
    assert written < 6 * sum(sizes), "no vector is written again more than a few times"
    assert merge_start([1 << 40, 1], 100, 8) == 2, "a large file is left alone"


def test_the_last_document_of_an_id_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = [{"id": f"d{n // 2}", "text": f"Word{n} stands."} for n in range(60)]
    index = Index.build(Words(), twice, tmp_path / "index")
    assert index.info["generation"] <= 3
    assert (len(index), index.read.repeated, index.added.new, index.added.passages) == (30, 30, 30, 30)
    assert {hit.text for hit in index.search("stands", k=99)} == {f"Word{n} stands." for n in range(1, 60, 2)}
    monkeypatch.setattr(index_writer, "COMMIT_ROWS", 8)  # the second of an id comes after a commit
    monkeypatch.setattr(index_writer, "EMBED_BATCH", 3)
    model = Words()
    other = Index.build(model, [*twice, *twice[1::2]], tmp_path / "other")
    assert other.read.repeated == 60
    assert (len(other), other.added.unchanged) == (30, 0)
    assert {hit.text for hit in other.search("stands", k=99)} == {f"Word{n} stands." for n in range(1, 60, 2)}
    other.verify()


def test_errors_of_the_documents_are_not_changed(index: Index) -> None:
    def documents() -> object:
        raise PermissionError(13, "Permission denied", "mine.txt")
        yield

    with pytest.raises(PermissionError, match=r"mine\.txt"):
        index.add(documents())


def test_too_many_open_files_are_one_line(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*arguments: object) -> object:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(UserError, match=r"vectors-0+2.bin: cannot be read .Too many open files"):
        index.search("brig")
    with pytest.raises(UserError, match=r"cannot be (read|written) .Too many open files"):
        index.add([{"text": "More."}])
