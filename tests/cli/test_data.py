"""The data verbs as a user calls them: what they print, what they refuse and what they teach."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bertree.cli.main import app
from bertree.data.store import Store
from bertree.errors import UserError

BOOKS = Path(__file__).parents[2] / "corpus" / "books.txt"


def call(*words: str | Path, text: str | None = None) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], input=text, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_from_text_to_verified_store(tmp_path: Path) -> None:
    tokenizer, store = tmp_path / "tokenizer", tmp_path / "store"
    output = call("tokenizer", "train", BOOKS, "--kind", "bpe", "--vocab-size", "1000", "--out", tokenizer)
    assert "bpe, 1,000 tokens, from 508 documents" in output
    for figure in ("fertility", "unknown tokens", "compression"):
        assert figure in output
    output = call("prepare", BOOKS, "--tokenizer", tokenizer, "--out", store, "--workers", "1")
    assert "508 documents" in output
    assert "bytes per token" in output
    assert "undamaged; 508 documents" in call("store", "verify", store)
    copy = store / "tokenizer" / "tokenizer.json"
    text = copy.read_text()
    copy.write_text(text.replace('"Ġthe"', '"Ġteh"'))
    with pytest.raises(UserError):
        call("store", "verify", store)
    copy.write_text(text)
    damaged = store / "tokens-00000.bin"
    damaged.write_bytes(b"\xff" + damaged.read_bytes()[1:])
    with pytest.raises(UserError, match=r"tokens-00000.bin: is altered"):
        call("store", "verify", store)


def test_options_reach_the_corpus_and_drops_are_said(tmp_path: Path) -> None:
    texts = ["A first body of text. It has two sentences.", "A second body of text.", "tiny"] * 30
    (tmp_path / "a.data").write_text("".join(json.dumps({"body": text}) + "\n" for text in [*texts, None]))
    corpus = [tmp_path / "a.data", "--format", "jsonl", "--text", "body", "--min-characters", "10"]
    call("tokenizer", "train", *corpus, "--vocab-size", "60", "--out", tmp_path / "t", "--cased")
    out = ["--tokenizer", tmp_path / "t", "--out", tmp_path / "s", "--workers", "1"]
    output = call("prepare", *corpus, "--deduplicate", *out)
    assert "2 documents, 3 sentences" in output
    for line in (
        "30 left out: too short",
        "58 left out: exact duplicates",
        "1 left out: records without text",
    ):
        assert line in output
    assert json.loads((tmp_path / "s" / "store.json").read_text())["summary"]["duplicate"] == 58


def test_standard_input_is_read_twice_when_it_must(tmp_path: Path) -> None:
    text = "\n\n".join(f"Document number {n} from a pipe." for n in range(40))
    output = call("tokenizer", "train", "-", "--vocab-size", "80", "--out", tmp_path / "t", text=text)
    assert "from 40 documents" in output
    call("prepare", "-", "--tokenizer", tmp_path / "t", "--out", tmp_path / "s", "--workers", "1", text=text)
    assert Store.open(tmp_path / "s").documents == 40


def test_an_empty_corpus_and_a_missing_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" \n\n ")
    for kind in ("wordpiece", "bpe", "unigram"):
        with pytest.raises(UserError, match="no text"):
            call("tokenizer", "train", tmp_path / "a.txt", "--kind", kind, "--out", tmp_path / "t")
    assert not (tmp_path / "t").exists()
    with pytest.raises(UserError, match="no tokenizer files"):
        call("prepare", tmp_path / "a.txt", "--tokenizer", tmp_path, "--out", tmp_path / "s")


@pytest.mark.parametrize("verb", [["tokenizer", "train"], ["prepare"], ["store", "verify"]])
def test_help_teaches_by_example(verb: list[str]) -> None:
    assert f"bertree {' '.join(verb)}" in call(*verb, "--help")


def test_text_and_data_need_no_torch() -> None:
    code = "import sys, bertree.data.prepare, bertree.data.store_builder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_control_codes_are_counted_and_shown(tmp_path: Path) -> None:
    for name, text in (("Books", "Books on the captain at sea. "), ("Reviews", "Reviews of a dull film. ")):
        (tmp_path / "sources" / name).mkdir(parents=True)
        (tmp_path / "sources" / name / "a.txt").write_text("\n\n".join([text * 20] * 30))
    sources, tokenizer, store = (tmp_path / name for name in ("sources", "t", "s"))
    call("tokenizer", "train", sources, "--vocab-size", "100", "--cased", "--out", tokenizer)
    output = call("prepare", sources, "--control", "folder", "--tokenizer", tokenizer, "--out", store, "--workers", "1")
    for line in ("control code 'Books': 30 documents", "control code 'Reviews': 30 documents"):
        assert line in output
        assert line in call("store", "info", store)
    report = json.loads(call("store", "info", store, "--json"))
    assert [code["code"] for code in report["controls"]] == ["Books", "Reviews"]
    assert sum(code["tokens"] for code in report["controls"]) == report["tokens"]
    output = call("store", "show", store, "--at", "0", "--masking", "none", "--max-length", "64")
    assert "[CLS] Books [SEP]" in " ".join(output.split())
