"""Masking: hand-checked examples, what holds for any corpus, and statistics on a million tokens."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertree import keyed_random
from bertree.data.masking import Masker, Masking
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.errors import UserError
from tests.support.corpora import FIRST, FORMATS, MASK, SPECIAL, corpus, long_store, same, shapes
from tests.support.memory_store import memory_store
from tests.support.quick import example_count
from tests.support.shared import suite_has

# Words of the tiny store: 10 11+12+ 13 14+ 15 16 (a + goes on with the word before it).
PARTS = [11, 12, 14]
WORDS = [{10, 11, 12}, {13, 14}, {15}, {16}]


def tiny(masking: Masking, epoch: int = 0) -> tuple[list[int], dict[int, int]]:
    """The tiny store's one example: what the model sees, and what it must say where."""
    starts = np.ones(20, np.bool_)
    starts[PARTS] = False
    store = memory_store([[[10, 11, 12, 13, 14], [15, 16]]], vocab_size=20, special=SPECIAL, word_start=starts)
    batch = Stream(store, masking=masking, batch_tokens=64, max_length=16).example(0, epoch)
    return batch.ids.tolist(), dict(zip(batch.labels.masked.tolist(), batch.labels.targets.tolist(), strict=True))


def test_everything_masked() -> None:
    everything = {1: 10, 2: 11, 3: 12, 4: 13, 5: 14, 6: 15, 7: 16}
    for unit in ("token", "word", "ngram"):
        assert tiny(Masking(unit, rate=1.0, mask=1.0, random=0)) == ([2, 4, 4, 4, 4, 4, 4, 4, 3], everything)
        assert tiny(Masking(unit, rate=1.0, mask=0, random=0)) == ([2, *range(10, 17), 3], everything)
        ids, targets = tiny(Masking(unit, rate=1.0, mask=0, random=1.0))
        assert targets == everything
        assert all(5 <= token < 20 for token in ids[1:-1])
        assert ids[1:-1] != list(range(10, 17))


def test_at_least_one() -> None:
    seen = [tiny(Masking("token", rate=1e-9, mask=1.0, random=0), epoch)[1] for epoch in range(60)]
    assert {len(targets) for targets in seen} == {1}
    assert {place for targets in seen for place in targets} == set(range(1, 8))
    words = [set(tiny(Masking("word", rate=1e-9), epoch)[1].values()) for epoch in range(60)]
    assert all(word in WORDS for word in words)
    assert all(word in words for word in WORDS)


def test_golden_masks() -> None:
    """Drawn once and checked by hand; a change of any digit is a change of every run."""
    units = ("token", "word", "ngram")
    assert [tiny(Masking(unit, rate=0.3), epoch=4) for unit in units] == [
        ([2, 10, 11, 12, 4, 14, 15, 16, 3], {4: 13}),
        ([2, 10, 11, 12, 4, 14, 15, 16, 3], {4: 13, 5: 14}),  # its second part is kept
        ([2, 10, 11, 12, 4, 14, 4, 16, 3], {4: 13, 5: 14, 6: 15}),  # two words
    ]
    assert [tiny(Masking(unit, rate=0.3), epoch=6) for unit in units] == [
        ([2, 10, 4, 17, 13, 14, 15, 16, 3], {2: 11, 3: 12}),  # 17 is random
        ([2, 10, 4, 17, 13, 14, 15, 16, 3], {1: 10, 2: 11, 3: 12}),
        ([2, 10, 4, 17, 4, 14, 15, 16, 3], {1: 10, 2: 11, 3: 12, 4: 13, 5: 14}),
    ]


def test_words_and_ngrams_end_with_their_sequence() -> None:
    starts = np.ones(20, np.bool_)
    starts[PARTS] = False
    store = memory_store([[[10]]], vocab_size=20, special=SPECIAL, word_start=starts)
    ids, bounds = np.array([10, 11, 12, 14, 2, 14, 15]), np.array([0, 2, 7])  # 10+11 | 12+14 [CLS] 14 15
    places = np.array([0, 1, 2, 3, 5, 6])
    for unit, wanted in (("word", [0, 2, 4, 5]), ("ngram", [0, 2, 4])):
        masker = Masker(Masking(unit, ngram=9), store)
        # A key under which the n-gram that starts at token 5 is longer than one word.
        key = next(
            key
            for key in (keyed_random.key(n) for n in range(100))
            if unit == "word" or len(masker.span_starts(ids, places, bounds, np.arange(7), key)) == 3
        )
        assert masker.span_starts(ids, places, bounds, np.arange(7), key).tolist() == wanted


