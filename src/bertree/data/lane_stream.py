"""The lanes stream: batches that continue each other, for models with a memory.

An epoch is one long line of tokens: the chunks of the index in random order, with a separator after each document. The
line is divided into equal lanes. Step k reads the next `length` tokens of every lane, and the token after them as the
last target: lane i of step k continues lane i of step k - 1. At the start of an epoch all lanes are fresh, that is,
without a memory. A batch is a pure function of the seed and the step.

With `documents`, a lane is also fresh at the first token of a document and of a chunk. A sequence ends there, so that
attention and prediction do not cross it. Otherwise only the separator marks the border.

With `backward`, every second lane reads its text from the end to the start, in segments whose tokens are in order.

With `reuse`, segments are pairs (`sequences/lane_segments.py`), and this share of each continues the step before.

With control codes a lane that is inside a document at the start of a step reads the document's code again first. So a
step reads fewer new tokens: `length` less the longest code.
"""

from collections.abc import Iterator
from math import ceil
from pathlib import Path

import numpy as np
import torch

from bertree import keyed_random
from bertree.batch import Batch, PretrainingLabels
from bertree.data.masking import UNMASKED, Masking, NextTokenTargets, target_maker
from bertree.data.permutation import OrderedParts, PermutationTargets
from bertree.data.sequences.lane_segments import PackedSegments, PairReader, Segment
from bertree.data.sequences.token_line import LinePiece, TokenLine
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
        """`lanes` is the number of lanes of all ranks; each of `world` ranks reads an equal share of them. `length` is
        how many tokens of each lane a step reads. `reuse`: segments are pairs, and this share of each continues the
        step before; 0: segments are plain text. `fixed`: every step has the same size; the rest of an epoch is not
        read."""
        self.store = store if isinstance(store, Store) else Store.open(store)
        self.seed, self.length, self.fixed, self.backward = seed, length, fixed, backward
        self.documents = documents or bool(self.store.controls)
        parsed = Masking.parse(masking)
        assert parsed is not None, "lanes have targets"
        self.masking = parsed
        self._check(lanes, rank, world, bool(reuse))
        self.all_lanes, self._world = lanes, world
        self._lanes = range(rank * lanes // world, (rank + 1) * lanes // world)
        self.line = TokenLine(self.store, seed, len(self._lanes), sentences=bool(reuse))
        self._pairs = PairReader(self.line, length, reuse) if reuse else None
        self._stride = self._pairs.reused if self._pairs else length - self.store.prefixes.longest
        self.index, self.epoch_tokens = self.line.index, self.line.tokens  # separators and control codes included
        self._lane_tokens = self.epoch_tokens // lanes
        if self._lane_tokens <= length:
            raise UserError(
                f"{self.store.name}: has {self.epoch_tokens:,} tokens, too few for {lanes} lanes of more "
                f"than {length}; give fewer lanes, or a smaller length"
            )
        self.batch_tokens, self.max_length = lanes * length, length
        self._predicted = NextTokenTargets(self.store).predicted
        self._permuted = PermutationTargets(parsed, self.store) if parsed.unit == "permutation" else None
        self._masks = target_maker(parsed, self.store) if parsed.unit not in UNMASKED else None

    def _check(self, lanes: int, rank: int, world: int, paired: bool) -> None:
        where = self.store.name
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
                f"{where}: has control codes, which come before the text; its lanes cannot run backwards or have pairs"
            )
        if self.documents and paired:
            raise UserError("lanes of pairs do not start at documents; leave out documents or pairs")
        if self.masking.unit == "next" and (self.backward or paired):
            raise UserError("masking 'next': only predicts forwards; backward lanes and pairs need another masking")
        if self.masking.duplicates:
            raise UserError("masking: '+static' has no effect in lanes; leave it out")

    @property
    def lanes(self) -> int:
        """How many lanes this rank reads."""
        return len(self._lanes)

    @property
    def identity(self) -> Json:
        """Settings that must be the same when a run is resumed, by readable names."""
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
        epoch, number = divmod(step, self.steps_per_epoch)
        if self._pairs:
            segments = self._pair_segments(self._pairs, epoch, number)
        else:
            segments = [self._segment(epoch, lane, number) for lane in self._lanes]
        return self._batch(PackedSegments.of(segments), epoch, number)

    def one_epoch(self, epoch: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, for evaluation."""
        first = epoch * self.steps_per_epoch
        return map(self.__getitem__, range(first, first + self.steps_per_epoch))

    def _is_backward(self, lane: int) -> bool:
        return self.backward and lane % 2 == 1

    def _segment(self, epoch: int, lane: int, number: int) -> Segment:
        """Return what step `number` of an epoch reads of a lane."""
        backward = self._is_backward(lane)
        low = number * self._stride
        high = min(low + self._stride, self._lane_tokens)
        start, end = lane * self._lane_tokens, (lane + 1) * self._lane_tokens
        first, last = (end - high, end - low) if backward else (start + low, start + high)
        beyond = min(last + 1, self.epoch_tokens)  # the token after the segment, if there is one
        if self.store.controls:
            start, begins_document = self.line.code_start(epoch, first)
            piece = self.line.read_once(epoch, start, beyond)
            piece.begins[0] = begins_document
        else:
            start, piece = first, self.line.read(epoch, first, beyond)
        size, begins = last - start, piece.begins if self.documents else np.zeros(beyond - start, np.bool_)
        ends = begins[size] if beyond > last else True  # the text does not continue after the segment
        cuts = (np.flatnonzero(begins[1:size]) + 1).tolist()
        return Segment(
            ids=piece.ids[:size],
            counters=np.arange(start, last),
            fresh=number == 0 or bool(ends if backward else begins[0]),
            backward=backward,
            starts=(0, *cuts),
            following=self._following(piece._replace(begins=begins), first - start, size),
            is_code=None if piece.is_code is None else piece.is_code[:size],
        )

    def _following(self, piece: LinePiece, repeated: int, size: int) -> Ints | None:
        """Return the next token of each token, -1 where none is predicted.

        The first `repeated` tokens are a code that is read again: the step before has predicted the token after it.
        """
        if self.masking.unit != "next":
            return None
        predicted = self._predicted.take(piece.ids)
        if piece.is_code is not None:
            predicted &= ~piece.is_code
        following = np.full(size, -1)
        following[: piece.ids.size - 1] = np.where(predicted[1:] & ~piece.begins[1:], piece.ids[1:], -1)
        following[repeated - 1 : repeated] = -1
        return following

    def _pair_segments(self, pairs: PairReader, epoch: int, number: int) -> list[Segment]:
        """Return the pairs that step `number` of an epoch reads."""
        lanes = np.array(self._lanes)
        low = np.where(
            self.backward & (lanes % 2 == 1),
            (lanes + 1) * self._lane_tokens - (number + 1) * self._stride,
            lanes * self._lane_tokens + number * self._stride,
        )
        key = keyed_random.key(self.seed, epoch, number, "pairs")
        draws = keyed_random.bits(key, lanes[:, None] * 4 + np.arange(4))
        if lanes.size > 1:  # a random text comes from another lane
            partners = np.arange(lanes.size) + 1 + keyed_random.uniform_below(draws[:, 3], lanes.size - 1)
            random_starts = low[partners % lanes.size]
        else:
            random_starts = keyed_random.uniform_below(draws[:, 3], self.epoch_tokens)
        return [
            pairs.read(
                epoch,
                start,
                random_start=random_start,
                fresh=number == 0,
                backward=self._is_backward(lane),
                draws=row,
            )
            for lane, start, random_start, row in zip(
                self._lanes, low.tolist(), random_starts.tolist(), draws, strict=True
            )
        ]

    # Batches.

    def _batch(self, packed: PackedSegments, epoch: int, number: int) -> Batch:
        segments, bounds = packed.segments, packed.bounds
        ids = packed.pack([segment.ids for segment in segments])
        is_code = None
        if segments[0].is_code is not None:
            is_code = packed.pack([segment.is_code for segment in segments if segment.is_code is not None])
        segment_ids, pairs, summary = np.zeros(ids.size, np.int64), None, None
        layouts = [segment.pair for segment in segments if segment.pair is not None]
        if layouts:
            segment_ids = np.concatenate([layout.segments for layout in layouts])
            pairs = torch.tensor([layout.label for layout in layouts])
            summary = torch.from_numpy(np.where(packed.backward, bounds[:-1], bounds[1:] - 1))
        permutation = None
        if self._permuted is not None:
            parts = self._parts(packed, self._permuted.counts(bounds), epoch, number)
            ordered = self._permuted.choose(ids, parts, is_code)
            permutation = ordered.permutation(bounds)
            masked, targets = ids.size + np.arange(ordered.positions.size), ordered.ids
        elif self._masks is not None:
            counters = packed.pack([segment.counters for segment in segments])
            key = keyed_random.key(self.seed, epoch, "lanes mask")
            masked, targets = self._masks.apply(ids, bounds, counters, key, is_code)
        else:
            following = packed.pack([segment.following for segment in segments if segment.following is not None])
            masked = np.flatnonzero(following >= 0)
            targets = following[masked]
        return Batch(
            ids=torch.from_numpy(ids),
            positions=torch.from_numpy(packed.positions),
            segments=torch.from_numpy(segment_ids),
            one_segment=not layouts,
            cu_seqlens=torch.from_numpy(bounds.astype(np.int32)),
            max_seqlen=int(np.diff(bounds).max()),
            summary=summary,
            continuation=packed.continuation(self.backward),
            permutation=permutation,
            labels=PretrainingLabels(torch.from_numpy(masked), torch.from_numpy(targets), pairs),
        )

    def _parts(self, packed: PackedSegments, counts: Ints, epoch: int, number: int) -> OrderedParts:
        """Return the parts with their own order: the sequences, or the reused text and the rest of each pair."""
        key = keyed_random.key(self.seed, epoch, number, "permutation")
        numbers = (packed.lanes + self._lanes[0]) * self.length + packed.offsets
        if self._pairs is None:
            return OrderedParts(packed.bounds, counts, keyed_random.bits(key, numbers))
        random = keyed_random.bits(key, np.stack([numbers, numbers + 1], 1).ravel())
        return self._pairs.parts(packed.bounds, packed.backward, counts, random)
