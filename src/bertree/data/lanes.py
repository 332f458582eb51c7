"""The lanes stream: batches that continue each other, for models with a state.

An epoch is one long line of tokens: the chunks of the index in random order, each with its documents in the order of
the corpus and a separator after each. The line is divided into `lanes` equal lanes. Step k reads the next `length`
tokens of every lane, and of each the token after them as the last target: lane i of step k continues lane i of step
k - 1, so a model may keep what it has read of it. At the start of an epoch all lanes are fresh. A batch is a pure
function of the seed and the step.

With `documents`, a lane is also fresh wherever the text does not continue: at the first token of a document and of a
chunk. A sequence ends there, so that nothing is seen or predicted across. Otherwise texts follow each other as they
stand, and only the separator tells.

With control codes a document begins with its code, and every lane that is inside a document at the start of a step
reads the code again before it goes on. So a step reads fewer tokens of the line: `length` less the longest code.
"""

from collections import OrderedDict
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray

from bertree import keyed_random
from bertree.batch import Batch, Continuation, PretrainingLabels
from bertree.data.example_index import ExampleIndex
from bertree.data.formats import Format
from bertree.data.masking import NextTokenTargets
from bertree.data.store import Store
from bertree.data.windows.window import ShuffleWindow, build_window
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.keyed_random import Ints

EXAMPLE = 512  # length of the index's examples, which only say where chunks may end
WHOLE = 1 << 30  # with control codes: examples are whole documents, so that each begins with its code
SPARE = 2  # chunks in memory beside those the lanes are in