@example_count(120)
@given(
    shapes,
    st.sampled_from(FORMATS),
    st.sampled_from(["token", "word", "ngram"]),
    st.integers(8, 64),
    st.sampled_from([0.01, 0.15, 0.5]),
    st.booleans(),
    st.integers(0, 5),
)
def test_masks(
    shape: list[list[int]], name: str, unit: str, max_length: int, rate: float, fixed: bool, step: int
) -> None:
    size = sum(map(sum, shape)) + FIRST
    sample = corpus(shape, word_start=np.random.default_rng(0).random(size) < 0.6)
    common = {"format": name, "max_length": max_length, "batch_tokens": 3 * max_length, "fixed": fixed}
    plain = Stream(sample.store, masking=None, **common)[step]
    batch = Stream(sample.store, masking=Masking(unit, rate=rate), **common)[step]
    ids, shown = plain.ids.numpy(), batch.ids.numpy()
    masked = batch.labels.masked.numpy()
    assert (np.diff(masked) > 0).all()
    assert (ids[masked] == batch.labels.targets.numpy()).all()
    assert (ids[masked] >= FIRST).all(), "special tokens are never masked"
    others = np.delete(np.arange(ids.size), masked)
    assert (ids[others] == shown[others]).all()
    assert (shown[masked] >= MASK).all(), "random tokens are ordinary ones"
    assert batch.cu_seqlens.tolist() == plain.cu_seqlens.tolist()
    chosen = np.zeros(ids.size, np.bool_)
    chosen[masked] = True
    for low, high in itertools.pairwise(batch.cu_seqlens.tolist()):
        ordinary = ids[low:high] >= FIRST
        assert chosen[low:high].any() == ordinary.any(), "at least one a sequence"
        if unit != "token":
            for place in range(low + 1, high):
                joined = ids[place] >= FIRST and ids[place - 1] >= FIRST and not sample.store.word_start[ids[place]]
                assert not joined or chosen[place] == chosen[place - 1], "whole words"


@pytest.fixture(scope="module")
def million() -> Store:
    return long_store(1_000_000)


