"""Tables of every kind, with what real ones have in them: quotes, marks, ends of lines, holes, no header."""

import gzip
import json
import lzma
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from bertree.errors import UserError
from bertree.tasks.files import find_splits
from bertree.text.corpus import Corpus
from bertree.text.tables import Table, read_table

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}
TEXTS = ["plain", 'she said "no"', "Grüße, 東京"]


def table(path: Path, text: str | bytes, **options: Any) -> Table:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_table(path, **options)


def rows(columns: Table) -> list[tuple[Any, ...]]:
    count = len(columns.names) or 3
    return list(zip(*(columns.values(number) for number in range(count)), strict=True))


def refused(path: Path, text: str | bytes, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        table(path, text, **options).column(["text"])
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("kind", [".csv", ".tsv", ".txt", ".jsonl", ".parquet"])
def test_every_kind_gives_the_same_columns(tmp_path: Path, kind: str, packed: str) -> None:
    if kind == ".parquet":
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.table({"label": [0, 1, 2], "text": TEXTS}), sink)
        data = sink.getvalue().to_pybytes()
    elif kind == ".jsonl":
        data = "".join(json.dumps({"label": n, "text": t}) + "\n" for n, t in enumerate(TEXTS)).encode()
    elif kind == ".csv":
        data = 'label,text\n0,plain\n1,"she said ""no"""\n2,"Grüße, 東京"\n'.encode()
    else:
        data = "".join(f"{a}\t{b}\n" for a, b in [("label", "text"), *enumerate(TEXTS)]).encode()
    columns = table(tmp_path / f"a{kind}{packed}", PACK[packed](data))
    assert columns.names == ("label", "text")
    assert columns.values(columns.column(["text"])) == TEXTS
    assert [int(value) for value in columns.values(columns.column(["label"]))] == [0, 1, 2]
    assert list(columns.lines) == ([1, 2, 3] if kind in (".jsonl", ".parquet") else [2, 3, 4])


def test_a_quote_is_a_character_or_not(tmp_path: Path) -> None:
    raw = 'text\tlabel\n"open and\t1\nsaid "so"\t0\n"whole ""cell"""\t1\n'
    path = tmp_path / "a.tsv"
    plain = [('"open and', "1"), ('said "so"', "0"), ('"whole ""cell"""', "1")]
    assert rows(table(path, raw, quoting="none")) == plain
    assert rows(table(path, raw, quoting="auto")) == plain
    assert rows(table(path, raw, quoting="cell")) == [*plain[:2], ('whole "cell"', "1")]
    assert "line 2: is not valid CSV" in refused(path, raw, quoting="standard")
    quoted = 'text\tlabel\n"two\nlines\tand a ""tab"""\t1\nplain\t0\n'
    columns = table(path, quoted, quoting="auto")
    assert rows(columns) == [('two\nlines\tand a "tab"', "1"), ("plain", "0")]
    assert list(columns.lines) == [2, 4]
    assert rows(table(path, 'text\tlabel\n"\t1\n""\t0\n"""\t1\n', quoting="cell")) == [
        ('"', "1"),
        ("", "0"),
        ('"""', "1"),
    ]


def test_marks_line_ends_and_blank_lines(tmp_path: Path) -> None:
    raw = "\ufefftext\tlabel\r\nkept \x85 \u2028 here \t1\r\n\r\nlast\t0".encode()
    columns = table(tmp_path / "a.tsv", raw, quoting="none")
    assert rows(columns) == [("kept \x85 \u2028 here ", "1"), ("last", "0")]
    assert list(columns.lines) == [2, 4]
    assert rows(table(tmp_path / "a.csv", b"\xef\xbb\xbftext,label\r\nx,1\r\n\r\n")) == [("x", "1")]
    assert rows(table(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"text": "x"}\r\n\n{"label": 1}\n')) == [
        ("x", None),
        (None, 1),
    ]


def test_semicolons_separate_columns_where_the_header_has_no_comma(tmp_path: Path) -> None:
    columns = table(tmp_path / "a.csv", 'text;label\n"one; two, three";1\n')
    assert rows(columns) == [("one; two, three", "1")]
    assert list(Corpus([str(tmp_path / "a.csv")]).documents()) == ["one; two, three"]


def test_tabs_in_a_file_named_csv(tmp_path: Path) -> None:
    columns = table(tmp_path / "a.csv", 'a, "b"\t1\t2\nc\t3\t4\n', header=["text"], headless=[(3, 3)], quoting="none")
    assert rows(columns) == [('a, "b"', "1", "2"), ("c", "3", "4")]


