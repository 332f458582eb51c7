"""`store show`: what a person reads, for every kind of tokenizer."""

from io import StringIO
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from bertree.cli import data
from bertree.cli.render.texts import print_example
from bertree.data.masking import Masking
from bertree.data.preview import preview_example, preview_masking
from bertree.data.stream import Stream
from bertree.errors import UserError
from tests.support.corpora import corpus
from tests.support.memory_store import memory_store

app = typer.Typer()
data.register(app)

TEXT = "the unbelievable river ran on . it never stopped .\n\na dog barked at nothing . then it slept .\n\n"


def call(*words: str | Path) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_every_mask_is_shown() -> None:
    sample = corpus([[3, 4], [2, 4], [1, 5]])
    console = Console(width=200, record=True, file=StringIO())
    example = preview_example(sample.store, 0, format="segment-pair+sop", masking="token", max_length=16, seed=3)
    print_example(example, console)
    text = console.export_text()
    assert text.startswith("example 0 of 3 · segment-pair+sop · 10 of 16 tokens · ")
    assert "SOP label" in text
    assert "A  [CLS] <" in text
    assert "B  <" in text or "B  [MASK]{<" in text
    batch = Stream(sample.store, format="segment-pair+sop", batch_tokens=64, max_length=16, seed=3).example(0)
    for place, target in zip(batch.labels.masked.tolist(), batch.labels.targets.tolist(), strict=True):
        assert f"{{<{target}>}}" in text
        assert f"{place} " in text
    with pytest.raises(UserError, match="example 3: the store has 3"):
        preview_example(sample.store, 3, format="segment-pair+sop", max_length=16)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_a_person_can_read_it(kind: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT * 20)
    (tmp_path / "once.txt").write_text(TEXT)
    size = {"wordpiece": "50", "bpe": "280", "unigram": "50"}[kind]
    call("tokenizer", "train", tmp_path / "text.txt", "--kind", kind, "--vocab-size", size, "--out", tmp_path / "t")
    call("prepare", tmp_path / "once.txt", "--tokenizer", tmp_path / "t", "--out", tmp_path / "s", "--workers", "1")
    output = call("store", "show", tmp_path / "s", "--masking", "none")
    assert output.startswith("example 0 of 1 · full-sentences · ")
    text = output.split(" A ")[1]
    first, second = (document.strip() for document in TEXT.strip().split("\n\n"))
    assert text == f"[CLS] {first} [SEP] {second} [SEP]"
    pair = ["--format", "segment-pair+nsp", "--masking", "word", "--at", "1", "--max-length", "128", "--seed", "1"]
    output = call("store", "show", tmp_path / "s", *pair, "--epoch", "2")
    assert "NSP label" in output
    assert "it must predict" in output
    assert output == call("store", "show", tmp_path / "s", *pair, "--epoch", "2")
    assert output != call("store", "show", tmp_path / "s", *pair, "--epoch", "3")
    with pytest.raises(UserError, match="example 9: the store has 1"):
        call("store", "show", tmp_path / "s", "--at", "9")


def test_an_order_is_shown_with_what_each_token_may_see() -> None:
    sample = corpus([[3, 4], [2, 4], [1, 5]])
    console = Console(width=100, record=True, file=StringIO())
    masking = preview_masking(None, "permutation", partial=4, spans=1)
    example = preview_example(sample.store, 0, format="doc-sentences", masking=masking, max_length=16)
    print_example(example, console)
    ordered = sorted((token for token in example.tokens if token.rank), key=lambda token: token.rank)
    assert len(ordered) == 4, "9 // 4 targets, [CLS] and [SEP]"
    assert [token.text for token in example.tokens if token.special] == ["[CLS]", "[SEP]"]
    assert all((token.target is None) == token.special for token in ordered)
    lines = console.export_text().splitlines()
    assert lines[0] == "example 0 of 3 · doc-sentences · 9 of 16 tokens · 2 predicted in a random order"
    assert all(f"{token.text}{{{token.rank}}}" in lines[2] for token in ordered)
    begin = next(number for number, line in enumerate(lines) if line.startswith("order"))
    seen: list[str] = []
    for token, line in zip(ordered, lines[begin + 1 :], strict=False):
        cells = line.split()
        assert cells[:4] == [str(token.rank), str(token.position), "A", token.text]
        sees = "context" + (" + " + ", ".join(seen) if seen else "")
        assert line.rstrip().endswith("not predicted" if token.special else f" {sees}")
        seen.append(token.text)
    grid = [line.split() for line in lines if line.split("  ")[-1].strip("x.?") == "" and "?" in line]
    assert len(grid) == 2
    for name, row in grid:
        place = row.index("?")
        target = example.tokens[place]
        assert target.text == name
        assert row == "".join(
            "?" if token is target else "x" if token.rank < target.rank else "." for token in example.tokens
        )


def test_a_narrow_terminal_has_no_grid() -> None:
    console = Console(width=40, record=True, file=StringIO())
    masking = preview_masking("permutation", None, partial=6, spans=5)
    example = preview_example(corpus([[60], [4]]).store, 0, format="doc-sentences", masking=masking, max_length=64)
    print_example(example, console)
    assert "a grid of what each may see needs" in console.export_text()


def test_objectives_by_name() -> None:
    assert preview_masking(None, None, 6, 5) == Masking("token")
    assert preview_masking("none", None, 6, 5) is None
    for arguments, message in (
        (("word", "mlm", 6, 5), "give one of them"),
        ((None, "permute", 6, 5), "`objective=permute`: unknown, .*permutation"),
        ((None, "permutation", 0, 5), "partial 0"),
    ):
        with pytest.raises(UserError, match=message):
            preview_masking(*arguments)


def test_lanes_have_no_examples() -> None:
    store = memory_store([[[5, 6, 7, 8]]], vocab_size=20, special={"cls": 1, "sep": 2, "mask": 3})
    with pytest.raises(UserError, match="lanes are continuous text without examples; give 'stream' instead"):
        preview_example(store, 0, format="lanes+pairs")
