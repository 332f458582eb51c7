"""`store show`: what a person reads, for every kind of tokenizer."""

from io import StringIO
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from bertree.cli import data
from bertree.cli.render.example import print_example
from bertree.data.preview import preview_example
from bertree.data.stream import Stream
from bertree.errors import UserError
from tests.support.corpora import corpus

app = typer.Typer()
data.register(app)

TEXT = "the unbelievable river ran on . it never stopped .\n\na dog barked at nothing . then it slept .\n\n"


def call(*words: str | Path) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_every_mask_is_shown() -> None:
    made = corpus([[3, 4], [2, 4], [1, 5]])
    console = Console(width=200, record=True, file=StringIO())
    example = preview_example(made.store, 0, format="segment-pair+sop", masking="token", max_length=16, seed=3)
    print_example(example, console)
    text = console.export_text()
    assert text.startswith("example 0 of 3 · segment-pair+sop · 10 of 16 tokens · ")
    assert "SOP label" in text
    assert "A  [CLS] <" in text
    assert "B  <" in text or "B  [MASK]{<" in text
    batch = Stream(made.store, format="segment-pair+sop", batch_tokens=64, max_length=16, seed=3).example(0)
    for place, target in zip(batch.labels.masked.tolist(), batch.labels.targets.tolist(), strict=True):
        assert f"{{<{target}>}}" in text
        assert f"{place} " in text
    with pytest.raises(UserError, match="example 3: the store has 3"):
        preview_example(made.store, 3, format="segment-pair+sop", max_length=16)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_a_person_can_read_it(kind: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT * 20)
    (tmp_path / "once.txt").write_text(TEXT)
    size = {"wordpiece": "50", "bpe": "280", "unigram": "50"}[kind]
    call("tokenizer", "train", tmp_path / "text.txt", "--kind", kind, "--vocab-size", size, "--out", tmp_path / "t")
    call("prepare", tmp_path / "once.txt", "--tokenizer", tmp_path / "t", "--out", tmp_path / "s", "--workers", "1")
    said = call("store", "show", tmp_path / "s", "--masking", "none")
    assert said.startswith("example 0 of 1 · full-sentences · ")
    text = said.split(" A ")[1]
    first, second = (document.strip() for document in TEXT.strip().split("\n\n"))
    assert text == f"[CLS] {first} [SEP] {second} [SEP]"
    pair = ["--format", "segment-pair+nsp", "--masking", "word", "--at", "1", "--max-length", "128", "--seed", "1"]
    said = call("store", "show", tmp_path / "s", *pair, "--epoch", "2")
    assert "NSP label" in said
    assert "it must predict" in said
    assert said == call("store", "show", tmp_path / "s", *pair, "--epoch", "2")
    assert said != call("store", "show", tmp_path / "s", *pair, "--epoch", "3")
    with pytest.raises(UserError, match="example 9: the store has 1"):
        call("store", "show", tmp_path / "s", "--at", "9")
