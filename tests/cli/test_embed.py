"""`bertree embed`: a valid .npy, row for row, and the same bytes however often it was killed."""

import json
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertree
from bertree.embeddings import embed, npy_file
from bertree.embeddings.npy_file import VectorFile
from bertree.errors import UserError
from bertree.inference.embedding import BLOCK, FIRST_BLOCK, block_end
from tests.support import runs
from tests.support.command import Command

WORDS = (
    "the ship left harbour at dawn and nobody on the quay had seen her captain since the storm",
    "of the night before",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    """An untrained encoder that is fast enough to be killed often."""
    from bertree.text.tokenizer import Tokenizer

    model = bertree.load("bert-tiny", seed=1)
    model.tokenizer = Tokenizer.load(minilm)
    folder = tmp_path_factory.mktemp("tiny") / "model"
    model.save(folder)
    return folder


def lines(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(" ".join(WORDS).split(), k=draw.randint(1, 12))) for _ in range(count)]


def test_rows_match_lines(command: Command, tiny: Path, tmp_path: Path) -> None:
    texts = [*lines(5), "", "last " + "word " * 3000]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n")
    out = tmp_path / "new" / "v.npy"
    result = command.well("embed", tiny, tmp_path / "a.txt", "--out", out)
    vectors = np.load(out)
    assert (vectors.shape, vectors.dtype) == ((7, 128), np.float32)
    model = bertree.load(tiny)
    with pytest.warns(bertree.errors.BertreeWarning):
        assert np.allclose(vectors, model.embed(texts), atol=1e-5)
    assert "7 vectors x 128, float32" in result.out
    assert "1 of 7 rows are empty" in result.err
    assert "1 texts cut to 512 tokens" in result.err
    assert [path.name for path in out.parent.iterdir()] == ["v.npy"]


def test_half_precision_normalised_and_a_column(command: Command, tiny: Path, tmp_path: Path) -> None:
    texts = lines(20)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text, "n": 1}) + "\n" for text in texts))
    out = tmp_path / "v.npy"
    command.well("embed", tiny, tmp_path / "a.jsonl", "--out", out, "--dtype", "float16", "--normalize")
    vectors = np.load(out)
    assert vectors.dtype == np.float16
    assert np.allclose(np.linalg.norm(vectors.astype(np.float32), axis=1), 1, atol=2e-3)


def test_a_prompt_stands_before_every_text(command: Command, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("dawn\n")
    command.well("embed", tiny, tmp_path / "a.txt", "--out", tmp_path / "v.npy", "--prompt", "query: ")
    expected = bertree.load(tiny).embed(["query: dawn"])
    assert np.allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)
    result = command("embed", tiny, tmp_path / "a.txt", "--out", tmp_path / "w.npy", "--prompt", "query")
    assert (result.code, "it has no prompts" in result.err) == (2, True)


def test_killed_at_random_moments(tiny: Path, tmp_path: Path) -> None:
    texts = tmp_path / "a.txt"
    texts.write_text("\n".join(lines(16 * 64 + 100)) + "\n")
    arguments = ("embed", str(tiny), str(texts), "--out")
    whole, out, log = tmp_path / "whole.npy", tmp_path / "v.npy", tmp_path / "log"
    assert runs.finish(*arguments, str(whole), log=log, fault="window:64") == 0, log.read_text()
    runs.kill(*arguments, str(out), log=log, after=(1, 3), moments=random.Random(3), fault="window:64")
    assert not out.exists()
    assert 4 * 64 <= _rows(out) < 16 * 64
    assert runs.finish(*arguments, str(out), log=log, fault="window:64") == 0, log.read_text()
    assert "going on after" in log.read_text()
    assert out.read_bytes() == whole.read_bytes()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(("v.npy.", ".v.npy"))]


def _rows(out: Path) -> int:
    journal = out.with_name(out.name + ".journal")
    return int(json.loads(journal.read_text())["rows"]) if journal.exists() else 0


def begun(out: Path, **job: object) -> VectorFile:
    """A file whose run ended after two rows."""
    target = VectorFile(out, {"model": "m", **job}, 3, "float32")
    with target.writing():
        target.add(np.ones((2, 3), np.float32), "hash")
    return target


