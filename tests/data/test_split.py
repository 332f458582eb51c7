"""A store in two: nothing lost, nothing in both, whole documents, the same every time."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bertree.data.held_out import split_held_out
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.errors import UserError
from tests.support.corpora import FIRST, corpus, long_store, shapes
from tests.support.quick import example_count


def documents(store: Store) -> list[list[list[int]]]:
    """The tokens of each sentence of each document."""
    collected = []
    for shard in store.shards:
        sentences = [shard.tokens[a:b].tolist() for a, b in pairwise(shard.sentence_starts.tolist())]
        collected += [sentences[a:b] for a, b in pairwise(shard.document_starts.tolist())]
    return collected


@example_count(60)
@given(shape=shapes, shards=st.integers(1, 4), share=st.floats(0.01, 0.6))
def test_whole_documents_each_in_one_part(shape: list[list[int]], shards: int, share: float) -> None:
    sample = corpus(shape, shards)
    try:
        parts = split_held_out(sample.store, share)
    except UserError:
        assume(len(shape) > 4)  # fewer may be too few
        raise
    kept, held = (documents(part) for part in parts)
    assert sorted(kept + held) == sorted(documents(sample.store)), "nothing lost, nothing twice, nothing cut"
    assert held
    assert kept
    for part, content in zip(parts, (kept, held), strict=True):
        assert part.documents == len(content)
        assert part.sentences == sum(map(len, content))
        assert part.tokens == sum(len(sentence) for document in content for sentence in document)
        assert not part.complete
        assert part.vocab_size == sample.store.vocab_size
    longest = max(sum(document) for document in shape)
    # Text is held out from some of the shards only; of shards of a document or two that may be too little.
    few = min(shard.document_starts.size - 1 for shard in sample.store.shards) < 3
    assert few or abs(parts[1].tokens - share * sample.store.tokens) <= longest, "off by less than a document"


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3])
def test_the_share_is_right_and_spread(share: float) -> None:
    store = long_store(300_000, documents=900)
    kept, held = split_held_out(store, share)
    assert held.tokens / store.tokens == pytest.approx(share, rel=0.02)
    place = {str(document): number for number, document in enumerate(documents(store))}
    places = np.array([place[str(document)] for document in documents(held)])
    halves = (places < 450).mean()
    assert 0.4 < halves < 0.6, "from all over the corpus"
    again = split_held_out(store, share)
    assert documents(again[1]) == documents(held)
    assert [part.fingerprint for part in again] == [kept.fingerprint, held.fingerprint]
    assert (
        len({store.fingerprint, kept.fingerprint, held.fingerprint, split_held_out(store, share / 2)[1].fingerprint})
        == 4
    )


def test_batches_never_meet() -> None:
    sample = corpus([[7, 9, 4]] * 60, shards=3)
    parts = [
        Stream(part, masking=None, batch_tokens=200, max_length=50, format="segment-pair+nsp")
        for part in split_held_out(sample.store, 0.1)
    ]
    learned, measured = (
        {token for batch in part.one_epoch() for token in batch.ids.tolist() if token >= FIRST} for part in parts
    )
    assert not learned & measured
    assert len(learned | measured) > 0.9 * sample.store.tokens


def test_what_cannot_be_split() -> None:
    with pytest.raises(UserError, match=r"has one document.*data\.held_out"):
        split_held_out(corpus([[5, 5]]).store, 0.1)
    with pytest.raises(UserError, match="must lie between 0 and 1"):
        split_held_out(corpus([[5, 5]] * 9).store, 0.0)
