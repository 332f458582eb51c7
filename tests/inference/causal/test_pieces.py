"""Tokens -> text as they come: the pieces together are the text, no character is torn, no token is decoded often."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from bertree.inference.causal.texts import REPLACEMENT, PieceDecoder
from tests.support.shared import suite_has

PROMPT = "Der alte Kapitän sagte: "
TEXT = (
    'He said, "don\'t go!" Then, at 10.30 a.m., the 鯨 (くじら) came: 白い鯨が来た。それを見た。 '
    "Größe, naïve café; Привет, мир! 🙂👩‍👩‍👧‍👦🇳🇱 क्षत्रिय مرحبا\n\n"
    "supercalifragilisticexpialidociousandmuchlongerthanthatwithoutaspace end. "
) * 6


def byte_level() -> Tokenizer:
    """A token for each byte: every character beyond ASCII is torn."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Letters of ASCII, and bytes of all others, which are decoded a run at a time."""
    pieces = [chr(n) for n in range(33, 127)] + ["▁", *(f"<0x{n:02X}>" for n in range(256))]
    tokenizer = Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    tokenizer.train_from_iterator([TEXT, PROMPT], trainers.WordPieceTrainer(vocab_size=150, special_tokens=["[UNK]"]))
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"])
    tokenizer.train_from_iterator([TEXT, PROMPT], trainer)
    return tokenizer


class Counting:
    """A tokenizer whose decoded tokens are counted."""

    def __init__(self, backend: Tokenizer) -> None:
        self._inner, self.decoded = backend, 0
        self.backend = SimpleNamespace(decode=self.decode)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        self.decoded += len(ids)
        return self._inner.decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("make", [byte_level, byte_fallback, word_piece, unigram])
@pytest.mark.parametrize("prompt", suite_has([PROMPT, "鯨"], [PROMPT, "", "The whale", "鯨"]))
def test_pieces_are_the_text(make: object, prompt: str) -> None:
    backend = make()
    ids = backend.encode(TEXT, add_special_tokens=False).ids
    tokenizer = Counting(backend)
    decoder = PieceDecoder(tokenizer, backend.encode(prompt, add_special_tokens=False).ids)
    pieces = [decoder.add(token) for token in ids]
    assert tokenizer.decoded < 100 * len(ids), "as many times as the window is long, whatever the length of the text"
    pieces.append(decoder.finish())
    assert "".join(pieces) == decoder.text
    assert "".join(pieces).strip() == backend.decode(ids).strip()
    assert not any(REPLACEMENT in piece for piece in pieces)
    longest = max(map(len, pieces))
    assert longest <= 60, "it comes as it is generated, also where there are no spaces"


def test_a_prompt_that_ends_within_a_character_is_left_alone() -> None:
    backend = byte_level()
    whale = backend.encode("鯨").ids
    decoder = PieceDecoder(Counting(backend), whale[:2])
    pieces = [decoder.add(token) for token in [whale[2], *backend.encode(" came at last").ids]]
    assert "".join([*pieces, decoder.finish()]) == decoder.text == REPLACEMENT + " came at last"


def test_bytes_that_are_no_text_do_not_stop_what_follows() -> None:
    backend = byte_level()
    broken = backend.encode("鯨").ids[:1] * 600
    decoder = PieceDecoder(Counting(backend), [])
    pieces = [decoder.add(token) for token in [*broken, *backend.encode(" and then a text").ids]]
    assert "".join([*pieces, decoder.finish()]) == REPLACEMENT * 600 + " and then a text"