def test_what_was_written_after_the_last_entry_is_dropped(tmp_path: Path) -> None:
    target = begun(tmp_path / "v.npy")
    with target.part.open("ab") as file:
        file.write(b"half a row")
    again = VectorFile(tmp_path / "v.npy", {"model": "m"}, 3, "float32")
    with again.writing():
        assert (again.rows, again.texts) == (2, "hash")
        again.add(np.zeros((1, 3), np.float32), "more")
        again.finish()
    assert np.load(tmp_path / "v.npy").tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]
    assert [path.name for path in tmp_path.iterdir()] == ["v.npy"]


def test_killed_between_the_last_two_steps(tmp_path: Path) -> None:
    target = begun(tmp_path / "v.npy")
    journal = target.journal.read_bytes()
    again = VectorFile(tmp_path / "v.npy", {"model": "m"}, 3, "float32")
    with again.writing():
        again.finish()
    target.journal.write_bytes(journal)
    assert VectorFile(tmp_path / "v.npy", {"model": "m"}, 3, "float32").finished()
    assert not target.journal.exists()


def test_another_job_is_refused(tmp_path: Path) -> None:
    begun(tmp_path / "v.npy")
    with pytest.raises(UserError, match="was begun with another model"), _opened(tmp_path, {"model": "other"}):
        pass
    (tmp_path / "v.npy.journal").write_text("{}")
    with pytest.raises(UserError, match="not one of this version"), _opened(tmp_path, {"model": "m"}):
        pass


def _opened(folder: Path, job: dict[str, object]) -> AbstractContextManager[None]:
    return VectorFile(folder / "v.npy", job, 3, "float32").writing()


def test_a_part_that_lost_rows_is_refused(tmp_path: Path) -> None:
    target = begun(tmp_path / "v.npy")
    target.part.write_bytes(target.part.read_bytes()[:-5])
    with pytest.raises(UserError, match="is cut off"), _opened(tmp_path, {"model": "m"}):
        pass


def test_only_one_run_writes(tmp_path: Path) -> None:
    target = VectorFile(tmp_path / "v.npy", {"model": "m"}, 3, "float32")
    with (
        target.writing(),
        pytest.raises(UserError, match="another run is writing here"),
        _opened(tmp_path, {"model": "m"}),
    ):
        pass


