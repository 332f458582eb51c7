"""The token line that the lanes of an epoch read: chunks of the index in random order, with separators."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertree import keyed_random
from bertree.data.example_index import ExampleIndex
from bertree.data.formats import Format
from bertree.data.sequences.shuffle_group import RecentlyUsed, ShuffleGroup, build_group
from bertree.data.store import Store
from bertree.keyed_random import Ints

EXAMPLE_LENGTH = 512  # of the index, whose examples only say where chunks may end
DOCUMENT_LENGTH = 1 << 30  # with control codes an example is a complete document, so that it begins with its code
SPARE = 2  # chunks in memory in addition to one per lane
BLOCK = 4096  # tokens read at once; a lane needs the next ones soon
Flags = NDArray[np.bool_]


class LinePiece(NamedTuple):
    """Consecutive tokens of the line."""

    ids: Ints
    begins: Flags  # where a document or a chunk starts
    is_code: Flags | None  # which tokens belong to control codes
    sentences: Flags | None  # where a sentence starts, if requested

    def cut(self, first: int, last: int) -> "LinePiece":
        """Return the tokens from `first` to `last` of a piece without control codes."""
        sentences = None if self.sentences is None else self.sentences[first:last]
        return LinePiece(self.ids[first:last], self.begins[first:last], None, sentences)


class TokenLine:
    """The tokens of an epoch by their offset; a few chunks are in memory, and a block or two per lane."""

    def __init__(self, store: Store, seed: int, lanes: int, sentences: bool = False) -> None:
        """`sentences`: pieces contain the starts of sentences."""
        self.store, self._seed, self._with_sentences = store, seed, sentences
        self._format = Format("stream")
        self._max_length = DOCUMENT_LENGTH if store.controls else EXAMPLE_LENGTH
        self.index = ExampleIndex.load_or_build(store, self._format, self._max_length, seed)
        self.tokens = int(self.index.totals.sum())  # separators and control codes included
        self._separator = store.special.get("sep", -1)
        self._orders = RecentlyUsed(self._order, 2)
        self._chunks = RecentlyUsed(self._chunk, lanes + SPARE)
        self._sentences = RecentlyUsed(self._chunk_sentences, lanes + SPARE)
        self._blocks = RecentlyUsed(self._block, 2 * lanes + SPARE)

    def _order(self, epoch: int) -> tuple[Ints, Ints]:
        """Return the order of the chunks, and where each starts in the epoch's line."""
        chunks = np.arange(self.index.totals.size)
        order = np.argsort(keyed_random.bits(keyed_random.key(self._seed, epoch, "lanes"), chunks))
        return order, keyed_random.cumulative_offsets(self.index.totals[order])

    def chunk_at(self, epoch: int, offset: int) -> tuple[int, int, int]:
        """Return the chunk at an offset of the line, and where the chunk starts and ends."""
        order, starts = self._orders[epoch]
        number = int(np.searchsorted(starts, offset, "right")) - 1
        return int(order[number]), int(starts[number]), int(starts[number + 1])

    def read(self, epoch: int, low: int, high: int) -> LinePiece:
        """Return the tokens from `low` to `high` for a lane, in a store without control codes."""
        first, last = low // BLOCK, (high - 1) // BLOCK
        if first == last:
            return self._blocks[epoch, first].cut(low - first * BLOCK, high - first * BLOCK)
        blocks = [self._blocks[epoch, number] for number in range(first, last + 1)]
        sentences = [block.sentences for block in blocks if block.sentences is not None]
        joined = LinePiece(
            np.concatenate([block.ids for block in blocks]),
            np.concatenate([block.begins for block in blocks]),
            None,
            np.concatenate(sentences) if sentences else None,
        )
        return joined.cut(low - first * BLOCK, high - first * BLOCK)

    def _block(self, place: tuple[int, int]) -> LinePiece:
        epoch, number = place
        low, before = number * BLOCK, min(number, 1)  # the token before shows whether a document starts
        piece = self.read_once(epoch, low - before, min(low + BLOCK, self.tokens))
        return piece.cut(before, BLOCK + before)

    def read_once(self, epoch: int, low: int, high: int) -> LinePiece:
        """Return the tokens from `low` to `high` without keeping a block of them.

        The first token is marked as the start of a document only if it starts a chunk. With control codes, a piece that
        starts inside a document has the code in place of its first tokens.
        """
        pieces, sentences, at = [], [], low
        begins = np.zeros(high - low, np.bool_)
        while at < high:
            chunk, start, end = self.chunk_at(epoch, at)
            stop = min(high, end)
            pieces.append(self._chunks[chunk].read(at - start, stop - start))
            begins[at - low] |= at == start
            at = stop
            if self._with_sentences:
                sentences.append(self._sentence_starts(chunk, pieces[-1].counters))
        ids = np.concatenate([piece.ids for piece in pieces])
        ends, is_code = ids == self._separator, None
        if self.store.controls:
            is_code = np.concatenate([piece.is_code for piece in pieces if piece.is_code is not None])
            ends &= ~is_code
        begins[1:] |= ends[:-1]
        return LinePiece(ids, begins, is_code, np.concatenate(sentences) if sentences else None)

    def code_start(self, epoch: int, offset: int) -> tuple[int, bool]:
        """Return the offset to read from so that the document's code precedes the token at `offset`, and whether the
        document itself starts there."""
        chunk, start, _ = self.chunk_at(epoch, offset)
        group = self._chunks[chunk]
        assert group.codes is not None
        document = int(np.searchsorted(group.bounds, offset - start, "right")) - 1
        inside = offset - start - int(group.bounds[document])
        back = min(inside, int(group.codes.lengths[document]))
        return offset - back, inside == back

    def _sentence_starts(self, chunk: int, counters: Ints) -> Flags:
        """Return which tokens of a chunk start a sentence."""
        starts = self._sentences[chunk]
        if not starts.size:
            return np.zeros(counters.size, np.bool_)
        is_start: Flags = starts[np.minimum(np.searchsorted(starts, counters), starts.size - 1)] == counters
        return is_start

    def _chunk(self, chunk: int) -> ShuffleGroup:
        key = keyed_random.key(self._seed, chunk, "content")
        chunks, room = np.array([chunk]), self._max_length
        return build_group(self.store, self.index, self._format, chunks, room=room, content_key=key)

    def _chunk_sentences(self, chunk: int) -> Ints:
        """Return where the sentences of a chunk start, counted from its first token."""
        shard = int(self.index.shard_of[chunk])
        first, last = self.index.tokens[chunk : chunk + 2] - self.index.shard_tokens[shard]
        starts = self.store.shards[shard].load_sentence_starts()
        return starts[np.searchsorted(starts, first) : np.searchsorted(starts, last)] - first
