"""The lanes stream: batches that continue each other, for models with a state.

An epoch is one long line of tokens: the chunks of the index in random order, each with its documents in the order of
the corpus and a separator after each. The line is divided into `lanes` equal lanes. Step k reads the next `length`
tokens of every lane, and of each the token after them as the last target: lane i of step k continues lane i of step
k - 1, so a model may keep what it has read of it. At the start of an epoch all lanes are fresh. A batch is a pure
function of the seed and the step.

With `documents`, a lane is also fresh wherever the text does not continue: at the first token of a document and of a
chunk. A sequence ends there, so that nothing is seen or predicted across. Otherwise texts follow each other as they
stand, and only the separator tells.

With `backward`, every second lane runs through its text from the end to the start. Each of its segments is in the
order of the text, and what the lane has read stands after it.

With `reuse`, segments are pairs (`pairs.py`), of which a share continues the step before.

With control codes a document begins with its code, and every lane that is inside a document at the start of a step
reads the code again before it goes on. So a step reads fewer tokens of the line: `length` less the longest code.
"""

from collections.abc import Iterator
from math import ceil
from pathlib import Path

import numpy as np
import torch

from bertree import keyed_random
from bertree.batch import Batch, PretrainingLabels
from bertree.data.lanes.line import Flags, Line
from bertree.data.lanes.pairs import PairReader
from bertree.data.lanes.segments import PackedSegments, Segment
from bertree.data.masking import UNMASKED, Masking, NextTokenTargets, target_maker
from bertree.data.permutation import Parts, PermutationTargets
from bertree.data.store import Store
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.keyed_random import Ints


