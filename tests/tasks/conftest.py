"""A tokenizer of each kind, small but trained on real text."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bertree.text import training
from bertree.text.tokenizer import Tokenizer
from tests.tasks.learnable import one_thread

BOOKS = Path(__file__).parents[2] / "corpus" / "books.txt"


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    text = BOOKS.read_text().split("\n\n")[:60]
    return {kind: training.train(lambda: text, kind, 600) for kind in ("wordpiece", "bpe", "unigram")}


@pytest.fixture(params=["wordpiece", "bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest, tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers[request.param]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Everything here is small."""
    with one_thread():
        yield