def test_without_header_or_with(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    options = {"header": ["text"], "headless": [(4, 4), (2, 3)], "quoting": "none"}
    columns = table(path, "a\tb\nc\td\te\n", **options)
    assert (columns.names, columns.headless, list(columns.lines)) == ((), 1, [1, 2])
    assert columns.values(0) == ["a", "c"]
    columns = table(path, "Text\tb\nc\td\n", **options)
    assert (columns.names, columns.headless) == (("Text", "b"), None)
    assert columns.column(["text"]) == 0
    assert refused(path, "a\tb\nc\n", **options) == "line 2: has 1 fields where 2 to 3 are expected"
    assert "has no column 'text'; there are: a, b, c, d, e" in refused(path, "a\tb\tc\td\te\n", **options)


def test_broken_rows_are_refused_or_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    raw = "text\tlabel\tmore\nx\t1\ny\t0\t\nz\t1\t2\t3\n"
    assert refused(path, raw, quoting="none") == "line 2: has 2 fields where 3 are expected"
    columns = table(path, raw, quoting="none", skip=True)
    assert (rows(columns), columns.skipped) == ([("y", "0", "")], 2)
    columns = table(path, raw.replace("\t3\n", "\n"), quoting="none", optional=["more"])
    assert columns.values(1) == ["1", "0", "1"]
    assert "has no complete row" in refused(path, "text\tlabel\nx\n", skip=True)


def test_only_wanted_columns_are_kept(tmp_path: Path) -> None:
    """Nineteen of twenty columns that nobody asks for must not stay in memory."""
    path = tmp_path / "a.tsv"
    header = "\t".join([*(f"parse{n}" for n in range(19)), "Text"])
    line = "\t".join(["(NP x)" * 20] * 19)
    raw = header + "\n" + "".join(f"{line}{n}\tword {n}\n" for n in range(500))
    tracemalloc.start()
    try:
        columns = table(path, raw, quoting="none", wanted=["text"])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert columns.values(columns.column(["text"])) == [f"word {n}" for n in range(500)]
    assert len(columns.names) == 20
    assert kept < len(raw) / 8
    assert columns.column(["parse3"]) == 3  # still known by name


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.tsv", b"", "is empty"),
        ("a.tsv.xz", lzma.compress(b" \n"), "is empty"),
        ("a.csv", b"text,label\n", "has a header but no rows"),
        ("a.tsv", b"texts\tlabel\nx\t1\n", "has no column 'text'; there are: texts, label; did you mean 'texts'?"),
        ("a.tsv", b"text\nx\nbad \xff\n", "line 3: is not UTF-8 text; convert the file"),
        ("a.csv", b'text,label\n"open,1\n', "line 2: is not valid CSV (unexpected end of data)"),
        ("a.jsonl", b'{"text": "x"}\n[1]\n', "line 2: must hold a JSON object"),
        ("a.jsonl", b'{"text": "x"}\n{"text"\n', "line 2: is not valid JSON"),
        ("a.jsonl", b'{"body": "x"}\n', "has no column 'text'; there are: body"),
        ("a.parquet", b"PAR1 no", "is not a readable parquet file"),
        ("a.tsv.xz", b"no xz", "is damaged or cut off"),
        ("a.tsv.gz", gzip.compress(b"text\nx\n" * 9, mtime=0)[:-5], "is damaged or cut off"),
        ("a.xml", b"<a/>", "unknown kind of file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    assert refused(tmp_path / name, data).startswith(message)


def test_a_parquet_file_without_rows_or_with_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), path)
    assert refused(path, path.read_bytes()) == "has no rows"
    broken = pyarrow.array([b"bad \xff"], pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": broken}), path)
    assert "is not a readable parquet file" in refused(path, path.read_bytes())


def test_paths_that_are_not_files(tmp_path: Path) -> None:
    (tmp_path / "b.tsv").mkdir()
    for name, message in (("a.tsv", "no such file"), ("b.tsv", "is a folder")):
        with pytest.raises(UserError, match=message):
            read_table(tmp_path / name)


def names(folder: Path, *files: str, **options: Any) -> dict[str, list[str]]:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file).write_text("x")
    return {split: [p.name for p in paths] for split, paths in find_splits(folder, **options).items()}