class LaneStream:
    """Endless batches from a token store, each of which continues the one before it."""

    def __init__(
        self,
        store: Store | Path | str,
        *,
        lanes: int,
        length: int,
        seed: int = 0,
        documents: bool = False,
        rank: int = 0,
        world: int = 1,
        fixed: bool = False,
    ) -> None:
        """`lanes` is how many a whole batch has, of which rank r of `world` reads its part; `length` is how many tokens
        of each lane a step reads. `fixed`: every step has the same size; what is left of an epoch is not read."""
        self.store = store if isinstance(store, Store) else Store.open(store)
        self.seed, self.length, self.fixed = seed, length, fixed
        self.documents = documents or bool(self.store.controls)
        where = self.store.folder or "store"
        if not 0 <= rank < world:
            raise UserError(f"rank {rank} of {world}: ranks go from 0 to {world - 1}")
        if lanes < world or length < 1:
            raise UserError(f"lanes {lanes}, length {length}: give {world} lanes or more, and 1 token or more")
        if self.documents and "sep" not in self.store.special:
            raise UserError(
                f"{where}: the vocabulary has no token that ends a text, so lanes cannot start at documents"
            )
        longest = self.store.prefixes.longest
        if length <= 2 * longest:
            raise UserError(f"{where}: its longest control code has {longest} tokens; give a length over {2 * longest}")
        self._stride = length - longest  # tokens of the line
        self._format = Format("stream")
        self._examples = WHOLE if self.store.controls else EXAMPLE
        self.index = ExampleIndex.load_or_build(self.store, self._format, self._examples, seed)
        self.epoch_tokens = int(self.index.totals.sum())  # separators and control codes included
        self._lane_tokens = self.epoch_tokens // lanes
        if self._lane_tokens <= length:
            raise UserError(
                f"{where}: has {self.epoch_tokens:,} tokens, too few for {lanes} lanes of more than {length}; give "
                "fewer lanes, or a smaller length"
            )
        self.all_lanes, self._world = lanes, world
        self._lanes = range(rank * lanes // world, (rank + 1) * lanes // world)
        self.batch_tokens, self.max_length = lanes * length, length
        self._predicted: NDArray[np.bool_] = NextTokenTargets(self.store).predicted
        self._orders: OrderedDict[int, tuple[Ints, Ints]] = OrderedDict()
        self._windows: OrderedDict[int, ShuffleWindow] = OrderedDict()
        self._lock = Lock()

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
        return self._lane_tokens // self._stride if self.fixed else ceil(self._lane_tokens / self._stride)

    def epoch_at(self, step: int) -> float:
        """Return the epochs read before a step."""
        return step / self.steps_per_epoch

    def __getitem__(self, step: int) -> Batch:
        if step < 0:
            raise IndexError("steps count from 0")
        epoch, place = divmod(step, self.steps_per_epoch)
        low = place * self._stride
        high = min(low + self._stride, self._lane_tokens)
        return self._pack([self._segment(epoch, lane, low, high) for lane in self._lanes])

    def one_epoch(self, epoch: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, for evaluation."""
        first = epoch * self.steps_per_epoch
        return map(self.__getitem__, range(first, first + self.steps_per_epoch))

    # The line.

    def _order(self, epoch: int) -> tuple[Ints, Ints]:
        """Return the order of the chunks, and where each starts in the epoch's line."""
        with self._lock:
            if epoch not in self._orders:
                chunks = np.arange(self.index.totals.size)
                order = np.argsort(keyed_random.bits(keyed_random.key(self.seed, epoch, "lanes"), chunks))
                self._orders[epoch] = order, keyed_random.cumulative_offsets(self.index.totals[order])
                if len(self._orders) > 2:
                    self._orders.popitem(last=False)
            return self._orders[epoch]

    def _chunk(self, chunk: int) -> ShuffleWindow:
        with self._lock:
            if chunk not in self._windows:
                self._windows[chunk] = build_window(
                    self.store,
                    self.index,
                    self._format,
                    self._examples,
                    np.array([chunk]),
                    keyed_random.key(self.seed, chunk, "content"),
                )
                if len(self._windows) > self.lanes + SPARE:
                    self._windows.popitem(last=False)
            self._windows.move_to_end(chunk)
            return self._windows[chunk]

    def _read(self, epoch: int, low: int, high: int) -> tuple[Ints, NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the tokens of a piece of the line, which of them start a document or a chunk, and which can be
        predicted."""
        order, starts = self._order(epoch)
        pieces, at = [], low
        begins = np.zeros(high - low, np.bool_)
        while at < high:
            place = int(np.searchsorted(starts, at, "right")) - 1
            start, stop = int(starts[place]), min(high, int(starts[place + 1]))
            pieces.append(self._chunk(int(order[place])).read(at - start, stop - start))
            begins[at - low] |= at == start
            at = stop
        ids = np.concatenate([piece.ids for piece in pieces])
        predicted, ends = self._predicted.take(ids), ids == self.store.special.get("sep", -1)
        if self.store.controls:
            text = ~np.concatenate([piece.given for piece in pieces if piece.given is not None])
            predicted, ends = predicted & text, ends & text
        begins[1:] |= ends[:-1]
        return ids, begins, predicted

    def _code_start(self, epoch: int, place: int) -> tuple[int, bool]:
        """Return where to read from so that the code of the document at a place stands before the token there, and
        whether the document starts with it."""
        order, starts = self._order(epoch)
        number = int(np.searchsorted(starts, place, "right")) - 1
        window = self._chunk(int(order[number]))
        assert window.controls is not None
        at = place - int(starts[number])
        document = int(np.searchsorted(window.bounds, at, "right")) - 1
        inside = at - int(window.bounds[document])
        back = min(inside, int(window.controls.lengths[document]))
        return place - back, inside == back

    def _segment(self, epoch: int, lane: int, low: int, high: int) -> tuple[Ints, Ints, NDArray[np.bool_], bool]:
        """Return what a step reads of a lane: its tokens, the token that follows each (-1: none that is predicted),
        which of them start without what was before, and whether the lane itself does."""
        first = lane * self._lane_tokens + low
        last = lane * self._lane_tokens + high
        if self.store.controls:
            start, begun = self._code_start(epoch, first)
            ids, begins, predicted = self._read(epoch, start, min(last + 1, self.epoch_tokens))
            begins[0] = begun
        else:
            start, before = first, min(first, 1)  # the token before tells whether a document starts here
            ids, begins, predicted = self._read(epoch, first - before, min(last + 1, self.epoch_tokens))
            ids, begins, predicted = ids[before:], begins[before:], predicted[before:]
        size = last - start
        following = np.full(size, -1)
        following[: ids.size - 1] = np.where(predicted[1:], ids[1:], -1)
        if not self.documents:
            begins[:] = False
        following[: ids.size - 1][begins[1:]] = -1
        following[first - start - 1 : first - start] = -1  # the step before has predicted the first token of its text
        return ids[:size], following, begins[:size], low == 0

    def _pack(self, segments: list[tuple[Ints, Ints, NDArray[np.bool_], bool]]) -> Batch:
        ids = np.concatenate([ids for ids, _, _, _ in segments])
        following = np.concatenate([targets for _, targets, _, _ in segments])
        bounds, lanes, fresh, base = [0], [], [], 0
        for lane, (some, _, begins, is_fresh) in enumerate(segments):
            cuts = np.flatnonzero(begins[1:]) + 1
            bounds += [*(base + cuts).tolist(), base + some.size]
            lanes += [lane] * (cuts.size + 1)
            fresh += [is_fresh or bool(begins[0]), *[True] * cuts.size]
            base += some.size
        edges = np.array(bounds)
        places = np.flatnonzero(following >= 0)
        return Batch(
            ids=torch.from_numpy(ids),
            positions=torch.from_numpy(np.arange(base) - edges[:-1].repeat(np.diff(edges))),
            segments=torch.zeros(base, dtype=torch.int64),
            cu_seqlens=torch.from_numpy(edges.astype(np.int32)),
            max_seqlen=int(np.diff(edges).max()),
            continuation=Continuation(torch.tensor(lanes), torch.tensor(fresh), len(segments)),
            labels=PretrainingLabels(torch.from_numpy(places), torch.from_numpy(following[places])),
        )
