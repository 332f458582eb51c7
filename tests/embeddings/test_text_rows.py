"""Row n of a file is text n, whatever the file is."""

import gzip
import io
import json
import lzma
import sys
from pathlib import Path

import pytest

from bertree.errors import UserError
from bertree.inference import text_rows as module
from bertree.inference.text_rows import LONGEST, TextRows

TEXTS = ["one", "", "two, three", 'say "so"', "  four ", "fünf"]


def written(path: Path, texts: list[str] = TEXTS) -> Path:
    kind = path.suffixes[0]
    if kind == ".txt":
        data = "".join(text + "\n" for text in texts)
    elif kind == ".jsonl":
        data = "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(texts))
    elif kind == ".csv":
        data = "id,text\n" + "".join(f'{n},"{text.replace(chr(34), chr(34) * 2)}"\n' for n, text in enumerate(texts))
    else:
        data = "id\ttext\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(texts))
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(data.encode()))
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.tsv", "a.txt.gz", "a.csv.xz", "a.jsonl.gz"])
def test_rows_of_every_kind(tmp_path: Path, name: str) -> None:
    rows = TextRows(str(written(tmp_path / name)))
    assert list(rows) == TEXTS
    assert (rows.counts.rows, rows.counts.empty, rows.counts.cut) == (6, 1, 0)
    assert rows.counts.notes("x") == ["x: 1 of 6 rows are empty and have the vector of the empty text"]


def test_rows_of_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(arrow.table({"id": range(3), "body": ["a", None, "c"]}), path)
    rows = TextRows(str(path))
    assert list(rows) == ["a", "", "c"]
    assert (rows.total, rows.done) == (3, 3)


def test_ends_of_lines_and_marks_at_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\x85still two\nthree")
    assert list(TextRows(str(path))) == ["one", "two\ufffdstill two", "three"]
    path.write_bytes(b"one\n\n")
    assert list(TextRows(str(path))) == ["one", ""]


@pytest.mark.parametrize("letter", ["x", "ü", "\U0001f600"])
def test_a_line_too_long_is_cut_and_counted(tmp_path: Path, letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 64)
    path = tmp_path / "a.txt"
    for more in (0, 1, 500, 100_000):
        path.write_text(f"before\n{letter * (64 + more)}\nafter\n", encoding="utf-8")
        rows = TextRows(str(path))
        assert list(rows) == ["before", letter * 64, "after"]
        assert (rows.counts.cut, rows.counts.invalid) == (int(more > 0), 0)


def test_a_line_too_long_of_bytes_that_are_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 4)
    (tmp_path / "a.txt").write_bytes(b"ab\xff\xfe" * 50 + b"\n" + b"\x80" * 300)
    rows = TextRows(str(tmp_path / "a.txt"))
    assert list(rows) == ["ab\ufffd\ufffd", "\ufffd" * 4]
    assert (rows.counts.cut, rows.counts.invalid, rows.counts.empty) == (2, 2, 0)


def test_ten_megabytes_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"word " * 2_000_000 + b"\nafter\n")
    rows = TextRows(str(path))
    read = list(rows)
    assert (len(read[0]), read[1], rows.counts.cut) == (LONGEST, "after", 1)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert list(TextRows("-")) == ["one", "two"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "one"}\n"two"\n')))
    assert list(TextRows("-", format="jsonl")) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "text", "column", "says"),
    [
        ("a.txt", "", None, "is empty"),
        ("a.csv", "a,b\n1,2\n", None, "which column is the text. Give `text=NAME`; there are: a, b"),
        ("a.csv", "a,b\n1,2\n", "c", "has no column 'c'; there are: a, b"),
        ("a.csv", "a,b\n1\n", "a", "line 2: has 1 columns, the header 2"),
        ("a.jsonl", '{"text": "a"}\nbroken\n', None, "line 2: is not valid JSON"),
        ("a.jsonl", '{"text": "a"}\n{"txt": "a"}\n', None, "line 2: has no field 'text'; did you mean 'txt'"),
        ("a.jsonl", '{"text": 3}\n', None, "line 1: holds int 3, not text"),
        ("a.jsonl", "[1]\n", None, "must hold a JSON object or a text"),
        ("a.xyz", "a\n", None, "unknown kind of file"),
        ("a.txt", "a\n", "body", "no column 'body'"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, name: str, text: str, column: str | None, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=says) as caught:
        list(TextRows(str(tmp_path / name), column))
    assert "\n" not in str(caught.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        TextRows(str(tmp_path / "nothing.txt"))
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(UserError, match="is not one file"):
        TextRows(str(tmp_path))
