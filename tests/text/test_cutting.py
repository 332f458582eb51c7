"""What is kept of a text or pair that is too long is what the tokenizers library keeps; what is dropped is counted."""

import random
from pathlib import Path

import pytest

from bertree.text import tokenizer_training
from bertree.text.tokenizer import Tokenizer

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "unaffable", "e-mails", "wait"]


@pytest.fixture(scope="module", params=["minilm", "wordpiece", "bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest, minilm: Path) -> Tokenizer:
    if request.param == "minilm":
        loaded = Tokenizer.load(minilm)
        assert loaded is not None
        return loaded
    return tokenizer_training.train(lambda: [" ".join(WORDS)] * 50, request.param, 300)


def test_the_same_is_kept_as_by_the_library(tokenizer: Tokenizer) -> None:
    source = random.Random(0)
    for _ in range(150):
        texts = [" ".join(source.choices(WORDS, k=source.randrange(25))) for _ in range(2)]
        pair = (texts[0], texts[1]) if source.random() < 0.8 else texts[0]
        limit = source.randrange(6, 40)
        (ours,) = tokenizer.encode([pair], max_length=limit)
        tokenizer.backend.enable_truncation(limit)
        try:
            theirs = tokenizer.backend.encode(*pair) if isinstance(pair, tuple) else tokenizer.backend.encode(pair)
        finally:
            tokenizer.backend.no_truncation()
        assert ours.ids == theirs.ids
        assert ours.segments == (theirs.type_ids if isinstance(pair, tuple) else None)
        assert ours.dropped == len(tokenizer.encode([pair])[0].ids) - len(ours.ids)
