"""What a step reads of one lane (a segment), and how the segments of all lanes are packed into one batch.

A segment is plain text, or with `PairReader` a pair (XLNet): text that continues the step before, and two more texts.

    forward    reused text | A [SEP] B [SEP] [CLS]
    backward   [CLS] [SEP] B [SEP] A | reused text

A follows the reused text, so the next step reuses it. B follows A, or in half of the pairs it comes from near the text
of another lane; it starts at a sentence if one starts nearby. Only the reused text enters the memory. A backward lane
reads the mirror image: A comes before the reused text, and B before A.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertree import keyed_random
from bertree.batch import Continuation
from bertree.data.permutation import OrderedParts
from bertree.data.sequences.token_line import BLOCK, Flags, TokenLine
from bertree.errors import UserError
from bertree.keyed_random import Bits, Ints

SPECIAL_TOKENS = 3  # of a pair: two separators and [CLS]
NEARBY = 128  # tokens in which a random text looks for the start of a sentence


@dataclass(frozen=True)
class PairLayout:
    """Segment ids and label of a pair, and how many of its tokens enter the memory."""

    segments: Ints  # one per token
    reused: int  # tokens that enter the memory: the first ones, in a backward lane the last ones
    label: int  # 0: B follows A; 1: B is a random text


@dataclass(frozen=True, kw_only=True)
class Segment:
    """What a step reads of a lane, in the order of the text.

    It may contain several sequences. A backward lane reads them from the last to the first.
    """

    ids: Ints
    counters: Ints  # one per token, for its random draws
    fresh: bool  # the first sequence that is read starts without a memory
    backward: bool = False
    starts: tuple[int, ...] = (0,)  # of the sequences
    following: Ints | None = None  # the token that each token predicts as the next; -1: none
    is_code: Flags | None = None  # which tokens belong to control codes
    pair: PairLayout | None = None


@dataclass(frozen=True, kw_only=True)
class PackedSegments:
    """The segments of all lanes of this rank as one batch."""

    segments: Sequence[Segment]
    bounds: Ints  # sequences + 1
    lanes: Ints  # lane of each sequence
    offsets: Ints  # start of each sequence in its segment
    fresh: Flags  # whether each sequence starts without a memory

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> "PackedSegments":
        """Pack segments, one per lane: their sequences in the order in which they are read."""
        lanes, offsets, lengths, fresh = [], [], [], []
        for lane, segment in enumerate(segments):
            pieces = list(pairwise([*segment.starts, segment.ids.size]))
            for number, (low, high) in enumerate(reversed(pieces) if segment.backward else pieces):
                lanes.append(lane)
                offsets.append(low)
                lengths.append(high - low)
                fresh.append(segment.fresh or number > 0)
        bounds = keyed_random.cumulative_offsets(np.array(lengths))
        return cls(
            segments=segments,
            bounds=bounds,
            lanes=np.array(lanes),
            offsets=np.array(offsets),
            fresh=np.array(fresh),
        )

    def pack(self, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Concatenate one array per segment, in the order of the sequences."""
        joined = np.concatenate(arrays)
        if len(self.lanes) == len(self.segments):  # every segment is one sequence
            return joined
        bases = keyed_random.cumulative_offsets(np.array([array.size for array in arrays]))
        return joined[keyed_random.concatenate_ranges(bases[self.lanes] + self.offsets, np.diff(self.bounds))]

    @property
    def positions(self) -> Ints:
        """Position of each token in its sequence."""
        positions: Ints = np.arange(self.bounds[-1]) - np.repeat(self.bounds[:-1], np.diff(self.bounds))
        return positions

    @property
    def backward(self) -> Flags:
        """Which sequences belong to backward lanes."""
        return np.array([segment.backward for segment in self.segments])[self.lanes]

    def continuation(self, directed: bool) -> Continuation:
        """Return which sequences continue which lane; `directed`: some lanes run backwards."""
        kept = [segment.pair.reused for segment in self.segments if segment.pair is not None]
        return Continuation(
            torch.from_numpy(self.lanes),
            torch.from_numpy(self.fresh),
            len(self.segments),
            backward=torch.from_numpy(self.backward) if directed else None,
            kept=torch.tensor(kept) if kept else None,
        )


