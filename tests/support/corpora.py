"""Corpora whose every token is its own: id 5 + n is the n-th token, so a batch tells what it holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from bertree.batch import Batch
from bertree.data.store import Store
from bertree.data.store_files import ControlCode
from tests.support.memory_store import memory_store

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
CLS, SEP, MASK, FIRST = 2, 3, 4, 5
FORMATS = (
    "segment-pair",
    "segment-pair+nsp",
    "segment-pair+sop",
    "sentence-pair+nsp",
    "sentence-pair+sop",
    "full-sentences",
    "doc-sentences",
    "stream",
)
PAIRED = tuple(name for name in FORMATS if "pair" in name)

# Sentence lengths of each document; the last makes sure that there is a pair.
shapes = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=12).map(
    lambda documents: [*documents, [2, 2]]
)


@dataclass(frozen=True)
class Corpus:
    """A store with unique tokens, and where its sentences and documents lie."""

    store: Store
    sentence_of: NDArray[np.int64]  # of each token
    document_of: NDArray[np.int64]
    lengths: NDArray[np.int64]  # of each sentence


def corpus(
    shape: Sequence[Sequence[int]],
    shards: int = 1,
    word_start: NDArray[np.bool_] | None = None,
    prefixes: Sequence[Sequence[int]] = (),
) -> Corpus:
    """A corpus with these sentence lengths, its documents spread over some shards. With `prefixes` document n has the
    control code n modulo their number."""
    lengths = np.array([length for document in shape for length in document])
    counts = np.array([len(document) for document in shape])
    size = int(lengths.sum())
    numbers = iter(range(FIRST, FIRST + size))
    documents = [[[next(numbers) for _ in range(length)] for length in document] for document in shape]
    controls = [ControlCode(f"code {number}", tuple(prefix)) for number, prefix in enumerate(prefixes)]
    codes = [number % len(controls) for number in range(len(documents))] if controls else []
    bounds = [len(documents) * i // shards for i in range(shards + 1)]
    parts = [
        memory_store(
            documents[low:high],
            vocab_size=FIRST + size,
            special=SPECIAL,
            word_start=word_start,
            controls=controls,
            codes=codes[low:high],
        )
        for low, high in pairwise(bounds)
        if high > low
    ]
    store = replace(
        parts[0],
        tokens=size,
        sentences=lengths.size,
        documents=counts.size,
        shards=[shard for part in parts for shard in part.shards],
    )
    sentence_of = np.repeat(np.arange(lengths.size), lengths)
    return Corpus(store, sentence_of, np.repeat(np.arange(counts.size), counts)[sentence_of], lengths)


def long_store(tokens: int, vocab_size: int = 1000, words: float = 0.7, documents: int = 50) -> Store:
    """Random text for statistics: sentences of 5 to 40 tokens."""
    random = np.random.default_rng(1)
    lengths = random.integers(5, 41, tokens // 22)
    ids = np.split(random.integers(FIRST, vocab_size, int(lengths.sum())), np.cumsum(lengths)[:-1])
    cuts = np.linspace(0, len(ids), documents + 1).astype(int)
    texts = [[s.tolist() for s in ids[a:b]] for a, b in pairwise(cuts)]
    starts = random.random(vocab_size) < words
    return memory_store(texts, vocab_size=vocab_size, special=SPECIAL, word_start=starts)


def sequences(batch: Batch) -> Iterator[list[int]]:
    """The ids of each sequence."""
    for ids in batch.split(batch.ids):
        yield ids.tolist()


def same(left: Batch, right: Batch) -> bool:
    """Equal in every field."""
    for value, theirs in zip(left.leaves(), right.leaves(), strict=True):
        if value is None or isinstance(value, int):
            if value != theirs:
                return False
        elif theirs is None or value.dtype != theirs.dtype or value.tolist() != theirs.tolist():
            return False
    return True
