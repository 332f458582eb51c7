"""The line of tokens that an epoch of lanes reads: chunks of the index in random order, with separators."""

from collections import OrderedDict
from threading import RLock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertree import keyed_random
from bertree.data.example_index import ExampleIndex
from bertree.data.formats import Format
from bertree.data.store import Store
from bertree.data.windows.window import ShuffleWindow, build_window
from bertree.keyed_random import Ints

EXAMPLE = 512  # length of the index's examples, which only say where chunks may end
WHOLE = 1 << 30  # with control codes: examples are whole documents, so that each begins with its code
SPARE = 2  # chunks in memory beside those the lanes are in
BLOCK = 4096  # tokens that are read at once: a lane needs them soon
Flags = NDArray[np.bool_]


class LinePiece(NamedTuple):
    """Some tokens of the line."""

    ids: Ints
    begins: Flags  # where a document or a chunk starts
    given: Flags | None  # tokens of control codes
    sentences: Flags | None  # where a sentence starts, if asked for

    def cut(self, first: int, last: int) -> "LinePiece":
        """Return the tokens from `first` to `last` of a piece without control codes."""
        sentences = None if self.sentences is None else self.sentences[first:last]
        return LinePiece(self.ids[first:last], self.begins[first:last], None, sentences)


class Line:
    """Tokens by epoch and place; a few chunks of them are in memory, and a block or two for each of the lanes."""

    def __init__(self, store: Store, seed: int, lanes: int, sentences: bool = False) -> None:
        """`sentences`: pieces tell where sentences start."""
        self.store, self._seed, self._lanes, self._marked = store, seed, lanes, sentences
        self._format = Format("stream")
        self._examples = WHOLE if store.controls else EXAMPLE
        self.index = ExampleIndex.load_or_build(store, self._format, self._examples, seed)
        self.tokens = int(self.index.totals.sum())  # separators and control codes included
        self._separator = store.special.get("sep", -1)
        self._orders: OrderedDict[int, tuple[Ints, Ints]] = OrderedDict()
        self._windows: OrderedDict[int, ShuffleWindow] = OrderedDict()
        self._sentences: dict[int, Ints] = {}
        self._blocks: OrderedDict[tuple[int, int], LinePiece] = OrderedDict()
        self._lock = RLock()

    def order(self, epoch: int) -> tuple[Ints, Ints]:
        """Return the order of the chunks, and where each starts in the epoch's line."""
        with self._lock:
            if epoch not in self._orders:
                chunks = np.arange(self.index.totals.size)
                order = np.argsort(keyed_random.bits(keyed_random.key(self._seed, epoch, "lanes"), chunks))
                self._orders[epoch] = order, keyed_random.cumulative_offsets(self.index.totals[order])
                if len(self._orders) > 2:
                    self._orders.popitem(last=False)
            return self._orders[epoch]

    def chunk_at(self, epoch: int, place: int) -> tuple[int, int, int]:
        """Return the chunk at a place of the line, and where it starts and ends there."""
        order, starts = self.order(epoch)
        number = int(np.searchsorted(starts, place, "right")) - 1
        return int(order[number]), int(starts[number]), int(starts[number + 1])

    def read(self, epoch: int, low: int, high: int) -> LinePiece:
        """Return the tokens from `low` to `high`, which a lane reads, of a store without control codes."""
        first, last = low // BLOCK, (high - 1) // BLOCK
        if first == last:
            return self._block(epoch, first).cut(low - first * BLOCK, high - first * BLOCK)
        blocks = [self._block(epoch, number) for number in range(first, last + 1)]
        sentences = [block.sentences for block in blocks if block.sentences is not None]
        joined = LinePiece(
            np.concatenate([block.ids for block in blocks]),
            np.concatenate([block.begins for block in blocks]),
            None,
            np.concatenate(sentences) if sentences else None,
        )
        return joined.cut(low - first * BLOCK, high - first * BLOCK)

    def _block(self, epoch: int, number: int) -> LinePiece:
        with self._lock:
            if (epoch, number) not in self._blocks:
                low, before = number * BLOCK, min(number, 1)  # the token before tells whether a document starts
                piece = self.read_once(epoch, low - before, min(low + BLOCK, self.tokens))
                self._blocks[epoch, number] = piece.cut(before, BLOCK + before)
                if len(self._blocks) > 2 * self._lanes + SPARE:
                    self._blocks.popitem(last=False)
            self._blocks.move_to_end((epoch, number))
            return self._blocks[epoch, number]

    def read_once(self, epoch: int, low: int, high: int) -> LinePiece:
        """Return the tokens from `low` to `high`, of which none beside them will be read. The first is known to begin a
        document only where it begins a chunk. With control codes, a piece that begins inside a document begins with its
        code instead."""
        pieces, sentences, at = [], [], low
        begins = np.zeros(high - low, np.bool_)
        while at < high:
            chunk, start, end = self.chunk_at(epoch, at)
            stop = min(high, end)
            pieces.append(self._chunk(chunk).read(at - start, stop - start))
            begins[at - low] |= at == start
            at = stop
            if self._marked:
                sentences.append(self._sentence_starts(chunk, pieces[-1].counters))
        ids = np.concatenate([piece.ids for piece in pieces])
        ends, given = ids == self._separator, None
        if self.store.controls:
            given = np.concatenate([piece.given for piece in pieces if piece.given is not None])
            ends &= ~given
        begins[1:] |= ends[:-1]
        return LinePiece(ids, begins, given, np.concatenate(sentences) if sentences else None)

    def code_start(self, epoch: int, place: int) -> tuple[int, bool]:
        """Return where to read from so that the code of the document at a place stands before the token there, and
        whether the document starts with it."""
        chunk, start, _ = self.chunk_at(epoch, place)
        window = self._chunk(chunk)
        assert window.controls is not None
        at = place - start
        document = int(np.searchsorted(window.bounds, at, "right")) - 1
        inside = at - int(window.bounds[document])
        back = min(inside, int(window.controls.lengths[document]))
        return place - back, inside == back

    def _sentence_starts(self, chunk: int, counters: Ints) -> Flags:
        """Return which tokens of a chunk start a sentence."""
        known = self._chunk_sentences(chunk)
        if not known.size:
            return np.zeros(counters.size, np.bool_)
        found: Flags = known[np.minimum(np.searchsorted(known, counters), known.size - 1)] == counters
        return found

    def _chunk(self, chunk: int) -> ShuffleWindow:
        with self._lock:
            if chunk not in self._windows:
                self._windows[chunk] = build_window(
                    self.store,
                    self.index,
                    self._format,
                    self._examples,
                    np.array([chunk]),
                    keyed_random.key(self._seed, chunk, "content"),
                )
                if len(self._windows) > self._lanes + SPARE:
                    dropped, _ = self._windows.popitem(last=False)
                    self._sentences.pop(dropped, None)
            self._windows.move_to_end(chunk)
            return self._windows[chunk]

    def _chunk_sentences(self, chunk: int) -> Ints:
        """Return where the sentences of a chunk start, counted from its first token."""
        with self._lock:
            if chunk not in self._sentences:
                shard = int(self.index.shard_of[chunk])
                first, last = self.index.tokens[chunk : chunk + 2] - self.index.shard_tokens[shard]
                held = "sentence_starts" in vars(self.store.shards[shard])
                starts = self.store.shards[shard].sentence_starts
                if not held:  # released, so that memory does not grow with the corpus
                    vars(self.store.shards[shard]).pop("sentence_starts", None)
                self._sentences[chunk] = starts[np.searchsorted(starts, first) : np.searchsorted(starts, last)] - first
            return self._sentences[chunk]
