"""What a step reads of one lane, and how the segments of all lanes become one packed stream.

Shape letters: t tokens, s sequences.
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
from bertree.keyed_random import Ints

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class PairLayout:
    """Text that is remembered, and two texts beside it that are not."""

    segments: Ints  # t
    reused: int  # tokens that are remembered: the first ones, in a backward lane the last ones
    label: int  # 0: the second text follows the first; 1: it comes from elsewhere


@dataclass(frozen=True)
class Segment:
    """What a step reads of a lane, in the order of the text.

    It may have several sequences. A lane that runs backwards reads them from the last to the first."""

    ids: Ints  # t
    counters: Ints  # t: numbers for random draws
    fresh: bool  # the first sequence that is read starts without a memory
    backward: bool = False
    starts: tuple[int, ...] = (0,)  # of the sequences
    following: Ints | None = None  # t: the token that each predicts as the next; -1: none
    given: Flags | None = None  # t: tokens of control codes
    pair: PairLayout | None = None


@dataclass(frozen=True)
class PackedSegments:
    """The segments of some lanes as one stream."""

    segments: Sequence[Segment]
    bounds: Ints  # s + 1
    lanes: Ints  # s: the lane of each sequence
    offsets: Ints  # s: place of the sequence in its segment
    fresh: Flags  # s

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> "PackedSegments":
        """Pack segments, one of each lane: their sequences in the order in which they are read."""
        lanes, offsets, lengths, fresh = [], [], [], []
        for lane, segment in enumerate(segments):
            pieces = list(pairwise([*segment.starts, segment.ids.size]))
            for number, (low, high) in enumerate(reversed(pieces) if segment.backward else pieces):
                lanes.append(lane)
                offsets.append(low)
                lengths.append(high - low)
                fresh.append(segment.fresh or number > 0)
        bounds = keyed_random.cumulative_offsets(np.array(lengths))
        return cls(segments, bounds, np.array(lanes), np.array(offsets), np.array(fresh))

    def pack(self, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return what each segment has for its tokens, in the order of the stream."""
        whole = np.concatenate(arrays)
        if len(self.lanes) == len(self.segments):  # every segment is one sequence
            return whole
        bases = keyed_random.cumulative_offsets(np.array([array.size for array in arrays]))
        return whole[keyed_random.concatenate_ranges(bases[self.lanes] + self.offsets, np.diff(self.bounds))]

    @property
    def positions(self) -> Ints:
        """Position of each token in its sequence (t)."""
        found: Ints = np.arange(self.bounds[-1]) - np.repeat(self.bounds[:-1], np.diff(self.bounds))
        return found

    @property
    def backward(self) -> Flags:
        """Which sequences belong to lanes that run backwards (s)."""
        return np.array([segment.backward for segment in self.segments])[self.lanes]

    def continuation(self, directed: bool) -> Continuation:
        """Return how the sequences continue; `directed`: some lanes run backwards."""
        kept = [segment.pair.reused for segment in self.segments if segment.pair is not None]
        return Continuation(
            torch.from_numpy(self.lanes),
            torch.from_numpy(self.fresh),
            len(self.segments),
            backward=torch.from_numpy(self.backward) if directed else None,
            kept=torch.tensor(kept) if kept else None,
        )
