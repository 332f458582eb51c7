"""Files -> documents: every kind of file, every kind of bad input, in memory that stays flat."""

import builtins
import io
import json
import os
import sys
import tracemalloc
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertree.errors import UserError
from bertree.text import cleaning, readers, sources
from bertree.text.corpus import Corpus, CorpusOptions, Position, describe_counts
from bertree.text.records import read_lines
from tests.support.corpus_files import DOCUMENTS, write_corpus

# Any code point, surrogates too, and often one that clean-up cares about. (st.text() first builds tables.)
CHARACTERS = st.one_of(
    st.sampled_from(list("ab .\n\t\r\x00\x07\x85\u00a0\u00ad\u0300\u0301\u200b\u200d\u2028\ud800\ufffd\ufffeé한😀")),
    st.integers(0, sys.maxunicode).map(chr),
)
TEXTS = st.lists(CHARACTERS, max_size=40).map("".join)


def read(path: Path | str, **options: Any) -> list[str]:
    return list(Corpus([str(path)], CorpusOptions(**options)).documents())


@pytest.mark.parametrize("packed", ["", ".gz", ".xz", ".zst"])
@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".csv", ".tsv", ".parquet"])
def test_every_kind_gives_the_same_documents(tmp_path: Path, kind: str, packed: str) -> None:
    assert read(write_corpus(tmp_path / f"corpus{kind}", packed)) == DOCUMENTS


@pytest.mark.parametrize("kind", [".jsonl", ".csv", ".parquet"])
def test_a_missing_field_names_those_that_are_there(tmp_path: Path, kind: str) -> None:
    path = write_corpus(tmp_path / f"corpus{kind}")
    assert len(read(path, field="id")) == (3 if kind == ".csv" else 0) if kind != ".parquet" else True
    with pytest.raises(UserError, match=r"no field 'body'; there are: id, text") as caught:
        read(path, field="body")
    assert "\n" not in str(caught.value)


def test_folders_globs_and_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/c.jsonl", "ignored.bin", ".hidden.txt", "a/.git/x.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": name}) if name.endswith("jsonl") else name)
    assert read(tmp_path) == ["a/c.jsonl", "a/z.txt", "b.txt"]
    assert read(f"{tmp_path}/**/*.txt") == ["a/z.txt", "b.txt"]
    names = [str(tmp_path / "b.txt"), str(tmp_path / "b.txt"), f"{tmp_path}/a/*.txt"]
    assert list(Corpus(names).documents()) == ["b.txt", "a/z.txt"]
    assert read(tmp_path / "ignored.bin", format="text") == ["ignored.bin"]


def test_what_a_folder_holds_beside_texts_is_said(tmp_path: Path) -> None:
    assert sources.describe_skipped([str(tmp_path)]) == ""
    for name in ("a.txt", "b.PDF", "c/d.pdf", "c/Makefile", "c/e.md", ".hidden.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    message = "4 left out: files of other kinds, .pdf (2), without a suffix (1), .md (1)"
    assert sources.describe_skipped([str(tmp_path), "nowhere.pdf"]) == message
    assert "3 left out" in sources.describe_skipped([str(tmp_path)], extra={".md": "text"})
    assert sources.describe_skipped([str(tmp_path / "b.PDF")]) == ""  # a file is read or refused
    (tmp_path / "c" / "gone.txt").symlink_to("nowhere")
    assert "broken links and other special files (1)" in sources.describe_skipped([str(tmp_path)])
    assert [Path(source.path).name for source in sources.find_sources([str(tmp_path)])] == ["a.txt"]


@pytest.mark.parametrize("pattern", ["a", "a/**/*.txt"])
def test_links_to_folders_are_followed_but_never_in_a_circle(tmp_path: Path, pattern: str) -> None:
    for name in ("a/1.txt", "a/b/2.txt", "a/.hidden/3.txt", "elsewhere/4.txt", "elsewhere/c/5.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    links = {
        "a/up": "..",
        "a/itself": "itself",
        "a/same": "b",
        "a/b/visible": "../.hidden",
        "a/b/out": "../../elsewhere",
    }
    links |= {"a/b/out-again": "../../elsewhere", "elsewhere/back": "../a", "elsewhere/c/round": ".."}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    names = [source.path.removeprefix(f"{tmp_path}/a/") for source in sources.find_sources([f"{tmp_path}/{pattern}"])]
    assert names == ["1.txt", "b/2.txt", "b/out/4.txt", "b/out/c/5.txt", "b/visible/3.txt"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ntwo")))
    assert read("-") == ["one", "two"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "three"}')))
    assert read("-", format="jsonl") == ["three"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.txt", "no such file"),
        ("*.txt", "no file matches"),
        ("", "no text files"),
        ("x.bin", "unknown kind"),
    ],
)
def test_paths_that_lead_nowhere(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "x.bin").write_bytes(b"x")
    with pytest.raises(UserError, match=message):
        Corpus([f"{tmp_path}/{name}"])


def test_one_document_per_file_and_wrapped_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("One sentence\nover two lines.\n\nNext.\r\n\r\n  \nLast.")
    assert read(path) == ["One sentence\nover two lines.", "Next.", "Last."]
    assert read(path, whole_files=True) == ["One sentence\nover two lines.\nNext.\nLast."]
    assert read(path, whole_files=True, wrapped=True) == ["One sentence over two lines.\nNext.\nLast."]


def test_invalid_utf8_is_replaced_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfgood\nbad \xff\xfe byte\n\nfine \xef\xbf\xbd\n\ncut \xe2\x82")
    corpus = Corpus([str(path)])
    documents = list(corpus.documents())
    assert documents == ["good\nbad \ufffd\ufffd byte", "fine \ufffd", "cut \ufffd"]
    assert corpus.counts.invalid_lines == 2
    assert "2 lines with bytes that are not UTF-8 (replaced)" in describe_counts(vars(corpus.counts))


def test_hygiene_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a long document\n\nshort\n\na  long\u00a0document\n\n\u200b\x07\n\nanother document")
    corpus = Corpus([str(path)], CorpusOptions(deduplicate=True, min_characters=6))
    assert list(corpus.documents()) == ["a long document", "another document"]
    counts = corpus.counts
    assert (counts.documents, counts.kept, counts.short, counts.duplicate, counts.empty) == (5, 2, 1, 1, 1)


def test_broken_records_are_counted_but_not_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        '{"text": "one"}',
        "{",
        "[1]",
        '{"text": null}',
        '{"other": 1}',
        "",
        '{"text": "t\\ud800wo"}',
        "[" * 10**5,
    ]
    path.write_text("\n".join(lines))
    corpus = Corpus([str(path)])
    assert list(corpus.documents()) == ["one", "t\ufffdwo"]
    assert (corpus.counts.broken, corpus.counts.missing) == (3, 2)
    path.write_text("plain text")
    with pytest.raises(UserError, match="first line is not a JSON object"):
        read(path)


