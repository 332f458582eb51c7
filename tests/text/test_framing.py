"""Tokens around the texts of a task: new ones for tokenizers that write none."""

from pathlib import Path

import pytest
import transformers

from bertree.text import tokenizer_training
from bertree.text.framing import TASK_TOKENS, Frame, add_task_tokens, frames_texts, special_ids
from bertree.text.tokenizer import Tokenizer
from tests.support.left_to_right import gpt_tokenizer

TEXTS = ["a lamp on the road", "", "the river, the stone", " two  spaces <|start|>"]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_our_own_tokenizers_write_them(kind: str) -> None:
    tokenizer = tokenizer_training.train(lambda: ["a lamp on the road by the river"] * 9, kind, 300)
    assert frames_texts(tokenizer)


def test_those_of_gpt_get_new_ones(tmp_path: Path) -> None:
    plain = gpt_tokenizer()
    assert not frames_texts(plain)
    tokenizer = add_task_tokens(plain)
    assert frames_texts(tokenizer)
    assert not frames_texts(plain), "the one that is given stays as it is"
    assert tokenizer.size == plain.size + 3
    start, delimiter, extract = ids = [tokenizer.backend.token_to_id(token) for token in TASK_TOKENS]
    assert ids == [plain.size, plain.size + 1, plain.size + 2]
    assert set(ids) < special_ids(tokenizer)
    left, right = (plain.encode_plain([text])[0].ids for text in ("a lamp", "the road"))
    (pair,) = tokenizer.encode([("a lamp", "the road")])
    assert pair.ids == [start, *left, delimiter, *right, extract]
    assert pair.second == len(left) + 2
    assert tokenizer.encode(["a lamp"])[0].ids == [start, *left, extract]
    assert Frame(tokenizer, pair=True).wrap(left, right).ids == pair.ids
    assert tokenizer.encode(["a lamp"], max_length=4)[0].ids == [start, *left[:2], extract]
    tokenizer.save(tmp_path)
    again, theirs = Tokenizer.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again is not None
    for text in TEXTS:
        wanted = tokenizer.encode([(text, "a road")])[0].ids
        assert again.encode([(text, "a road")])[0].ids == wanted
        assert theirs(text, "a road")["input_ids"] == wanted
        assert theirs(text)["input_ids"] == tokenizer.encode([text])[0].ids
    assert (theirs.cls_token, theirs.sep_token) == TASK_TOKENS[:2]
