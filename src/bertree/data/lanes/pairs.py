"""Segments of pairs in lanes (XLNet): text that continues the step before, and two more texts behind it.

    forward    reused text | A [SEP] B [SEP] [CLS]
    backward   [CLS] [SEP] B [SEP] A | reused text

A follows the reused text, so the next step reuses it. B follows A, or comes from a random place of the text in half of
the cases; it starts with a sentence if one starts near. Only the reused text is remembered. A backward lane reads the
mirror image: its A stands before the reused text, its B before A.
"""

import numpy as np

from bertree import keyed_random
from bertree.data.lanes.line import Line
from bertree.data.lanes.segments import PairLayout, Segment
from bertree.errors import UserError
from bertree.keyed_random import Ints

SPECIAL = 3  # two separators and [CLS]
NEAR = 128  # tokens in which a random text looks for the start of a sentence


class PairReader:
    """Reads pairs from the line."""

    def __init__(self, line: Line, length: int, reuse: float) -> None:
        store = line.store
        missing = next((kind for kind in ("sep", "cls") if kind not in store.special), None)
        if missing:
            raise UserError(
                f"{store.folder or 'store'}: the vocabulary has no {missing} token, which lanes+pairs needs"
            )
        if not 0 < reuse < 1:
            raise UserError(f"reuse {reuse}: is the share of a segment that continues the last; give over 0, below 1")
        self._line, self._cls, self._sep = line, store.special["cls"], store.special["sep"]
        self.reused = max(1, int(length * reuse))  # tokens a step
        self.room = length - self.reused - SPECIAL  # of A and B
        if self.room < 2:
            raise UserError(f"length {length}: leaves no room for a pair beside {self.reused} reused tokens")

    @property
    def reads(self) -> int:
        """How many tokens of the line a segment reads."""
        return self.reused + self.room

    def read(self, epoch: int, place: int, elsewhere: int, fresh: bool, backward: bool, key: np.uint64) -> Segment:
        """Return the segment whose reused text starts at a place of the line. A random B is taken from the chunk that
        is at the place `elsewhere`. `key` is that of the segment's draws."""
        low = place - self.room if backward else place
        text = self._line.read(epoch, low, low + self.reads).ids
        places = np.arange(low, low + self.reads)
        draws = keyed_random.bits(key, np.arange(4))
        first = self.room if backward else 0  # of the reused text
        after = 0 if backward else self.reused  # of the others
        border = self._border(epoch, low + after, int(draws[0]))
        label = int(draws[1] >> np.uint64(63))
        sizes = (border, self.room - border)  # in the order of the text
        a_size, b_size = sizes[::-1] if backward else sizes
        parts = [(text[after : after + border], places[after : after + border])]
        parts.append((text[after + border : after + self.room], places[after + border : after + self.room]))
        a, b = parts[::-1] if backward else parts
        if label:
            start = self._random_place(epoch, elsewhere, b_size, draws[2:])
            b = (self._line.read(epoch, start, start + b_size).ids, np.arange(start, start + b_size))
        reused = (text[first : first + self.reused], places[first : first + self.reused])
        sep, cls = (np.array([self._sep]), np.array([-1])), (np.array([self._cls]), np.array([-1]))
        laid = [reused, a, sep, b, sep, cls]
        kinds = np.repeat([0, 0, 0, 1, 1, 2], [self.reused, a_size, 1, b_size, 1, 1])
        if backward:
            laid, kinds = laid[::-1], kinds[::-1].copy()
        ids, counters = (np.concatenate(arrays) for arrays in zip(*laid, strict=True))
        return Segment(ids, counters, fresh, backward, pair=PairLayout(kinds, self.reused, label))

    def _border(self, epoch: int, low: int, random: int) -> int:
        """Return how many tokens of the texts after `low` stand before the border between A and B: up to the start of
        a sentence, or half of them."""
        starts = self._line.sentence_starts(epoch, low + 1, low + self.room)
        return int(starts[random % starts.size]) - low if starts.size else self.room // 2

    def _random_place(self, epoch: int, elsewhere: int, size: int, draws: "keyed_random.Bits") -> int:
        _, start, end = self._line.chunk_at(epoch, elsewhere)
        drawn = start + int(keyed_random.uniform_below(draws[:1], end - start)[0])
        starts: Ints = self._line.sentence_starts(epoch, max(start, drawn - NEAR), drawn + 1)
        return min(int(starts[-1]) if starts.size else drawn, self._line.tokens - size)
