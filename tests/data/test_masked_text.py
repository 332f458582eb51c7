"""Masked text for evaluation: the same masked tokens for every length, every token once, BERT's shares of masks."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bertree.batch import Batch, PretrainingLabels
from bertree.data.held_out import MaskedDocuments
from bertree.data.store import Store
from bertree.errors import UserError
from bertree.text.identity import token_bytes, word_starts
from bertree.text.tokenizer import Tokenizer
from tests.support.corpora import SPECIAL
from tests.support.memory_store import memory_store


def restored(batches: list[Batch], special: dict[str, int]) -> tuple[list[int], list[int], list[int]]:
    """The text with its masked tokens put back, which tokens were masked, and what was seen instead of them."""
    text: list[int] = []
    masked: list[int] = []
    seen: list[int] = []
    for batch in batches:
        positions, targets = PretrainingLabels.of(batch).predicted
        seen += batch.ids[positions].tolist()
        ids = batch.ids.clone()
        ids[positions] = targets
        flags = torch.zeros_like(ids, dtype=torch.bool)
        flags[positions] = True
        kept = (batch.ids != special["cls"]) & (batch.ids != special["sep"])
        masked += (flags[kept].nonzero()[:, 0] + len(text)).tolist()
        text += ids[kept].tolist()
    return text, masked, seen


@pytest.fixture(scope="module")
def store() -> Store:
    rng = np.random.default_rng(0)
    documents = [[rng.integers(5, 200, size=rng.integers(1, 30)).tolist() for _ in range(9)] for _ in range(80)]
    return memory_store(documents, vocab_size=200, special=SPECIAL)


def test_masked_tokens_do_not_depend_on_the_length(store: Store) -> None:
    whole = restored(list(MaskedDocuments(store, max_length=512, tokens=10**9).one_epoch()), store.special)
    for length in (6, 17, 64):
        batches = list(MaskedDocuments(store, max_length=length, tokens=10**9, batch_tokens=100).one_epoch())
        assert restored(batches, store.special) == whole
        assert max(batch.max_seqlen for batch in batches) <= length
    text, masked, seen = whole
    assert len(text) == store.tokens, "every token once"
    assert 0.13 < len(masked) / len(text) < 0.17
    assert 0.76 < np.mean(np.array(seen) == store.special["mask"]) < 0.84
    unchanged = np.mean(np.array(seen) == np.array(text)[masked])
    assert 0.07 < unchanged < 0.13


def test_fewer_tokens_are_the_first_of_all(store: Store) -> None:
    text, masked, _ = restored(list(MaskedDocuments(store, max_length=64, tokens=10**9).one_epoch()), store.special)
    few_text, few_masked, _ = restored(
        list(MaskedDocuments(store, max_length=64, tokens=1000).one_epoch()), store.special
    )
    assert len(few_text) == 1000
    assert few_text == text[:1000]
    assert few_masked[:-3] == masked[: len(few_masked) - 3], "the last document, which is cut off, may differ"


def test_a_sequence_is_framed_and_counted_from_zero(store: Store) -> None:
    batch = next(MaskedDocuments(store, max_length=20, tokens=500).one_epoch())
    for first, last in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        assert batch.ids[first] == store.special["cls"]
        assert batch.ids[last - 1] == store.special["sep"]
        assert batch.positions[first:last].tolist() == list(range(last - first))


def test_too_short_sequences_are_refused(store: Store) -> None:
    with pytest.raises(UserError, match="max_length 5: too short"):
        MaskedDocuments(store, max_length=5, tokens=100)


def test_bytes_of_masked_tokens_count_their_text(token_store: Path) -> None:
    opened = Store.open(token_store)
    tokenizer = Tokenizer.load(token_store / "tokenizer")
    assert tokenizer is not None
    sizes = token_bytes(tokenizer, word_starts(tokenizer))
    ids = tokenizer.encode_plain(["under the sea"])[0].ids
    assert sizes[ids].sum() == len(" under the sea")
    text = MaskedDocuments(opened, max_length=32, tokens=2000)
    targets = [target for batch in text.one_epoch() for target in PretrainingLabels.of(batch).predicted[1].tolist()]
    assert text.target_bytes == sizes[targets].sum()
