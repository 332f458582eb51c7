"""Segments of pairs in lanes (XLNet): text that continues the step before, and two more texts behind it.

    forward    reused text | A [SEP] B [SEP] [CLS]
    backward   [CLS] [SEP] B [SEP] A | reused text

A follows the reused text, so the next step reuses it. B follows A, or in half of the cases comes from text near to what
another lane reads; it starts with a sentence if one starts near. Only the reused text is remembered. A backward lane
reads the mirror image: its A stands before the reused text, its B before A.
"""

import numpy as np

from bertree.data.lanes.line import BLOCK, Line
from bertree.data.lanes.segments import Flags, PairLayout, Segment
from bertree.data.permutation import Parts
from bertree.errors import UserError
from bertree.keyed_random import Bits, Ints

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
        self._line, self._length = line, length
        cls, sep = store.special["cls"], store.special["sep"]
        self._middle, self._end = np.array([sep]), np.array([sep, cls])
        self.reused = max(1, int(length * reuse))  # tokens a step
        self.room = length - self.reused - SPECIAL  # of A and B
        if self.room < 2:
            raise UserError(
                f"reuse {reuse}: {self.reused} of {length} tokens are reused, which leaves no room for a pair; give a "
                "smaller share, or a larger length"
            )

    @property
    def reads(self) -> int:
        """How many tokens of the line a segment reads."""
        return self.reused + self.room

    def read(self, epoch: int, place: int, elsewhere: int, fresh: bool, backward: bool, draws: Bits) -> Segment:
        """Return the segment whose reused text starts at a place of the line. A random B is taken from near the place
        `elsewhere`. `draws` (3) are the segment's own."""
        low = place - self.room if backward else place
        piece = self._line.read(epoch, low, low + self.reads)
        assert piece.sentences is not None, "pairs need to know where sentences start"
        after = 0 if backward else self.reused  # of A and B
        starts = np.flatnonzero(piece.sentences[after + 1 : after + self.room]) + 1
        border = int(starts[int(draws[0]) % starts.size]) if starts.size else self.room // 2
        one, other = piece.ids[after : after + border], piece.ids[after + border : after + self.room]
        a, b = (other, one) if backward else (one, other)
        reused = piece.ids[self.room :] if backward else piece.ids[: self.reused]
        label = int(draws[1] >> np.uint64(63))
        if label:
            b = self._random_text(epoch, elsewhere, b.size, int(draws[2]))
        kinds = np.zeros(self._length, np.int64)
        kinds[self.reused + a.size + 1 :] = 1
        kinds[-1] = 2
        parts = [reused, a, self._middle, b, self._end]
        if backward:
            parts, kinds = [self._end[::-1], *parts[3:0:-1], reused], kinds[::-1].copy()
        ids = np.concatenate(parts)
        counters = place * self._length + np.arange(self._length)
        return Segment(ids, counters, fresh, backward, pair=PairLayout(kinds, self.reused, label))

    def parts(self, bounds: Ints, backward: Flags, counts: Ints, random: Bits) -> Parts:
        """Return the parts of s segments with an order of their own: the reused text, and the pair, which sees all of
        it. `counts` (s) are the targets of the segments, `random` (2 s) the bits of the parts."""
        borders = bounds[:-1] + np.where(backward, self._length - self.reused, self.reused)
        share = counts * self.reused // self._length
        pair = np.where(backward, 0, 1)  # which of the two parts is the pair
        rows = np.arange(counts.size)
        targets = np.stack([share, share], 1)
        targets[rows, pair] = counts - share
        before = np.full_like(targets, -1)
        before[rows, pair] = 2 * rows + 1 - pair
        edges = np.append(np.stack([bounds[:-1], borders], 1).ravel(), bounds[-1])
        return Parts(edges, targets.ravel(), random, before.ravel())

    def _random_text(self, epoch: int, elsewhere: int, size: int, random: int) -> Ints:
        """Return some text of the block at a place, which a lane has in memory."""
        start = min(elsewhere // BLOCK * BLOCK, self._line.tokens - size)
        room = max(1, min(BLOCK, self._line.tokens - start) - size)
        drawn = start + random % room
        low = max(start, drawn - NEAR)
        piece = self._line.read(epoch, low, drawn + size)
        assert piece.sentences is not None, "pairs need to know where sentences start"
        starts = np.flatnonzero(piece.sentences[: drawn - low + 1])
        first = int(starts[-1]) if starts.size else drawn - low
        return piece.ids[first : first + size]