class PairReader:
    """Reads pairs from the line."""

    def __init__(self, line: TokenLine, length: int, reuse: float) -> None:
        store = line.store
        missing = next((kind for kind in ("sep", "cls") if kind not in store.special), None)
        if missing:
            raise UserError(f"{store.name}: the vocabulary has no {missing} token, which lanes+pairs needs")
        if not 0 < reuse < 1:
            raise UserError(f"reuse {reuse}: is the share of a segment that continues the last; give over 0, below 1")
        self._line, self._length = line, length
        cls, sep = store.special["cls"], store.special["sep"]
        self._middle, self._end = np.array([sep]), np.array([sep, cls])
        self.reused = max(1, int(length * reuse))  # tokens per step
        self.room = length - self.reused - SPECIAL_TOKENS  # of A and B
        if self.room < 2:
            raise UserError(
                f"reuse {reuse}: {self.reused} of {length} tokens are reused, which leaves no room for a pair; give a "
                "smaller share, or a larger length"
            )

    @property
    def reads(self) -> int:
        """How many tokens of the line a segment reads."""
        return self.reused + self.room

    def read(self, epoch: int, start: int, *, random_start: int, fresh: bool, backward: bool, draws: Bits) -> Segment:
        """Return the segment whose reused text starts at an offset of the line.

        A random B comes from near the offset `random_start`. `draws` are three random numbers of this segment.
        """
        low = start - self.room if backward else start
        piece = self._line.read(epoch, low, low + self.reads)
        assert piece.sentences is not None, "pairs need the starts of sentences"
        after = 0 if backward else self.reused  # start of A and B
        starts = np.flatnonzero(piece.sentences[after + 1 : after + self.room]) + 1
        border = int(starts[int(draws[0]) % starts.size]) if starts.size else self.room // 2
        left, right = piece.ids[after : after + border], piece.ids[after + border : after + self.room]
        a, b = (right, left) if backward else (left, right)
        reused = piece.ids[self.room :] if backward else piece.ids[: self.reused]
        label = int(draws[1] >> np.uint64(63))
        if label:
            b = self._random_text(epoch, random_start, b.size, int(draws[2]))
        segments = np.zeros(self._length, np.int64)
        segments[self.reused + a.size + 1 :] = 1
        segments[-1] = 2
        pieces = [reused, a, self._middle, b, self._end]
        if backward:
            pieces, segments = [self._end[::-1], *pieces[3:0:-1], reused], segments[::-1].copy()
        return Segment(
            ids=np.concatenate(pieces),
            counters=start * self._length + np.arange(self._length),
            fresh=fresh,
            backward=backward,
            pair=PairLayout(segments, self.reused, label),
        )

    def parts(self, bounds: Ints, backward: Flags, counts: Ints, random: Bits) -> OrderedParts:
        """Return two parts per segment, each with its own order: the reused text, and the pair, which sees all of it.

        `counts` are the targets of each segment, `random` the random bits of each part.
        """
        borders = bounds[:-1] + np.where(backward, self._length - self.reused, self.reused)
        share = counts * self.reused // self._length
        pair = np.where(backward, 0, 1)  # which of the two parts is the pair
        rows = np.arange(counts.size)
        targets = np.stack([share, share], 1)
        targets[rows, pair] = counts - share
        before = np.full_like(targets, -1)
        before[rows, pair] = 2 * rows + 1 - pair
        edges = np.append(np.stack([bounds[:-1], borders], 1).ravel(), bounds[-1])
        return OrderedParts(edges, targets.ravel(), random, before.ravel())

    def _random_text(self, epoch: int, random_start: int, size: int, random: int) -> Ints:
        """Return text from the block at an offset, which is in memory because a lane reads it."""
        start = min(random_start // BLOCK * BLOCK, self._line.tokens - size)
        room = max(1, min(BLOCK, self._line.tokens - start) - size)
        drawn = start + random % room
        low = max(start, drawn - NEARBY)
        piece = self._line.read(epoch, low, drawn + size)
        assert piece.sentences is not None, "pairs need the starts of sentences"
        starts = np.flatnonzero(piece.sentences[: drawn - low + 1])
        first = int(starts[-1]) if starts.size else drawn - low
        return piece.ids[first : first + size]
