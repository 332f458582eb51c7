"""A tokenizer is called as those of transformers are, with the same results."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from bertree.errors import UserError
from bertree.text.tokenizer import Tokenizer

TEXTS = ["The ship went down.", "", "Unusual  words, isn't it? é"]
CALLS: list[tuple[Any, ...]] = [("The ship",), ("The ship", "went down."), (TEXTS,), (TEXTS, TEXTS[::-1])]
KEYWORDS: list[dict[str, Any]] = [
    {},
    {"add_special_tokens": False},
    {"return_offsets_mapping": True, "return_special_tokens_mask": True},
    {"max_length": 6, "truncation": True, "return_offsets_mapping": True},
    {"padding": True},
    {"padding": "max_length", "max_length": 40, "truncation": True},
]


@pytest.fixture
def peer(tokenizer: Tokenizer, tmp_path: Path) -> Any:
    tokenizer.save(tmp_path)
    return AutoTokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize("keywords", KEYWORDS, ids=str)
def test_calls(tokenizer: Tokenizer, peer: Any, keywords: dict[str, Any]) -> None:
    for texts in CALLS:
        assert tokenizer(*texts, **keywords) == dict(peer(*texts, **keywords)), texts
    pairs = [("a ship", "a river"), ("it", "rains")]
    assert tokenizer(pairs, **keywords) == dict(peer(*zip(*pairs, strict=True), **keywords))


def test_decoding_and_lookups(tokenizer: Tokenizer, peer: Any) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == tokenizer(text).input_ids == peer.encode(text)
        assert tokenizer.tokenize(text) == peer.tokenize(text)
        for skip in (False, True):
            assert tokenizer.decode(np.array(ids), skip_special_tokens=skip) == peer.decode(
                ids, skip_special_tokens=skip
            )
    assert tokenizer.encode("a ship", "a river") == peer.encode("a ship", "a river")
    rows = tokenizer(TEXTS)["input_ids"]
    assert tokenizer.batch_decode(rows) == tokenizer.decode(rows) == peer.batch_decode(rows)
    assert tokenizer.decode(tokenizer.encode(TEXTS)) == tokenizer.decode(rows)
    assert (len(tokenizer), tokenizer.vocab_size, tokenizer.get_vocab()) == (
        len(peer),
        peer.vocab_size,
        peer.get_vocab(),
    )
    tokens = tokenizer.convert_ids_to_tokens(rows[0])
    assert tokens == peer.convert_ids_to_tokens(rows[0])
    assert tokenizer.convert_tokens_to_ids(tokens) == rows[0]
    assert tokenizer.convert_tokens_to_ids("no such token") == peer.convert_tokens_to_ids("no such token")
    assert tokenizer.mask_token in tokenizer
    assert "no such token" not in tokenizer
    for name in ("mask", "pad", "cls", "sep", "unk"):
        assert getattr(tokenizer, f"{name}_token") == getattr(peer, f"{name}_token")
        assert getattr(tokenizer, f"{name}_token_id") == getattr(peer, f"{name}_token_id")
    assert set(peer.all_special_ids) <= set(tokenizer.all_special_ids)


def test_arrays(tokenizer: Tokenizer) -> None:
    rows = tokenizer(TEXTS, padding=True)
    assert tokenizer(TEXTS, padding=True, return_tensors="np").input_ids.tolist() == rows.input_ids
    assert tokenizer(TEXTS, padding=True, return_tensors="pt").attention_mask.tolist() == rows.attention_mask


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7,), "text: 7 is not a string or a list of strings"),
        ((["a", 7],), "text 2 must be a text or a pair of texts"),
        (("a", ["b"]), "the second text must be a text"),
        ((["a"], ["b", "c"]), "the same length"),
    ],
)
def test_what_is_no_text(tokenizer: Tokenizer, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tokenizer(*arguments)


def test_ids_and_names_that_do_not_exist(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="decode: 1000000 is not the id of a token"):
        tokenizer.decode([1, 1_000_000])
    with pytest.raises(UserError, match="differ in length; add padding=True"):
        tokenizer(TEXTS, return_tensors="np")
    with pytest.raises(AttributeError, match="no attribute 'mask_tokens'"):
        tokenizer.mask_tokens  # noqa: B018


@pytest.mark.parametrize("ids", ["abc", None, 1.5])
def test_what_is_not_an_id_is_refused_in_one_line(tokenizer: Tokenizer, ids: object) -> None:
    with pytest.raises(UserError, match="decode: takes ids of tokens"):
        tokenizer.decode(ids)
