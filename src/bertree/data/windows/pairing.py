"""Divide the examples of a pair format into two segments, and make the pairs of its sentence objective.

Where A ends is drawn anew in every epoch, from the sentence borders inside the example. For SOP half of the pairs are
swapped. For NSP half of them exchange their B segments two by two, with partners from different documents: so every
token is still seen once per epoch, where BERT draws B from anywhere and sees some texts twice. Both new pairs must stay
within the limit, which decides the two places of division; if no two sentence borders fit, one sentence is divided
(where BERT truncates).

Shape letters: e examples of a window, p pairs among them, n pairs that exchange (in two halves).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertree import keyed_random
from bertree.keyed_random import Ints

NO_LABEL = -100  # ignored by torch's losses
TRIES, TURNS = 6, 4


@dataclass(frozen=True)
class Borders:
    """Examples (starts, contents: e) and the places where each may be divided (`places`, ascending)."""

    starts: Ints
    contents: Ints
    offsets: Ints  # e + 1
    places: Ints

    @property
    def counts(self) -> Ints:
        """Number of places in each example."""
        return np.diff(self.offsets)

    def draw(self, chosen: Ints, random: keyed_random.Bits) -> Ints:
        """Draw a random place in each of the chosen examples; the end of an example without places."""
        counts = self.counts[chosen]
        picks = self.offsets[chosen] + keyed_random.uniform_below(random, counts)
        ends = self.starts[chosen] + self.contents[chosen]
        return np.where(counts > 0, self.places[np.minimum(picks, self.places.size - 1)], ends)

    def nearest(self, chosen: Ints, wanted: Ints) -> Ints:
        """Return the place nearest to the wanted one in each of the chosen examples (all have one)."""
        first, last = self.offsets[chosen], self.offsets[chosen + 1] - 1
        right = np.clip(np.searchsorted(self.places, wanted), first, last)
        left = np.maximum(right - 1, first)
        closer = wanted - self.places[left] <= self.places[right] - wanted
        return self.places[np.where(closer, left, right)]


@dataclass
class Pairs:
    """Where A and B of each example lie. An example of one sentence has an empty B and no label."""

    first_starts: Ints  # e
    first_lengths: Ints
    second_starts: Ints
    second_lengths: Ints
    labels: Ints  # 0: in order, 1: random next or swapped, NO_LABEL

    @classmethod
    def split_at(cls, borders: Borders, at: Ints) -> "Pairs":
        """Divide each example at its place, in order."""
        ends = borders.starts + borders.contents
        labels = np.where(ends > at, 0, NO_LABEL)
        return cls(borders.starts.copy(), at - borders.starts, at, ends - at, labels)


def make_pairs(borders: Borders, documents: Ints, objective: str | None, room: int, key: np.uint64) -> Pairs:
    """Return the pairs of a window in corpus order."""
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
        for one, other in (
            (pairs.first_starts, pairs.second_starts),
            (pairs.first_lengths, pairs.second_lengths),
        ):
            one[swapped], other[swapped] = other[swapped], one[swapped]
        pairs.labels[swapped] = 1
    return pairs


def draw_divisions(borders: Borders, key: np.uint64) -> Ints:
    """Draw a division of every example."""
    chosen = np.arange(borders.starts.size)
    if borders.places.size == 0:
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
    taken = min(int(largest[:wanted].sum()), wanted // 2)
    rest = min(wanted - taken, outside.size)
    chosen = np.concatenate((inside[: min(taken, rest)], outside[:rest]))
    # Another document may still have more than half of the chosen: its surplus stays in order.
    names, numbers, sizes = np.unique(documents[chosen], return_inverse=True, return_counts=True)
    surplus = max(int(2 * sizes.max()) - chosen.size, chosen.size % 2)
    chosen, numbers = _drop_surplus(chosen, numbers, int(np.argmax(sizes)), surplus)
    # Sorted by document, and no document has more than half: the one half a list further is another document.
    scattered = keyed_random.bits(key, numbers + count + 1)
    chosen = paired[chosen[np.lexsort((random[chosen], scattered))]]
    return chosen[: chosen.size // 2], chosen[chosen.size // 2 :]


def _drop_surplus(chosen: Ints, numbers: Ints, document: int, surplus: int) -> tuple[Ints, Ints]:
    dropped = np.flatnonzero(numbers == document)[:surplus]
    return np.delete(chosen, dropped), np.delete(numbers, dropped)


def divide_partners(
    borders: Borders, left: Ints, right: Ints, documents: Ints, room: int, at: Ints, key: np.uint64
) -> Ints:
    """Divide the partners (in `at`) so that both fit after exchanging their second segments.

    If no two sentence borders fit, partners are rotated among the remaining pairs; what then remains is divided inside
    a sentence. Return the final right partners.
    """
    right = right.copy()
    open_ = np.arange(left.size)
    for turn in range(TURNS):
        fits = _try_divisions(borders, left[open_], right[open_], room, at, keyed_random.key(int(key), turn))
        open_ = open_[~fits]
        passed = np.roll(right[open_], 1)
        if open_.size < 2 or (documents[left[open_]] == documents[passed]).any():
            return right
        if turn < TURNS - 1:
            right[open_] = passed
    return right


def _try_divisions(borders: Borders, left: Ints, right: Ints, room: int, at: Ints, key: np.uint64) -> NDArray[np.bool_]:
    """Try some places for each; return whether both of a pair lie on sentence borders."""
    starts, others = borders.starts[left], borders.starts[right]
    # With lengths a + b and c + d: a + d <= room and c + b <= room bound c from both sides.
    spare, other_spare = room - borders.contents[left], room - borders.contents[right]
    fits = np.zeros(left.size, np.bool_)
    open_ = np.arange(left.size)
    for attempt in range(TRIES):
        random = keyed_random.bits(key, open_ * TRIES + attempt)
        one = borders.draw(left[open_], random) - starts[open_]
        low = np.maximum(one - other_spare[open_], 1)
        high = np.minimum(one + spare[open_], borders.contents[right[open_]] - 1)
        found = borders.nearest(right[open_], others[open_] + one) - others[open_]
        at[left[open_]] = one + starts[open_]
        at[right[open_]] = np.clip(found, low, high) + others[open_]
        fits[open_] = (low <= found) & (found <= high)
        open_ = open_[~fits[open_]]
        if not open_.size:
            break
    return fits
