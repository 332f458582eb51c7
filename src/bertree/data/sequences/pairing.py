"""Divide the examples of a pair format into two segments, A and B, and build the pairs of its sentence objective.

The end of A is drawn in every epoch, from the sentence borders inside the example. For SOP half of the pairs are
swapped. For NSP half of them exchange their B segments two by two, with partners from different documents: every token
is still seen once per epoch, where BERT draws B from anywhere and sees some texts twice. Both new pairs must stay
within the length limit, which decides the two divisions; if no two sentence borders fit, one sentence is divided (where
BERT truncates).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertree import keyed_random
from bertree.keyed_random import Ints

NO_LABEL = -100  # ignored by torch's losses
TRIES = 6  # random divisions per pair of partners
TURNS = 4  # rotations of the partners that do not fit


@dataclass(frozen=True)
class Borders:
    """Examples, and where each may be divided."""

    starts: Ints  # first token of each example
    contents: Ints  # length of each example
    offsets: Ints  # examples + 1: into `positions`
    positions: Ints  # of sentence borders, ascending

    @property
    def counts(self) -> Ints:
        """Number of borders in each example."""
        return np.diff(self.offsets)

    def draw(self, chosen: Ints, random: keyed_random.Bits) -> Ints:
        """Draw a random border in each of the chosen examples; the end of an example without borders."""
        counts = self.counts[chosen]
        picks = self.offsets[chosen] + keyed_random.uniform_below(random, counts)
        ends = self.starts[chosen] + self.contents[chosen]
        return np.where(counts > 0, self.positions[np.minimum(picks, self.positions.size - 1)], ends)

    def nearest(self, chosen: Ints, wanted: Ints) -> Ints:
        """Return the border nearest to the wanted position in each of the chosen examples (all have one)."""
        first, last = self.offsets[chosen], self.offsets[chosen + 1] - 1
        right = np.clip(np.searchsorted(self.positions, wanted), first, last)
        left = np.maximum(right - 1, first)
        closer = wanted - self.positions[left] <= self.positions[right] - wanted
        return self.positions[np.where(closer, left, right)]


@dataclass(kw_only=True)
class Pairs:
    """Where A and B of each example are. An example of one sentence has an empty B and no label."""

    first_starts: Ints
    first_lengths: Ints
    second_starts: Ints
    second_lengths: Ints
    labels: Ints  # 0: in order, 1: random next or swapped, NO_LABEL

    @classmethod
    def split_at(cls, borders: Borders, at: Ints) -> "Pairs":
        """Divide each example at a position; A and B stay in order."""
        ends = borders.starts + borders.contents
        labels = np.where(ends > at, 0, NO_LABEL)
        return cls(
            first_starts=borders.starts.copy(),
            first_lengths=at - borders.starts,
            second_starts=at,
            second_lengths=ends - at,
            labels=labels,
        )


def make_pairs(borders: Borders, documents: Ints, objective: str | None, room: int, key: np.uint64) -> Pairs:
    """Return the pairs of a shuffle group in corpus order."""
    at = draw_divisions(borders, keyed_random.key(int(key), "division"))
    if objective == "nsp":
        paired = np.flatnonzero(borders.counts > 0)
        left, right = choose_partners(paired, documents[paired], keyed_random.key(int(key), "partners"))
        right = divide_partners(borders, left, right, documents, room, at, keyed_random.key(int(key), "exchange"))
        pairs = Pairs.split_at(borders, at)
        for field in (pairs.second_starts, pairs.second_lengths):
            field[left], field[right] = field[right], field[left]
        pairs.labels[left] = pairs.labels[right] = 1
        return pairs
    pairs = Pairs.split_at(borders, at)
    if objective == "sop":
        paired = np.flatnonzero(pairs.labels == 0)
        random = keyed_random.bits(keyed_random.key(int(key), "swap"), np.arange(paired.size + 1))
        half = int(paired.size / 2 + int(random[-1]) / 2**64)  # of an odd number, rounded at random
        swapped = paired[np.argsort(random[:-1])[:half]]
        for a, b in ((pairs.first_starts, pairs.second_starts), (pairs.first_lengths, pairs.second_lengths)):
            a[swapped], b[swapped] = b[swapped], a[swapped]
        pairs.labels[swapped] = 1
    return pairs


def draw_divisions(borders: Borders, key: np.uint64) -> Ints:
    """Draw a division of every example."""
    chosen = np.arange(borders.starts.size)
    if borders.positions.size == 0:
        return borders.starts + borders.contents
    return borders.draw(chosen, keyed_random.bits(key, chosen))


def choose_partners(paired: Ints, documents: Ints, key: np.uint64) -> tuple[Ints, Ints]:
    """Choose half of the pairs, two by two from different documents (fewer if one document has nearly all)."""
    count = paired.size
    random = keyed_random.bits(key, np.arange(count + 1))
    wanted = 2 * int(count / 4 + int(random[-1]) / 2**64)  # half on average, even of a few
    order = np.argsort(random[:-1], kind="stable")
    names, sizes = np.unique(documents, return_counts=True)
    if wanted == 0 or names.size < 2:
        return paired[:0], paired[:0]
    largest = documents[order] == names[np.argmax(sizes)]
    inside, outside = order[largest], order[~largest]
    from_largest = min(int(largest[:wanted].sum()), wanted // 2)
    rest = min(wanted - from_largest, outside.size)
    chosen = np.concatenate((inside[: min(from_largest, rest)], outside[:rest]))
    # Another document may still have more than half of the chosen pairs: its surplus stays in order.
    names, numbers, sizes = np.unique(documents[chosen], return_inverse=True, return_counts=True)
    surplus = max(int(2 * sizes.max()) - chosen.size, chosen.size % 2)
    dropped = np.flatnonzero(numbers == int(np.argmax(sizes)))[:surplus]
    chosen, numbers = np.delete(chosen, dropped), np.delete(numbers, dropped)
    # Sorted by document, and no document has more than half: the pair half a list further is of another document.
    scattered = keyed_random.bits(key, numbers + count + 1)
    chosen = paired[chosen[np.lexsort((random[chosen], scattered))]]
    return chosen[: chosen.size // 2], chosen[chosen.size // 2 :]


def divide_partners(
    borders: Borders, left: Ints, right: Ints, documents: Ints, room: int, at: Ints, key: np.uint64
) -> Ints:
    """Divide the partners (in `at`) so that both fit after exchanging their second segments.

    If no two sentence borders fit, partners are rotated among the remaining pairs; those that remain are divided inside
    a sentence. Return the final right partners.
    """
    right = right.copy()
    open_ = np.arange(left.size)
    for turn in range(TURNS):
        fits = _try_divisions(borders, left[open_], right[open_], room, at, keyed_random.key(int(key), turn))
        open_ = open_[~fits]
        rotated = np.roll(right[open_], 1)
        if open_.size < 2 or (documents[left[open_]] == documents[rotated]).any():
            return right
        if turn < TURNS - 1:
            right[open_] = rotated
    return right


def _try_divisions(borders: Borders, left: Ints, right: Ints, room: int, at: Ints, key: np.uint64) -> NDArray[np.bool_]:
    """Try some divisions of each pair of partners; return whether both divisions are on sentence borders."""
    left_starts, right_starts = borders.starts[left], borders.starts[right]
    # With lengths a + b and c + d: a + d <= room and c + b <= room bound c from both sides.
    left_spare, right_spare = room - borders.contents[left], room - borders.contents[right]
    fits = np.zeros(left.size, np.bool_)
    open_ = np.arange(left.size)
    for attempt in range(TRIES):
        random = keyed_random.bits(key, open_ * TRIES + attempt)
        division = borders.draw(left[open_], random) - left_starts[open_]
        low = np.maximum(division - right_spare[open_], 1)
        high = np.minimum(division + left_spare[open_], borders.contents[right[open_]] - 1)
        nearest = borders.nearest(right[open_], right_starts[open_] + division) - right_starts[open_]
        at[left[open_]] = division + left_starts[open_]
        at[right[open_]] = np.clip(nearest, low, high) + right_starts[open_]
        fits[open_] = (low <= nearest) & (nearest <= high)
        open_ = open_[~fits[open_]]
        if not open_.size:
            break
    return fits