def test_records_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_RECORD", 1000)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("one", "x" * 5000, "two")))
    corpus = Corpus([str(path)])
    assert list(corpus.documents()) == ["one", "two"]
    assert corpus.counts.broken == 1
    path = tmp_path / "a.csv"
    path.write_text('text\n"open ' + "word\n" * 1000)
    with pytest.raises(UserError, match=r"a.csv: line \d+: is not valid CSV .*unclosed quote"):
        read(path)


@pytest.mark.parametrize("packed", [".gz", ".xz", ".zst"])
def test_a_packed_file_that_is_cut_off_or_something_else(tmp_path: Path, packed: str) -> None:
    path = write_corpus(tmp_path / "a.txt", packed)
    whole = path.read_bytes()
    path.write_bytes(whole * 2)  # members one after the other are one file
    assert "".join(read(path, whole_files=True)) == "\n".join(DOCUMENTS) + "\n".join(DOCUMENTS)
    for data in (whole[:-9], b"plain text"):
        path.write_bytes(data)
        with pytest.raises(UserError, match="is damaged or cut off"):
            read(path)


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"not parquet at all")
    with pytest.raises(UserError, match="is not a readable parquet file") as caught:
        read(path)
    assert "\n" not in str(caught.value)
    broken = pyarrow.array([b"bad \xff", b"good", None], pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": broken}), path)
    corpus = Corpus([str(path)])
    assert list(corpus.documents()) == ["bad \ufffd", "good"]
    assert (corpus.counts.invalid_lines, corpus.counts.missing) == (1, 1)
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array(["a", "b", "a"]).dictionary_encode()}), path)
    assert read(path) == ["a", "b", "a"]
    pyarrow.parquet.write_table(pyarrow.table({"text": [1, 2]}), path)
    with pytest.raises(UserError, match="column 'text' holds int64, not text"):
        read(path)


@pytest.mark.parametrize(("library", "kind"), [("pyarrow", ".parquet"), ("zstandard", ".txt.zst")])
def test_a_missing_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, kind: str
) -> None:
    path = tmp_path / f"a{kind}"
    path.write_bytes(b"x")
    original = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == library:
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=rf"needs {library}; install the extra '\w+': pip install 'bertree"):
        read(path)


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    """They may never end, or never begin."""
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "zero.txt").symlink_to("/dev/zero")
    for name in ("pipe.txt", "zero.txt"):
        path = tmp_path / name
        with pytest.raises(UserError, match=rf"{name}: is a pipe or a device"):
            Corpus([str(path)])
        with pytest.raises(UserError, match=rf"{name}: is a pipe or a device"):
            list(read_lines(path))
    with pytest.raises(UserError, match="no text files in this folder"):
        Corpus([str(tmp_path)])


