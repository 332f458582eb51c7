"""Permutation language modelling (XLNet): which tokens are predicted, and in which order.

In a sequence of n tokens, n // K are targets: spans of 1 to 5 words, each with a context K times as long around it. All
other tokens are context, which every token sees. Targets are ordered at random, and each is predicted from the context
and the targets before it. The order is one rank per token: context has the lowest, targets have distinct higher ones.
Separators and [CLS] have a rank like targets, but are not predicted. A part is a sequence, or a piece of one, with an
order of its own.

Every token is a target equally often, and each part has exactly the requested number of targets:

- Span lengths are drawn, p(n) = (1/n) / sum 1/k, until they add up to the number of targets; the last is shortened.
  The text is divided into blocks in proportion to them, and each span has a random position in its block. The text is
  treated as a ring, so no position is special; a span over the end of the text continues at its start.
- Spans then begin and end inside words. Two words that are covered in part exchange targets until one of them is
  covered completely or not at all, in a direction that leaves the expectation of both unchanged. This is repeated until
  at most one word of a part is covered in part.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertree import keyed_random
from bertree.batch import IGNORED, Permutation
from bertree.data.masking import Masking
from bertree.data.store import Store
from bertree.keyed_random import Bits, Ints

Flags = NDArray[np.bool_]


class OrderedParts(NamedTuple):
    """The parts of a packed batch, and how each is predicted."""

    bounds: Ints  # parts + 1
    counts: Ints  # targets of each part
    random: Bits  # random bits of each part, from which all its draws follow
    before: Ints | None = None  # number of the part that precedes it in the order and is visible to it, or -1


class Targets(NamedTuple):
    """What is predicted in a packed batch, and in which order."""

    positions: Ints  # of the targets
    ids: Ints  # of the targets
    ranks: NDArray[np.int32]  # of all tokens

    def permutation(self, bounds: Ints) -> Permutation:
        """Return the order for a batch whose sequences have these bounds."""
        edges = np.searchsorted(self.positions, bounds)
        return Permutation(
            ranks=torch.from_numpy(self.ranks),
            queries=torch.from_numpy(self.positions),
            cu_queries=torch.from_numpy(edges.astype(np.int32)),
            max_queries=int(np.diff(edges).max(initial=0)),
        )


class PermutationTargets:
    """Chooses targets and orders for the vocabulary of a store.

    Special tokens are never targets. Where a part has too few other tokens, some special tokens fill in with a label
    that no loss reads, so that the number of targets follows from the lengths alone.
    """

    def __init__(self, masking: Masking, store: Store) -> None:
        self._partial, self._spans = masking.partial, masking.spans
        self._ordinary = np.ones(store.vocab_size, np.bool_)
        self._ordinary[list(store.special.values())] = False
        self._functional = np.zeros(store.vocab_size, np.bool_)  # in the order, but not predicted
        self._functional[[store.special[kind] for kind in ("cls", "sep") if kind in store.special]] = True
        self._starts_word: Flags = np.asarray(store.word_start, np.bool_)

    def counts(self, bounds: Ints, even: bool = False) -> Ints:
        """Return how many targets sequences with these bounds have: n // K, at least 1.

        `even`: as many in total as one sequence of all tokens would have.
        """
        if even:
            return np.diff(bounds // self._partial)
        lengths = np.diff(bounds)
        return np.where(lengths > 0, np.maximum(lengths // self._partial, 1), 0)

    def draw(self, ids: Ints, bounds: Ints, counters: Ints, key: np.uint64) -> Bits:
        """Return random bits for each sequence: those of its first ordinary token, whose counter is unique."""
        ordinary = np.append(np.flatnonzero(self._ordinary.take(ids)), ids.size)
        first = np.minimum(ordinary[np.searchsorted(ordinary, bounds[:-1])], ids.size - 1)
        return keyed_random.bits(key, counters[first])

    def choose(self, ids: Ints, parts: OrderedParts, is_code: Flags | None = None) -> Targets:
        """Return the targets of the parts of a packed batch; tokens of control codes are context."""
        functional, ordinary = self._functional.take(ids), self._ordinary.take(ids)
        if is_code is not None:
            functional &= ~is_code
            ordinary &= ~is_code
        candidates = np.flatnonzero(ordinary)
        bounds = np.searchsorted(candidates, parts.bounds)
        counts = np.minimum(parts.counts, np.diff(bounds))
        starts_word = self._starts_word.take(ids.take(candidates))
        predicted = np.zeros(ids.size, np.bool_)
        predicted[candidates[choose_targets(starts_word, bounds, counts, parts.random, self._spans)]] = True
        for part in np.flatnonzero(counts < parts.counts):
            low, high = parts.bounds[part : part + 2]
            missing = int(parts.counts[part] - counts[part])
            predicted[low + np.flatnonzero(~ordinary[low:high])[:missing]] = True
        positions = np.flatnonzero(predicted)
        targets = np.where(ordinary[positions], ids[positions], IGNORED)
        return Targets(positions, targets, order_tokens(predicted | functional, parts))


def choose_targets(starts_word: Flags, bounds: Ints, counts: Ints, random: Bits, spans: int) -> Flags:
    """Return which tokens are targets: exactly `counts` tokens between each two `bounds`.

    `starts_word` says where words begin; with spans of 1 all targets are single tokens.
    """
    sizes = np.diff(bounds)
    chosen = np.zeros(starts_word.size, np.bool_)
    if not counts.any():
        return chosen
    words = starts_word
    if spans > 1:
        words = starts_word.copy()
        words[bounds[:-1][sizes > 0]] = True
    owner, lengths, before = _draw_lengths(words, bounds, counts, random, spans)
    size, count = sizes[owner], counts[owner]
    low, high = size * before // count, size * (before + lengths) // count
    draws = _draw("place", random, owner, before)
    rotation = keyed_random.uniform_below(_bits("rotation", random), np.maximum(sizes, 1))
    first = low + keyed_random.uniform_below(draws, np.maximum(high - low - lengths, 1)) + rotation[owner]
    tokens = keyed_random.concatenate_ranges(first, lengths) % np.repeat(size, lengths)
    chosen[tokens + np.repeat(bounds[:-1][owner], lengths)] = True
    if spans > 1:
        _round_to_words(chosen, words, bounds, random)
    return chosen


def order_tokens(ordered: Flags, parts: OrderedParts) -> NDArray[np.int32]:
    """Return the rank of each token: the `ordered` ones in random order, all others below them."""
    ranks = np.zeros(ordered.size, np.int32)
    positions = np.flatnonzero(ordered)
    counts = np.diff(np.searchsorted(positions, parts.bounds))
    owner = np.repeat(np.arange(counts.size), counts)
    draws = _draw("order", parts.random, owner, positions - parts.bounds[owner])
    shuffled = np.lexsort((draws, owner))
    ranks[positions[shuffled]] = 1 + np.arange(positions.size) - np.repeat(np.cumsum(counts) - counts, counts)
    if parts.before is not None:
        base = np.where(parts.before >= 0, counts[parts.before] + 1, 0)
        ranks += np.repeat(base, np.diff(parts.bounds)).astype(np.int32)
    return ranks


def _draw_lengths(words: Flags, bounds: Ints, counts: Ints, random: Bits, spans: int) -> tuple[Ints, Ints, Ints]:
    """Return the part of each span, its length in tokens, and the number of targets before it in its part.

    A length is drawn in words, and converted with the average number of tokens per word of the part.
    """
    owner = np.repeat(np.arange(counts.size), counts)
    number = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
    if spans == 1:
        return owner, np.ones_like(owner), number
    draws = _draw("length", random, owner, number)
    inverse = 1 / np.arange(1, spans + 1)
    lengths = np.ones_like(owner)
    for chance in (np.cumsum(inverse) / inverse.sum())[:-1]:
        lengths += draws >= keyed_random.threshold(float(chance))
    in_words = np.diff(keyed_random.cumulative_offsets(words.astype(np.int64))[bounds])
    if (in_words != np.diff(bounds)).any():
        per_word = np.maximum(in_words, 1)[owner]
        rest = keyed_random.uniform_below(_draw("rest", random, owner, number), per_word)
        lengths = (lengths * np.diff(bounds)[owner] + rest) // per_word
    total = np.cumsum(lengths)
    starts = np.cumsum(counts) - counts
    before = total - lengths - np.repeat(np.append(0, total)[starts], counts)
    used = before < counts[owner]
    owner, lengths, before = owner[used], lengths[used], before[used]
    return owner, np.minimum(lengths, counts[owner] - before), before


def _round_to_words(chosen: Flags, words: Flags, bounds: Ints, random: Bits) -> None:
    """Change which tokens are chosen so that complete words are; parts keep their counts and tokens their chances."""
    starts = np.flatnonzero(words)
    sizes = np.diff(np.append(starts, words.size))
    covered = np.add.reduceat(chosen, starts, dtype=np.int64)
    partial = np.flatnonzero((covered > 0) & (covered < sizes))
    if not partial.size:
        return
    sizes, covered, starts = sizes[partial], covered[partial], starts[partial]
    owner = np.searchsorted(bounds, starts, "right") - 1
    draws = _draw("exchange", random, owner, starts - bounds[owner])
    covered = _exchange(sizes, covered, owner, draws)
    # A word that stays covered in part has consecutive targets from a random token on.
    turn = keyed_random.uniform_below(_draw("turn", random, owner, starts - bounds[owner]), sizes)
    chosen[keyed_random.concatenate_ranges(starts, sizes)] = False
    within = keyed_random.concatenate_ranges(turn, covered) % np.repeat(sizes, covered)
    chosen[within + np.repeat(starts, covered)] = True


def _exchange(sizes: Ints, covered: Ints, owner: Ints, draws: Bits) -> Ints:
    """Return how many tokens of each word are covered after exchanges within each part: all or none, except in one."""
    covered = covered.copy()
    _, first, counts = np.unique(owner, return_index=True, return_counts=True)
    falling = np.argsort(-counts, kind="stable")
    first, counts = first[falling], counts[falling]
    open_ = first.copy()  # the word of each part that is still covered in part
    for step in range(1, int(counts[0])):
        active = int(np.searchsorted(-counts, -step, "left"))  # parts with more than `step` words
        word, partner = open_[:active], first[:active] + step
        up = np.minimum(sizes[word] - covered[word], covered[partner])
        down = np.minimum(covered[word], sizes[partner] - covered[partner])
        rises = keyed_random.uniform_below(draws[partner], up + down) < down
        moved = np.where(rises, up, -down)
        covered[word] += moved
        covered[partner] -= moved
        done = (covered[word] == 0) | (covered[word] == sizes[word])
        open_[:active] = np.where(done, partner, word)
    return covered


def _bits(name: str, random: Bits) -> Bits:
    return keyed_random.bits(keyed_random.key(name), random)


def _draw(name: str, random: Bits, owner: Ints, numbers: Ints) -> Bits:
    """Return 64 random bits for each number within its part."""
    return _bits(name, random[owner] + numbers.astype(np.uint64))