class LaneStream:
    """Endless batches from a token store, each of which continues the one before it."""

    def __init__(
        self,
        store: Store | Path | str,
        *,
        lanes: int,
        length: int,
        seed: int = 0,
        masking: str | Masking = "next",
        documents: bool = False,
        backward: bool = False,
        reuse: float = 0.0,
        rank: int = 0,
        world: int = 1,
        fixed: bool = False,
    ) -> None:
        """`lanes` is how many a whole batch has, of which rank r of `world` reads its part; `length` is how many tokens
        of each lane a step reads. `reuse`: segments are pairs, of which this share continues the step before; 0: they
        are plain text. `fixed`: every step has the same size; what is left of an epoch is not read."""
        self.store = store if isinstance(store, Store) else Store.open(store)
        self.seed, self.length, self.fixed, self.backward = seed, length, fixed, backward
        self.documents = documents or bool(self.store.controls)
        found = Masking.parse(masking)
        assert found is not None, "lanes are read to learn from"
        self.masking = found
        self._check(lanes, rank, world, bool(reuse))
        self.all_lanes, self._world = lanes, world
        self._lanes = range(rank * lanes // world, (rank + 1) * lanes // world)
        self.line = Line(self.store, seed, len(self._lanes), sentences=bool(reuse))
        self._pairs = PairReader(self.line, length, reuse) if reuse else None
        self._stride = self._pairs.reused if self._pairs else length - self.store.prefixes.longest
        self.index, self.epoch_tokens = self.line.index, self.line.tokens  # separators and control codes included
        self._lane_tokens = self.epoch_tokens // lanes
        if self._lane_tokens <= length:
            raise UserError(
                f"{self.store.folder or 'store'}: has {self.epoch_tokens:,} tokens, too few for {lanes} lanes of more "
                f"than {length}; give fewer lanes, or a smaller length"
            )
        self.batch_tokens, self.max_length = lanes * length, length
        self._predicted = NextTokenTargets(self.store).predicted
        self._permuted = PermutationTargets(found, self.store) if found.unit == "permutation" else None
        self._masks = target_maker(found, self.store) if found.unit not in UNMASKED else None

    def _check(self, lanes: int, rank: int, world: int, paired: bool) -> None:
        where = self.store.folder or "store"
        if not 0 <= rank < world:
            raise UserError(f"rank {rank} of {world}: ranks go from 0 to {world - 1}")
        if lanes < world or self.length < 1:
            raise UserError(f"lanes {lanes}, length {self.length}: give {world} lanes or more, and 1 token or more")
        if self.documents and "sep" not in self.store.special:
            raise UserError(
                f"{where}: the vocabulary has no token that ends a text, so lanes cannot start at documents"
            )
        longest = self.store.prefixes.longest
        if self.length <= 2 * longest:
            raise UserError(f"{where}: its longest control code has {longest} tokens; give a length over {2 * longest}")
        if longest and (self.backward or paired):
            raise UserError(
                f"{where}: has control codes, which stand before the text; its lanes cannot run backwards or have pairs"
            )
        if self.documents and paired:
            raise UserError("lanes of pairs do not start at documents; leave out documents or pairs")
        if self.masking.unit == "next" and (self.backward or paired):
            raise UserError("masking 'next': predicts forwards alone; lanes that run backwards and pairs need another")
        if self.masking.duplicates:
            raise UserError("masking: '+static' has no effect in lanes; leave it out")

    @property
    def lanes(self) -> int:
        """How many lanes this rank reads."""
        return len(self._lanes)

    @property
    def identity(self) -> Json:
        """What must be the same when a run is resumed, by names for people."""
        return {
            "number of lanes": self.all_lanes,
            "number of micro-batches of lanes": self._world,
            "length of lanes in a step": self.length,
            "treatment of documents in lanes": "fresh" if self.documents else "continued",
        }

    @property
    def steps_per_epoch(self) -> int:
        """Steps that read an epoch; the last may be shorter."""
        if self._pairs:
            return (self._lane_tokens - self._pairs.reads) // self._stride + 1
        return self._lane_tokens // self._stride if self.fixed else ceil(self._lane_tokens / self._stride)

    def epoch_at(self, step: int) -> float:
        """Return the epochs read before a step."""
        return step / self.steps_per_epoch

    def __getitem__(self, step: int) -> Batch:
        if step < 0:
            raise IndexError("steps count from 0")
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._pairs:
            segments = self._pair_segments(self._pairs, epoch, place)
        else:
            segments = [self._segment(epoch, lane, place) for lane in self._lanes]
        return self._batch(PackedSegments.of(segments), epoch, place)

    def one_epoch(self, epoch: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, for evaluation."""
        first = epoch * self.steps_per_epoch
        return map(self.__getitem__, range(first, first + self.steps_per_epoch))

    def _is_backward(self, lane: int) -> bool:
        return self.backward and lane % 2 == 1

    def _segment(self, epoch: int, lane: int, place: int) -> Segment:
        """Return what a step of an epoch reads of a lane."""
        backward = self._is_backward(lane)
        low = place * self._stride
        high = min(low + self._stride, self._lane_tokens)
        start, end = lane * self._lane_tokens, (lane + 1) * self._lane_tokens
        first, last = (end - high, end - low) if backward else (start + low, start + high)
        beyond = min(last + 1, self.epoch_tokens)  # the token after the segment, if there is one
        if self.store.controls:
            start, begun = self.line.code_start(epoch, first)
            piece = self.line.read_once(epoch, start, beyond)
            piece.begins[0] = begun
        else:
            start, piece = first, self.line.read(epoch, first, beyond)
        size, begins = last - start, piece.begins if self.documents else np.zeros(beyond - start, np.bool_)
        ends = begins[size] if beyond > last else True  # the text does not continue after the segment
        cuts = (np.flatnonzero(begins[1:size]) + 1).tolist()
        return Segment(
            ids=piece.ids[:size],
            counters=np.arange(start, last),
            fresh=place == 0 or bool(ends if backward else begins[0]),
            backward=backward,
            starts=(0, *cuts),
            following=self._following(piece.ids, begins, piece.given, first - start, size),
            given=None if piece.given is None else piece.given[:size],
        )

    def _following(self, ids: Ints, begins: Flags, given: Flags | None, read: int, size: int) -> Ints | None:
        """Return the token that follows each, -1 where none is predicted: the step before has predicted the first
        token after the `read` ones."""
        if self.masking.unit != "next":
            return None
        predicted = self._predicted.take(ids)
        if given is not None:
            predicted &= ~given
        following = np.full(size, -1)
        following[: ids.size - 1] = np.where(predicted[1:] & ~begins[1:], ids[1:], -1)
        following[read - 1 : read] = -1
        return following

    def _pair_segments(self, pairs: PairReader, epoch: int, place: int) -> list[Segment]:
        """Return the pairs that a step of an epoch reads."""
        lanes = np.array(self._lanes)
        low = np.where(
            self.backward & (lanes % 2 == 1),
            (lanes + 1) * self._lane_tokens - (place + 1) * self._stride,
            lanes * self._lane_tokens + place * self._stride,
        )
        key = keyed_random.key(self.seed, epoch, place, "pairs")
        draws = keyed_random.bits(key, lanes[:, None] * 4 + np.arange(4))
        if lanes.size > 1:  # a random text is one of another lane
            others = np.arange(lanes.size) + 1 + keyed_random.uniform_below(draws[:, 3], lanes.size - 1)
            elsewhere = low[others % lanes.size]
        else:
            elsewhere = keyed_random.uniform_below(draws[:, 3], self.epoch_tokens)
        return [
            pairs.read(epoch, start, other, place == 0, self._is_backward(lane), row)
            for lane, start, other, row in zip(self._lanes, low.tolist(), elsewhere.tolist(), draws, strict=True)
        ]

    # Batches.

    def _batch(self, packed: PackedSegments, epoch: int, place: int) -> Batch:
        segments, bounds = packed.segments, packed.bounds
        ids = packed.pack([segment.ids for segment in segments])
        given = None
        if segments[0].given is not None:
            given = packed.pack([segment.given for segment in segments if segment.given is not None])
        kinds, pairs, summary = np.zeros(ids.size, np.int64), None, None
        layouts = [segment.pair for segment in segments if segment.pair is not None]
        if layouts:
            kinds = np.concatenate([layout.segments for layout in layouts])
            pairs = torch.tensor([layout.label for layout in layouts])
            summary = torch.from_numpy(np.where(packed.backward, bounds[:-1], bounds[1:] - 1))
        permutation = None
        if self._permuted is not None:
            parts = self._parts(packed, self._permuted.counts(bounds), epoch, place)
            found = self._permuted.choose(ids, parts, given)
            permutation = found.permutation(bounds)
            masked, targets = ids.size + np.arange(found.places.size), found.ids
        elif self._masks is not None:
            counters = packed.pack([segment.counters for segment in segments])
            key = keyed_random.key(self.seed, epoch, "lanes mask")
            masked, targets = self._masks.apply(ids, bounds, counters, key, given)
        else:
            following = packed.pack([segment.following for segment in segments if segment.following is not None])
            masked = np.flatnonzero(following >= 0)
            targets = following[masked]
        return Batch(
            ids=torch.from_numpy(ids),
            positions=torch.from_numpy(packed.positions),
            segments=torch.from_numpy(kinds),
            one_segment=not layouts,
            cu_seqlens=torch.from_numpy(bounds.astype(np.int32)),
            max_seqlen=int(np.diff(bounds).max()),
            summary=summary,
            continuation=packed.continuation(self.backward),
            permutation=permutation,
            labels=PretrainingLabels(torch.from_numpy(masked), torch.from_numpy(targets), pairs),
        )

    def _parts(self, packed: PackedSegments, counts: Ints, epoch: int, place: int) -> Parts:
        """Return what has an order of its own: sequences, and of pairs the reused text and the rest, which sees it."""
        key = keyed_random.key(self.seed, epoch, place, "permutation")
        numbers = (packed.lanes + self._lanes[0]) * self.length + packed.offsets
        if self._pairs is None:
            return Parts(packed.bounds, counts, keyed_random.bits(key, numbers))
        random = keyed_random.bits(key, np.stack([numbers, numbers + 1], 1).ravel())
        return self._pairs.parts(packed.bounds, packed.backward, counts, random)