@pytest.mark.parametrize("character", ["word ", "x", "é", "€", "😀", "\xff"])
def test_a_very_long_line_comes_in_pieces(tmp_path: Path, character: str) -> None:
    path = tmp_path / "a.txt"
    raw = b"\xff" if character == "\xff" else character.encode()
    path.write_bytes(raw * (3_000_001 // len(character)) + b"\n\nnext")
    corpus = Corpus([str(path)])
    documents = list(corpus.documents())
    assert max(map(len, documents)) <= readers.MAX_DOCUMENT
    assert corpus.counts.cut >= 2
    assert documents[-1] == "next"
    if character != "\xff":
        assert "".join(documents[:-1]).replace(" ", "") == (character * (3_000_001 // len(character))).replace(" ", "")
        assert corpus.counts.invalid_lines == 0


@pytest.mark.parametrize("space", [b" ", b""])
def test_memory_is_flat_in_one_endless_line(tmp_path: Path, space: bytes) -> None:
    peaks = []
    for megabytes in (3, 20):
        path = tmp_path / f"{megabytes}.txt"
        with path.open("wb") as file:
            for _ in range(megabytes * 10):
                file.write((b"w" * (10 - len(space)) + space) * 10_000)
        tracemalloc.start()
        documents: Iterator[str] = Corpus([str(path)]).documents()
        assert sum(1 for _ in documents) >= megabytes - 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.2
    assert peaks[1] < 12 * readers.MAX_DOCUMENT


@given(TEXTS)
def test_clean_text_is_clean_and_stays_so(text: str) -> None:
    cleaned = cleaning.clean(text)
    assert cleaning.clean(cleaned) == cleaned
    assert unicodedata.is_normalized("NFC", cleaned)
    assert all(line == " ".join(line.split(" ")) and line for line in cleaned.split("\n")) or not cleaned
    assert all(unicodedata.category(c) not in ("Cc", "Cs") for c in cleaned.replace("\n", ""))
    no_character = {chr(code) for code in range(0xFDD0, 0xFDF0)} | {c for c in text if ord(c) & 0xFFFE == 0xFFFE}
    visible = "".join(
        c
        for c in text
        if c.isspace() or (unicodedata.category(c) not in ("Cc", "Cf") and c not in no_character) or c in cleaning.KEPT
    )
    letters = [c for c in unicodedata.normalize("NFC", visible) if unicodedata.category(c)[0] in "LNPSM"]
    assert [c for c in cleaned if unicodedata.category(c)[0] in "LNPSM" and c != "\ufffd"] == [
        c for c in letters if c != "\ufffd"
    ]


@pytest.mark.parametrize("invisible", ["\u00ad", "\u200b", "\x07", "\ufdd0", "\u00ad\u200b"])
def test_an_accent_after_an_invisible_character_is_composed(tmp_path: Path, invisible: str) -> None:
    """Otherwise cleaning again would change the text, and de-duplication would miss the copy."""
    text = f"voila{invisible}\u0300, a\u0300"
    assert cleaning.clean(text) == cleaning.clean(cleaning.clean(text)) == "voilà, à"
    (tmp_path / "a.txt").write_text(f"{text}\n\nvoilà, à\n\nanother")
    assert read(tmp_path / "a.txt", deduplicate=True) == ["voilà, à", "another"]


def test_clean_keeps_joiners_and_drops_noise() -> None:
    assert cleaning.clean("👩\u200d👧 می\u200cخواهم") == "👩\u200d👧 می\u200cخواهم"
    assert cleaning.clean("a\x1fb\tc\u00a0 d  e ") == "a b c d e"
    assert cleaning.clean("\ufeffa\u00adb\u200bc\x00d\u2028e\u3000f\ufffe") == "abcd\ne f"


@given(st.lists(st.integers(0, 50)))
def test_seen_is_a_set(numbers: list[int]) -> None:
    seen, expected = cleaning.DigestSet(), set()
    for number in numbers:
        assert seen.add(cleaning.digest(str(number))) == (number not in expected)
        expected.add(number)
    assert seen.count == len(expected)


def test_seen_grows() -> None:
    seen = cleaning.DigestSet()
    assert all(seen.add(cleaning.digest(str(number))) for number in range(5000))
    assert not any(seen.add(cleaning.digest(str(number))) for number in range(5000))


@pytest.mark.parametrize("stop", range(1, 7))
def test_a_corpus_can_be_entered_again_anywhere(tmp_path: Path, stop: int) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\n\xff two\n\none\n\nthree")
    (tmp_path / "b.jsonl").write_text('{"text": "four"}\n{\n{"text": "five"}\n{"text": "six"}\n{"no": 1}')
    options = CorpusOptions(deduplicate=True)
    whole = Corpus([str(tmp_path)], options)
    everything = list(whole.documents())
    first = Corpus([str(tmp_path)], options)
    stream = first.documents()
    before = [next(stream) for _ in range(stop)]
    second = Corpus([str(tmp_path)], options)
    second.resume(first.position, vars(first.counts), first.digests)
    assert before + list(second.documents()) == everything
    assert second.counts == whole.counts


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo\n\nthree")
    first = Corpus([str(path)])
    stream = first.documents()
    next(stream), next(stream)
    for text in ("one\n\n2\n\nthree", "one"):
        path.write_text(text)
        second = Corpus([str(path)])
        second.resume(first.position, vars(first.counts), [])
        with pytest.raises(UserError, match="has changed since"):
            list(second.documents())
    assert first.position.documents == 2
    assert Position() == Position(0, 0, 0)
