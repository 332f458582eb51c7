"""A SentencePiece model without special tokens of its own (Reformer's) gives the ids of SentencePiece."""

import io
import random
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers

from bertree.errors import UserError
from bertree.text.tokenizer import Tokenizer

WORDS = [
    *("river", "rivers", "the", "sea", "Sea", "naive", "mail", "e-mail", "people", "running", "run", "Paris."),
    *("9", "500", "1,000", "(a)", '"so"', "aaaa", "aa", "banana", "naïve", "Ça"),
]
LETTERS = 'aaabnriv estheSP.,19()-"\n\t  é東🙂▁ ½'
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "byte fallback": {"byte_fallback": True, "vocab_size": 400},
    "no prefix": {"add_dummy_prefix": False},
    "spaces kept": {"remove_extra_whitespaces": False},
    "no normalization": {"normalization_rule_name": "identity"},
    "pieces of several words": {"split_by_whitespace": False},
}


def lines() -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=8)) for _ in range(600)]


def texts() -> list[str]:
    draw = random.Random(1)
    drawn = ["".join(draw.choices(LETTERS, k=draw.randint(0, 40))) for _ in range(300)]
    return [*lines()[:100], *drawn, "", " ", "  two   spaces ", "a\nb", "ﬁne ½"]


def train(kind: str, **options: Any) -> bytes:
    model = io.BytesIO()
    settings = {"vocab_size": 120, "hard_vocab_limit": kind != "unigram", "model_type": kind, "minloglevel": 2}
    settings["num_threads"] = 1  # several threads add up in any order, so the scores differ from run to run
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()), model_writer=model, **(settings | options)
    )
    return model.getvalue()


def load(path: Path, data: bytes) -> Tokenizer:
    (path / "spiece.model").write_bytes(data)
    tokenizer = Tokenizer.load(path)
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("options", OPTIONS)
def test_ids_and_texts_are_those_of_sentencepiece(tmp_path: Path, kind: str, options: str) -> None:
    data = train(kind, **OPTIONS[options])
    ours, truth = load(tmp_path, data), sentencepiece.SentencePieceProcessor(model_proto=data)
    assert ours.size == truth.get_piece_size()
    # Two ways to divide "naïve naïve naïve" into pieces of two words have the same score.
    comparable = [text for text in texts() if not (options.startswith("pieces") and "naïve naïve naïve" in text)]
    for text, encoded in zip(comparable, ours.encode(comparable), strict=True):
        assert encoded.ids == truth.encode(text), text
    for text in lines()[:100]:
        assert ours.backend.decode(truth.encode(text)) == text


@pytest.mark.parametrize("kind", ["char", "word"])
@pytest.mark.parametrize("options", ["plain", "no prefix", "spaces kept", "no normalization"])
def test_models_of_characters_and_words_give_the_ids_of_sentencepiece(tmp_path: Path, kind: str, options: str) -> None:
    data = train(kind, **OPTIONS[options], vocab_size=20)  # some characters, and some words, are unknown
    ours, truth = load(tmp_path, data), sentencepiece.SentencePieceProcessor(model_proto=data)
    assert ours.size == truth.get_piece_size() == 20
    (tmp_path / "out").mkdir()
    ours.save(tmp_path / "out")
    again = Tokenizer.load(tmp_path / "out")  # from tokenizer.json
    assert again is not None
    unknown = sum(truth.encode(text).count(truth.unk_id()) for text in texts())
    assert unknown > 300
    for tokenizer in (ours, again):
        for text, encoded in zip(texts(), tokenizer.encode(texts()), strict=True):
            assert encoded.ids == truth.encode(text), text
    for text in [text for text in lines() if truth.unk_id() not in truth.encode(text)]:
        assert ours.backend.decode(truth.encode(text)) == text


def test_ids_of_clean_texts_are_those_of_transformers(tmp_path: Path) -> None:
    ours, theirs = load(tmp_path, train("bpe")), transformers.ReformerTokenizer.from_pretrained(tmp_path)
    clean = [" ".join(text.split()) for text in texts()]
    comparable = [text for text in clean if text and "▁" not in text]
    assert len(comparable) > 200
    for text in comparable:
        assert ours.encode([text])[0].ids == theirs(text)["input_ids"], text


def test_what_is_written_reads_the_same_with_transformers(tmp_path: Path) -> None:
    ours = load(tmp_path, train("bpe", byte_fallback=True, vocab_size=400))
    (tmp_path / "out").mkdir()
    ours.save(tmp_path / "out")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in texts():
        assert again(text)["input_ids"] == ours.encode([text])[0].ids, text
    assert (tmp_path / "out" / "spiece.model").read_bytes() == (tmp_path / "spiece.model").read_bytes()


def test_special_pieces_are_found_and_not_put_around_a_text(tmp_path: Path) -> None:
    ours = load(tmp_path, train("bpe", pad_id=3))
    assert ours.special == {"pad": "<pad>", "cls": "<s>", "sep": "</s>", "unk": "<unk>"}
    assert ours.end_id == 2
    assert ours.encode([""])[0].ids == []


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("char", {"vocab_size": 30, "user_defined_symbols": ["@@"]}, "of characters with symbols that its user"),
        ("bpe", {"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix has no equal here"),
        ("bpe", {"user_defined_symbols": ["@@"]}, "symbols that its user defined cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, kind: str, options: dict[str, Any], reason: str) -> None:
    data = train(kind, **options)
    with pytest.raises(UserError, match=rf"spiece.model: .*{reason}") as caught:
        load(tmp_path, data)
    assert "\n" not in str(caught.value)


def test_symbols_that_a_user_defined_are_whole_in_a_unigram_model(tmp_path: Path) -> None:
    data = train("unigram", user_defined_symbols=["@@", "<x>"])
    ours, truth = load(tmp_path, data), sentencepiece.SentencePieceProcessor(model_proto=data)
    # Not "@@@": the symbol first or the unknown "@" first have the same score, and rounding decides.
    for text in ("the@@sea", "@@ river <x>", "a@b @@ @ <x", "rivers<x><x>"):
        assert ours.encode([text])[0].ids == truth.encode(text), text


def test_a_very_long_piece_is_refused(tmp_path: Path) -> None:
    piece = b"\x0a" + bytes([0x84, 0x08]) + b"a" * 1028  # field 1 of a piece: its text
    data = train("bpe") + b"\x0a" + bytes([0x87, 0x08]) + piece
    with pytest.raises(UserError, match="a piece of more than 512 characters"):
        load(tmp_path, data)
