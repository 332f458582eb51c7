"""Permutation targets: how many, which, in which order, and who sees whom."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bertree import keyed_random
from bertree.batch import IGNORED
from bertree.data.masking import Masking
from bertree.data.permutation import OrderedParts, PermutationTargets, Targets, choose_targets
from bertree.data.store import Store
from bertree.errors import UserError
from tests.support.memory_store import memory_store

Flags = NDArray[np.bool_]
TEXT = ["the", "cat", "sat", "on", "the", "mat", "[SEP]", "it", "was", "warm", "[SEP]", "[CLS]"]
WORDS = ["[SEP]", "[CLS]", "[UNK]", *sorted({word for word in TEXT if word[0] != "["})]


def store(words: list[str] = WORDS, starts: list[bool] | None = None) -> Store:
    """A store with this vocabulary; the first three are special."""
    flags = None if starts is None else np.array(starts)
    special = {"sep": 0, "cls": 1, "unk": 2}
    return memory_store([[[3]]], vocab_size=len(words), special=special, word_start=flags)


def random_bits(count: int, seed: int = 0) -> keyed_random.Bits:
    return keyed_random.bits(keyed_random.key(seed), np.arange(count))


def permute(ids: list[int], seed: int, partial: int = 3, spans: int = 5, among: Store | None = None) -> Targets:
    """The targets of one sequence."""
    maker = PermutationTargets(Masking("permutation", partial=partial, spans=spans), among or store())
    bounds = np.array([0, len(ids)])
    return maker.choose(np.array(ids), OrderedParts(bounds, maker.counts(bounds), random_bits(1, seed)))


def visible(targets: Targets) -> Flags:
    """What each target may see (m x t)."""
    return targets.ranks[None, :] < targets.ranks[targets.positions][:, None]


def authors_mask(places: Flags, functional: Flags, order: NDArray[np.int64]) -> Flags:
    """What each token may NOT see (t x t), as in the authors' `_local_perm`: `order` is where each token stands."""
    context = ~places & ~functional
    rank = np.where(context, -1, order)
    own = np.where(places, rank, rank + 1)
    return (own[:, None] <= rank[None, :]) & ~context[None, :]


GOLDEN = {
    # seed 2: targets sat, mat, was, warm; order [SEP] sat was warm [CLS] [SEP] mat
    2: (
        [2, 5, 8, 9],
        [0, 0, 2, 0, 0, 7, 1, 0, 3, 4, 6, 5],
        [
            "x x . x x . x x . . . .",  # sat: context and the first [SEP]
            "x x x x x . x x x x x x",  # mat: the last of all
            "x x x x x . x x . . . .",  # was: also sat
            "x x x x x . x x x . . .",  # warm: also was
        ],
    ),
    # seed 4: targets cat, sat, on, mat; order sat [SEP] [SEP] cat mat [CLS] on
    4: (
        [1, 2, 3, 5],
        [0, 4, 1, 7, 0, 5, 2, 0, 0, 0, 3, 6],
        [
            "x . x . x . x x x x x .",  # cat: sat and both [SEP]
            "x . . . x . . x x x . .",  # sat: context alone
            "x x x . x x x x x x x x",  # on: the last of all
            "x x x . x . x x x x x .",  # mat: also cat
        ],
    ),
}


@pytest.mark.parametrize("seed", GOLDEN)
def test_golden_examples(seed: int) -> None:
    places, ranks, grid = GOLDEN[seed]
    ids = [WORDS.index(word) for word in TEXT]
    permutation = permute(ids, seed)
    assert permutation.positions.tolist() == places
    assert permutation.ids.tolist() == [ids[place] for place in places]
    assert permutation.ranks.tolist() == ranks
    assert visible(permutation).tolist() == [[cell == "x" for cell in row.split(" ")] for row in grid]


sequences = st.lists(st.sampled_from(range(len(WORDS))), min_size=1, max_size=60)