def test_other_texts_under_the_same_name(command: Command, tiny: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "a.txt", tmp_path / "v.npy"
    whole = block_end(FIRST_BLOCK)
    good = lines(whole)
    # The last block holds a broken record: those before it are kept, and the run ends with one line.
    rows = [json.dumps({"text": text}) for text in good]
    (tmp_path / "a.jsonl").write_text("\n".join([*rows, "broken"]))
    result = command("embed", tiny, tmp_path / "a.jsonl", "--out", out)
    assert (result.code, f"line {whole + 1}: is not valid JSON" in result.err) == (2, True)
    assert _rows(out) == whole
    file.write_text("\n".join(["other", *good[1:], "more"]))
    result = command("embed", tiny, file, "--out", out)
    assert (result.code, f"first {whole} rows are not those" in result.err) == (2, True)
    file.write_text("\n".join(good[:10]))
    result = command("embed", tiny, file, "--out", out)
    assert (result.code, "has 10 rows, fewer than" in result.err) == (2, True)
    file.write_text("\n".join([*good, "more"]))
    command.well("embed", tiny, file, "--out", out)
    assert len(np.load(out)) == whole + 1


def test_rows_are_saved_from_the_beginning_on(command: Command, tiny: Path, tmp_path: Path) -> None:
    rows = [json.dumps({"text": text}) for text in lines(2 * FIRST_BLOCK)]
    (tmp_path / "a.jsonl").write_text("\n".join([*rows, "broken"]))
    assert command("embed", tiny, tmp_path / "a.jsonl", "--out", tmp_path / "v.npy").code == 2
    assert _rows(tmp_path / "v.npy") == FIRST_BLOCK


def test_blocks_grow_and_depend_on_the_row_alone() -> None:
    ends, row = [], 0
    while row < 6 * BLOCK:
        row = block_end(row)
        ends.append(row)
    sizes = np.diff([0, *ends]).tolist()
    assert sizes[:2] == [FIRST_BLOCK, 2 * FIRST_BLOCK]
    assert sizes[4:] == [BLOCK] * len(sizes[4:]) != []
    for begin, end in zip([0, *ends], ends, strict=False):
        assert {block_end(row) for row in (begin, (begin + end) // 2, end - 1)} == {end}


def test_mistakes_are_one_line(command: Command, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "v.npy").write_text("")
    for arguments, says in (
        (("a.txt", "--out", "v.npy"), "v.npy: exists already"),
        (("a.txt", "--out", "."), "is a folder"),
        (("none.txt", "--out", "w.npy"), "no such file"),
        (("empty.txt", "--out", "w.npy"), "is empty"),
        (("a.txt", "--out", "w.npy", "--dtype", "int8"), "known: float32, float16"),
        (("a.txt", "--out", "w.npy", "--max-length", "9999"), "must lie between 1 and 512"),
        (("a.txt", "--out", "w.npy", "--device", "abacus"), "device 'abacus'"),
    ):
        values = [str(tmp_path / part) if "." in part else part for part in arguments]
        result = command("embed", tiny, *values)
        assert (result.code, says in result.err) == (2, True), result.err
        assert result.err.count("\n") == 1


def test_nan_is_refused(command: Command, tiny: Path, tmp_path: Path) -> None:
    model = bertree.load(tiny)
    next(model.network.parameters()).data.fill_(float("nan"))
    model.save(tmp_path / "broken")
    (tmp_path / "a.txt").write_text("a\n")
    result = command("embed", tmp_path / "broken", tmp_path / "a.txt", "--out", tmp_path / "v.npy")
    assert result.code == 2
    assert "NaN" in result.err
    assert not (tmp_path / "v.npy").exists()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: np.save(path, np.full((2, 3), np.nan, np.float32)), "row 1: holds NaN"),
        (lambda path: np.save(path, np.ones((3, 3), np.float32)), "has 3 vectors for 2 texts"),
        (lambda path: np.save(path, np.ones(3, np.float32)), "rows x numbers"),
        (lambda path: np.save(path, np.ones((2, 3), np.int64)), "floating point"),
        (lambda path: path.write_bytes(b"nothing of the kind"), "is not a .npy file"),
        (lambda path: path.write_bytes(b""), "is not a .npy file"),
        (lambda path: path.write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + b"(" * 117 + b"\n"), "is not a .npy file"),
        (lambda path: path.write_bytes(b"PK\x03\x04 an archive, perhaps"), "is not a .npy file"),
        (lambda path: None, "cannot be read"),
    ],
)
def test_vectors_from_elsewhere_are_checked(tmp_path: Path, make: object, says: str) -> None:
    assert callable(make)
    make(tmp_path / "v.npy")
    with pytest.raises(UserError, match=says):
        npy_file.load(tmp_path / "v.npy", 2)


def test_a_run_that_begins_as_another_ends_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, vectors = {"model": "m"}, np.ones((3, 4), np.float32)
    first, second = (VectorFile(tmp_path / "v.npy", job, 4, "float32") for _ in range(2))
    locked = VectorFile._lock

    def late(self: VectorFile, file: Any) -> None:
        with first.writing():  # it opens the same file, and ends before the second has its lock
            first.add(vectors, "texts")
            first.finish()
        locked(self, file)

    with monkeypatch.context() as patch:
        patch.setattr(second, "_lock", lambda file: late(second, file))
        with pytest.raises(UserError, match="another run has just ended"), second.writing():
            pass
    assert np.array_equal(np.load(tmp_path / "v.npy"), vectors)


def test_nothing_is_left_of_a_run_that_made_nothing(command: Command, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    result = command("embed", tiny, tmp_path / "a.txt", "--out", tmp_path / "v.npy")
    assert (result.code, "is empty" in result.err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_the_bar_moves_within_a_block(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("\n".join(lines(BLOCK + 100)) + "\n")
    moves: list[tuple[int, int]] = []

    class Bar:
        def move_to(self, completed: int, items: int) -> None:
            moves.append((completed, items))

    @contextmanager
    def bar(what: str, total: int, **options: object) -> Iterator[Bar]:
        yield Bar()

    monkeypatch.setattr(embed, "bar", bar)
    embed.embed_file(tiny, tmp_path / "a.txt", tmp_path / "v.npy")
    assert moves == sorted(moves)
    assert moves[0] == (0, 0)
    assert moves[-1] == ((tmp_path / "a.txt").stat().st_size, BLOCK + 100)
    assert len([count for _, count in moves if 0 < count < BLOCK]) > 3


def test_temporary_files_of_a_killed_run_are_removed(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one text\n")
    (tmp_path / ".v.npy.journal.k1ll3d00").write_text("{")
    embed.embed_file(tiny, tmp_path / "a.txt", tmp_path / "v.npy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "v.npy"]