def test_splits_by_their_names(tmp_path: Path) -> None:
    many = (
        "train_10k.tsv",
        "validation_10k.tsv",
        "test.half.tsv.xz",
        "README.txt",
        "training.tsv",
        ".test.tsv",
        "dev.md",
    )
    assert names(tmp_path / "a", *many) == {
        "train": ["train_10k.tsv"],
        "dev": ["validation_10k.tsv"],
        "test": ["test.half.tsv.xz"],
    }
    exact = ("train.tsv", "train_10k.tsv", "train.half.tsv.xz", "Dev.tokenised.txt", "TEST.jsonl.gz")
    assert names(tmp_path / "b", *exact) == {
        "train": ["train.tsv"],
        "dev": ["Dev.tokenised.txt"],
        "test": ["TEST.jsonl.gz"],
    }
    assert names(tmp_path / "c", "valid.txt", "dev_matched_small.txt") == {"dev": ["valid.txt"]}
    halves = ("dev_matched.tsv", "dev_mismatched.tsv", "test_matched.tsv", "test_mismatched.tsv", "dev_matched_5.tsv")
    assert names(tmp_path / "d", "train.tsv", *halves) == {
        "train": ["train.tsv"],
        "dev": ["dev_matched.tsv"],
        "dev-mismatched": ["dev_mismatched.tsv"],
        "test": ["test_matched.tsv"],
        "test-mismatched": ["test_mismatched.tsv"],
    }
    shards = ("train-00000-of-00002.parquet", "train-00001-of-00002.parquet")
    assert names(tmp_path / "e", *shards) == {"train": list(shards)}
    released = ("x_1.0_train.jsonl", "x_1.0_train.txt", "x_1.0_dev.txt")
    assert names(tmp_path / "f", *released, prefixes=["x_1.0_"]) == {
        "train": ["x_1.0_train.jsonl"],
        "dev": ["x_1.0_dev.txt"],
    }


def test_a_sub_folder_named_like_the_task(tmp_path: Path) -> None:
    names(tmp_path / "SST-2", "train.tsv")
    names(tmp_path, "dev.tsv")
    assert find_splits(tmp_path, ["sst2"]) == {"train": (tmp_path / "SST-2" / "train.tsv",)}
    assert find_splits(tmp_path, ["cola"]) == {"dev": (tmp_path / "dev.tsv",)}
    (tmp_path / "sst2").mkdir()
    with pytest.raises(UserError, match=r"holds SST-2 and sst2; give one of them"):
        find_splits(tmp_path, ["sst2"])


def test_splits_that_are_not_clear(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"several files could be train: train_1.tsv, train_2.tsv; give the file"):
        names(tmp_path / "a", "train_1.tsv", "train_2.tsv")
    with pytest.raises(UserError, match=r"several files could be dev: dev.jsonl, dev.tsv"):
        names(tmp_path / "b", "dev.tsv", "dev.jsonl")
    with pytest.raises(UserError, match=r"several files could be train"):
        names(tmp_path / "c", "train-00000-of-00003.parquet", "train-00002-of-00003.parquet")
    with pytest.raises(UserError, match=r"begins with train, dev, .*; there is: contest.tsv, notes.txt"):
        names(tmp_path / "d", "contest.tsv", "notes.txt")
    with pytest.raises(UserError, match=r"there is: nothing"):
        names(tmp_path / "e")
    for path, message in ((tmp_path / "none", "no such folder"), (tmp_path / "d" / "notes.txt", "is a file")):
        with pytest.raises(UserError, match=message):
            find_splits(path)


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_any_damage_is_one_line_or_harmless(tmp_path: Path, kind: str, packed: str) -> None:
    texts = [f'text {n}, with "quotes"' for n in range(30)]
    if kind == ".parquet":
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), sink)
        data = sink.getvalue().to_pybytes()
    else:
        lines = [json.dumps({"text": t}) for t in texts] if kind == ".jsonl" else ["text", *map(json.dumps, texts)]
        data = "\n".join(lines).replace('\\"', '\\"' if kind == ".jsonl" else '""').encode()
    whole, source, path = PACK[packed](data), random.Random(0), tmp_path / f"a{kind}{packed}"
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(source.randrange(1, 6)):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        if source.random() < 0.5:
            del damaged[source.randrange(len(damaged)) :]
        path.write_bytes(damaged)
        message = f"{path}: "
        try:
            columns = read_table(path)
            assert len(columns.values(columns.column(["text"]))) == len(columns.lines)
        except UserError as error:
            message = str(error)
        assert message.startswith(f"{path}: ")
        assert "\n" not in message