def read(store: Store, masking: Masking, **more: object) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Ids without masks, ids with them, masked places and targets over an epoch."""
    common = {"batch_tokens": 65536, "max_length": 512} | more
    plain = [batch.ids.numpy() for batch in Stream(store, masking=None, **common).one_epoch()]
    shown, masked, base = [], [], 0
    for batch in Stream(store, masking=masking, **common).one_epoch():
        shown.append(batch.ids.numpy())
        masked.append(batch.labels.masked.numpy() + base)
        base += shown[-1].size
    ids, places = np.concatenate(plain), np.concatenate(masked)
    return ids, np.concatenate(shown), places, ids[places]


def chi_square(counts: np.ndarray, chances: np.ndarray) -> float:
    """Distance of counts from what the chances say."""
    expected = counts.sum() * chances
    return float(((counts - expected) ** 2 / expected).sum())


# Quantiles of chi-square at 1 - 1e-5, by degrees of freedom.
LIMIT = {1: 19.5, 2: 23.0, 15: 50.5}


@pytest.mark.parametrize("unit", ["token", "word", "ngram"])
@pytest.mark.parametrize("rate", suite_has([0.4], [0.15, 0.4]))
def test_rate(million: Store, unit: str, rate: float) -> None:
    ids, _, masked, _ = read(million, Masking(unit, rate=rate))
    ordinary = int((ids >= FIRST).sum())
    assert ordinary > 950_000
    counts = np.array([masked.size, ordinary - masked.size])
    # Tokens of a word are masked together: the spread grows with the squared lengths of the spans.
    spread = {"token": 1.0, "word": 1.9, "ngram": 4.0}[unit]
    assert chi_square(counts, np.array([rate, 1 - rate])) / spread < LIMIT[1]


@pytest.mark.parametrize("unit", ["token", "word", "ngram"])
def test_shares(million: Store, unit: str) -> None:
    """80 % mask, 10 % random, 10 % kept; random ids are even over the ordinary vocabulary."""
    _, shown, masked, targets = read(million, Masking(unit))
    seen = shown[masked]
    to_mask, kept = int((seen == MASK).sum()), int((seen == targets).sum())
    lucky = 0.1 / (million.vocab_size - FIRST)  # a random token that is the true one counts as kept
    counts = np.array([to_mask, masked.size - to_mask - kept, kept])
    assert chi_square(counts, np.array([0.8, 0.1 - lucky, 0.1 + lucky])) < LIMIT[2]
    random = seen[(seen != MASK) & (seen != targets)]
    cells = np.histogram(random, bins=np.linspace(FIRST, million.vocab_size, 17))[0]
    widths = np.histogram(np.arange(FIRST, million.vocab_size), bins=np.linspace(FIRST, million.vocab_size, 17))[0]
    assert chi_square(cells, widths / widths.sum()) < LIMIT[15]


def test_other_shares(million: Store) -> None:
    _, shown, masked, targets = read(million, Masking(mask=0.5, random=0.5))
    assert abs(np.mean(shown[masked] == MASK) - 0.5) < 0.01
    assert np.mean(shown[masked] == targets) < 0.002


def test_masks_are_even_over_positions(million: Store) -> None:
    for unit in ("token", "ngram"):
        stream = Stream(million, masking=Masking(unit, rate=0.15), batch_tokens=65536, max_length=512)
        hits, all_ = np.zeros(16), np.zeros(16)
        for batch in stream.one_epoch():
            cells = np.minimum(batch.positions.numpy() // 32, 15)
            hits += np.bincount(cells[batch.labels.masked.numpy()], minlength=16)
            all_ += np.bincount(cells, minlength=16)
        spread = {"token": 1.0, "ngram": 4.0}[unit]
        assert chi_square(hits, all_ / all_.sum()) / spread < LIMIT[15]


def test_ngram_lengths(million: Store) -> None:
    """Lengths of the n-grams that are masked, in words: 6/11, 3/11, 2/11."""
    stream = Stream(million, format="stream", masking=None, batch_tokens=1_000_000, max_length=512, fixed=True)
    masker = Masker(Masking("ngram"), million)
    batch = stream[0]
    ids, bounds, counters = (
        batch.ids.numpy().copy(),
        batch.cu_seqlens.numpy().astype(np.int64),
        np.arange(1_000_000),
    )
    key = keyed_random.key("test")
    places = np.flatnonzero(masker.maskable[ids])
    starts = masker.span_starts(ids, places, bounds, counters, key)
    text = ids[places]
    begins = million.word_start[text].copy()
    begins[starts] = True  # a word cut by a sequence's start is a word
    words = np.add.reduceat(begins.astype(np.int64), starts)
    masked, _ = masker.apply(ids, bounds, counters, key)
    chosen = np.isin(places[starts], masked)
    counts = np.bincount(words[chosen], minlength=4)[1:]
    assert counts.size == 3
    assert counts.sum() > 60_000
    assert chi_square(counts, np.array([6, 3, 2]) / 11) < LIMIT[2]


def test_longer_ngrams_and_their_chances() -> None:
    assert Masking("ngram").ngram_chances().tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert Masking("ngram", ngram=1).ngram_chances().tolist() == [1.0]
    store = long_store(20_000)
    single, words = (
        Stream(store, masking=m, batch_tokens=8192, max_length=128)[0]
        for m in (Masking("ngram", ngram=1), Masking("word"))
    )
    assert same(single, words), "n-grams of one word are words"


def masks(stream: Stream, epoch: int) -> list[tuple]:
    """Every sequence of an epoch with its masks, in an order of their own."""
    drawn = []
    for batch in stream.one_epoch(epoch):
        marks = np.full(batch.ids.numel(), -1)
        marks[batch.labels.masked.numpy()] = batch.labels.targets.numpy()
        for low, high in itertools.pairwise(batch.cu_seqlens.tolist()):
            drawn.append((tuple(batch.ids[low:high].tolist()), tuple(marks[low:high])))
    return drawn


@pytest.mark.parametrize("chunk", [1 << 20, 256])  # one window, and several
@pytest.mark.parametrize("name", ["full-sentences", "segment-pair+nsp", "sentence-pair+sop"])
def test_static_masks_repeat_and_dynamic_ones_do_not(name: str, chunk: int, monkeypatch) -> None:
    monkeypatch.setattr("bertree.data.example_index.CHUNK_TOKENS", chunk)
    monkeypatch.setattr("bertree.data.stream.GROUP_CHUNKS", 3)
    sample = corpus([[7, 9, 5] * 6] * 20)
    common = {"format": name, "batch_tokens": 6400, "max_length": 64}  # large enough that nothing is torn
    static = Stream(sample.store, masking="token+static3", **common)
    epochs = [masks(static, epoch) for epoch in range(7)]
    for epoch in range(4):
        assert sorted(epochs[epoch]) == sorted(epochs[epoch + 3]), "the same examples"
        assert epochs[epoch] != epochs[epoch + 3], "in another order"
    dynamic = Stream(sample.store, masking="token", **common)
    fresh = [set(masks(dynamic, epoch)) for epoch in range(7)]
    for count in range(1, 8):  # epochs
        assert len({tuple(sorted(epoch)) for epoch in epochs[:count]}) == min(3, count), "static: N different masks"
        assert len({tuple(sorted(epoch)) for epoch in fresh[:count]}) == count, "dynamic: new ones in every epoch"
    for left, right in (*itertools.combinations(map(set, epochs[:3]), 2), *itertools.combinations(fresh, 2)):
        assert len(left & right) <= len(left) // 20  # two short sequences may agree by chance


def test_names() -> None:
    assert Masking.parse("word") == Masking("word")
    assert Masking.parse("ngram+static") == Masking("ngram", duplicates=10)
    assert Masking.parse("token+static4") == Masking("token", duplicates=4)
    assert Masking.parse("none") is None
    for wrong in ({"rate": 0}, {"rate": 1.5}, {"mask": 0.8, "random": 0.3}, {"duplicates": -1}, {"ngram": 0}):
        with pytest.raises(UserError, match="masking"):
            Masking(**wrong)


def test_next_tokens() -> None:
    assert tiny(Masking("next")) == ([2, *range(10, 17), 3], {0: 10, 1: 11, 2: 12, 3: 13, 4: 14, 5: 15, 6: 16, 7: 3})
    assert Masking("next").share == 1.0
    assert Masking("word", rate=0.2).share == 0.2
    with pytest.raises(UserError, match="draws no masks"):
        Masking.parse("next+static4")


def test_special_tokens_but_the_separator_are_not_predicted() -> None:
    unknown, mask = SPECIAL["unk"], SPECIAL["mask"]
    store = memory_store([[[10, unknown, 11, mask]]], vocab_size=20, special=SPECIAL)
    batch = Stream(store, masking="next", batch_tokens=64, max_length=16).example(0)
    assert batch.ids.tolist() == [2, 10, unknown, 11, mask, 3]
    assert dict(zip(batch.labels.masked.tolist(), batch.labels.targets.tolist(), strict=True)) == {0: 10, 2: 11, 4: 3}
    del store.special["mask"]  # nothing is masked, so none is needed
    assert Stream(store, masking="next", batch_tokens=64, max_length=16).example(0).labels.masked is not None


@example_count(30)
@given(shape=shapes, format=st.sampled_from(FORMATS), fixed=st.booleans(), step=st.integers(0, 9))
def test_next_tokens_of_any_batch(shape: list[list[int]], format: str, fixed: bool, step: int) -> None:
    store = corpus(shape).store
    stream, plain = (
        Stream(store, format=format, masking=masking, batch_tokens=64, max_length=16, fixed=fixed)
        for masking in ("next", None)
    )
    batch, same_text = stream[step], plain[step]
    assert torch.equal(batch.ids, same_text.ids)
    expected = []
    for low, high in itertools.pairwise(batch.cu_seqlens.tolist()):
        ids = batch.ids[low:high].tolist()
        expected += [(low + at, then) for at, then in enumerate(ids[1:]) if then == SPECIAL["sep"] or then >= FIRST]
    assert list(zip(batch.labels.masked.tolist(), batch.labels.targets.tolist(), strict=True)) == expected