@given(sequences, st.integers(0, 50), st.integers(1, 9), st.integers(1, 6))
def test_no_target_sees_itself_or_a_later_one(ids: list[int], seed: int, partial: int, spans: int) -> None:
    permutation = permute(ids, seed, partial, spans)
    assert permutation.positions.size == max(1, len(ids) // partial)
    assert (np.diff(permutation.positions) > 0).all()
    ordinary = np.array(ids) > 2
    real = ordinary[permutation.positions]
    assert real.sum() == min(ordinary.sum(), permutation.positions.size), (
        "special tokens stand in only for missing ones"
    )
    assert (permutation.ids == np.where(real, np.array(ids)[permutation.positions], IGNORED)).all()
    ordered = permutation.ranks > 0
    assert sorted(permutation.ranks[ordered]) == list(range(1, ordered.sum() + 1))
    assert ordered[permutation.positions].all()
    sees = visible(permutation)
    assert sees[:, ~ordered].all(), "context is seen by all"
    for row, place in enumerate(permutation.positions):
        assert not sees[row, place]
        assert not sees[row, permutation.ranks >= permutation.ranks[place]].any()


@given(sequences, st.integers(0, 50))
def test_ranks_say_what_the_authors_mask_says(ids: list[int], seed: int) -> None:
    permutation = permute(ids, seed)
    functional = np.isin(ids, (0, 1))
    predicted = np.zeros(len(ids), np.bool_)
    predicted[permutation.positions] = True
    predicted &= ~functional
    hidden = authors_mask(
        predicted, functional, np.where(permutation.ranks > 0, permutation.ranks, 99).astype(np.int64)
    )
    content = permutation.ranks[None, :] > permutation.ranks[:, None]
    query = permutation.ranks[None, :] >= permutation.ranks[:, None]
    # The authors' mask of targets is the query stream's; of the other tokens it is the content stream's. A target's
    # own token is added to what its content row sees.
    own = np.eye(len(ids), dtype=np.bool_)
    assert (np.where(predicted[:, None], query, content) == hidden).all()
    assert (content[predicted] == (hidden & ~own)[predicted]).all()


SHAPES = {
    "one token a word": (np.ones(40, np.bool_), 6, 5),
    "single tokens": (np.arange(40) % 2 == 0, 6, 1),
    "long words": (np.isin(np.arange(37), (0, 1, 5, 6, 7, 13, 14, 20, 21, 22, 30)), 6, 5),
    "few tokens": (np.isin(np.arange(7), (0, 3, 4)), 1, 5),
    "most tokens": (np.isin(np.arange(9), (0, 2, 5)), 7, 5),
    "a word that starts before the text": (np.isin(np.arange(20), (4, 9, 10)), 5, 3),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_token_is_a_target_equally_often(name: str) -> None:
    words, count, spans = SHAPES[name]
    parts, size = 6000, words.size
    bounds = np.arange(parts + 1) * size
    chosen = choose_targets(np.tile(words, parts), bounds, np.full(parts, count), random_bits(parts), spans)
    rows = chosen.reshape(parts, size)
    assert (rows.sum(1) == count).all()
    share = count / size
    error = np.sqrt(share * (1 - share) / parts)
    assert np.abs(rows.mean(0) - share).max() < 4.5 * error
    assert len({row.tobytes() for row in rows}) > size // 2, "parts differ"


def test_spans_are_whole_words_but_one() -> None:
    """And as long as drawn: 5 / (1 + 1/2 + ... + 1/5) words on average, shortened where the targets end."""
    draw = np.random.default_rng(0)
    parts, size, count = 200, 512, 85
    words = draw.random(parts * size) < 0.7
    bounds = np.arange(parts + 1) * size
    words[bounds[:-1]] = True
    chosen = choose_targets(words, bounds, np.full(parts, count), random_bits(parts), 5)
    starts = np.append(np.flatnonzero(words), words.size)
    covered = np.add.reduceat(chosen, starts[:-1], dtype=np.int64)
    partial = (covered > 0) & (covered < np.diff(starts))
    assert (np.bincount(starts[:-1][partial] // size, minlength=parts) <= 1).all()
    runs = np.diff(np.flatnonzero(np.diff(np.concatenate(([0], chosen.view(np.int8), [0])))))[::2]
    assert 1.5 < runs.mean() * 0.7 < 2.6, "words in a span"
    alone = choose_targets(words, bounds, np.full(parts, count), random_bits(parts), 1)
    assert (alone.reshape(parts, size).sum(1) == count).all()
    touching = (alone[1:] & alone[:-1]).mean()
    assert touching < 0.3 * (chosen[1:] & chosen[:-1]).mean()


def test_a_span_stands_in_a_context_k_times_as_long() -> None:
    """No two spans touch, and none is longer than asked for, where every token is a word."""
    parts, size, count = 300, 60, 10
    bounds = np.arange(parts + 1) * size
    words = np.ones(parts * size, np.bool_)
    rows = choose_targets(words, bounds, np.full(parts, count), random_bits(parts), 5).reshape(parts, size)
    for row in rows:
        turned = np.roll(row, -int(np.flatnonzero(~row)[0]))  # the text is a ring
        edges = np.flatnonzero(np.diff(turned.astype(np.int8), append=0))
        lengths = np.diff(edges)[::2]
        assert lengths.max() <= 5
        assert lengths.sum() == count
        gaps = np.diff(edges)[1::2]
        for (shorter, longer), gap in zip(pairwise(lengths), gaps, strict=True):
            assert 1 <= gap <= 5 * (shorter + longer) + 2


def test_orders_are_a_function_of_the_draws() -> None:
    ids = [WORDS.index(word) for word in TEXT] * 4
    first, again, other = permute(ids, 1), permute(ids, 1), permute(ids, 2)
    assert first.ranks.tolist() == again.ranks.tolist()
    assert first.ranks.tolist() != other.ranks.tolist()
    orders = {tuple(permute(ids, seed).ranks.tolist()) for seed in range(50)}
    assert len(orders) == 50


@pytest.mark.slow
def test_all_orders_of_targets_are_as_likely() -> None:
    ids = [3, 4, 5]
    orders: dict[tuple[int, ...], int] = {}
    for seed in range(1200):
        ranks = tuple(permute(ids, seed, partial=1).ranks.tolist())
        orders[ranks] = orders.get(ranks, 0) + 1
    assert len(orders) == 6
    assert max(orders.values()) - min(orders.values()) < 90


def test_a_part_that_sees_another_stands_above_it() -> None:
    maker = PermutationTargets(Masking("permutation", partial=2), store())
    ids = np.array([3, 4, 5, 6, 7, 8, 0, 3, 4, 1])
    for before, first, last in ([-1, 0], slice(0, 6), slice(6, 10)), ([1, -1], slice(6, 10), slice(0, 6)):
        parts = OrderedParts(np.array([0, 6, 10]), np.array([3, 1]), random_bits(2), np.array(before))
        ranks = maker.choose(ids, parts).ranks
        assert ranks[first].min() == 0
        assert ranks[first].max() < ranks[last].min()
        assert (ranks[last] == ranks[last].min()).any(), "context"


def test_even_counts_add_up() -> None:
    maker = PermutationTargets(Masking("permutation", partial=6), store())
    bounds = np.array([0, 5, 17, 17, 40, 41, 100])
    assert maker.counts(bounds).tolist() == [1, 2, 0, 3, 1, 9]
    assert maker.counts(bounds, even=True).sum() == 100 // 6


@pytest.mark.parametrize(("settings", "message"), [({"partial": 0}, "partial 0"), ({"spans": 0}, "spans 0")])
def test_impossible_settings(settings: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Masking("permutation", **settings)
