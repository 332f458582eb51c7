"""The tokenizer of bytes: id = byte + 2."""

from pathlib import Path

import pytest
import transformers

from bertree.errors import UserError
from bertree.text import tokenizer_training
from bertree.text.identity import word_starts
from bertree.text.tokenizer import Tokenizer
from tests.support.command import Command

TEXTS = ["Héllo, wörld!\n\t 東京 🙂", "", "  spaces  ", "".join(map(chr, range(400)))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = tokenizer_training.train(lambda: iter(TEXTS), "bytes", 258)
    tokenizer_training.save(tokenizer, tmp_path / "bytes")
    return tmp_path / "bytes"


def test_every_byte_has_its_id_and_every_text_comes_back(folder: Path) -> None:
    tokenizer, theirs = Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer is not None
    for text, encoded in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        assert encoded.ids == [byte + 2 for byte in text.encode()] == theirs(text)["input_ids"]
        assert tokenizer.backend.decode(encoded.ids) == text
    assert (tokenizer.size, tokenizer.id_of("pad"), tokenizer.end_id) == (258, 0, 1)
    assert (theirs.pad_token_id, theirs.eos_token_id) == (0, 1)
    starts = word_starts(tokenizer)
    assert starts[ord(" ") + 2]
    assert not starts[ord("a") + 2]


def test_bytes_have_no_case_and_a_fixed_number(folder: Path) -> None:
    with pytest.raises(UserError, match="cased: a tokenizer of bytes keeps case"):
        tokenizer_training.train(lambda: iter(TEXTS), "bytes", 258, cased=False)
    with pytest.raises(UserError, match="vocab_size 200: must be between 258 and"):
        tokenizer_training.train(lambda: iter(TEXTS), "bytes", 200)


def test_a_store_of_bytes_is_made_from_the_command_line(tmp_path: Path, command: Command) -> None:
    (tmp_path / "text.txt").write_text("The river.\n\nThe sea is höch.\n")
    result = command("tokenizer", "train", tmp_path / "text.txt", "--kind", "bytes", "--out", tmp_path / "tok")
    assert result.code == 0
    assert "bytes, 258 tokens, from 2 documents" in result.out
    assert "only" not in result.out
    prepare = ("prepare", tmp_path / "text.txt", "--tokenizer", tmp_path / "tok", "--out", tmp_path / "store")
    result = command(*prepare, "--workers", 1)
    assert result.code == 0
