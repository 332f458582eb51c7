"""A window: a few chunks, shuffled together and laid out as one long line of packed tokens.

Everything a batch can contain has one form here: a list of runs, each of consecutive tokens in the window's buffer. The
special tokens stand at the end of that buffer, so a separator is a run like any other, and a batch is one `repeat` and
one `take`, whatever the format. The buffer costs two bytes per token and turns the random reads of a shuffled epoch
into a few long sequential ones.

Shape letters: e examples, p runs, t tokens, s sequences.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertree import keyed_random
from bertree.data.example_index import ExampleIndex
from bertree.data.formats import Format
from bertree.data.store import Store
from bertree.data.windows import pairing
from bertree.data.windows.pairing import NO_LABEL
from bertree.keyed_random import Ints

CLS_SEGMENT = 2  # of a [CLS] that stands last (XLNet)


@dataclass
class PackedSlice:
    """A packed piece of the line."""

    ids: Ints  # t
    positions: Ints  # t
    segments: Ints  # t
    counters: Ints  # t: place of each token in the window's buffer, the counter of its random draws
    bounds: Ints  # s + 1
    labels: Ints | None  # s
    given: NDArray[np.bool_] | None = None  # t: tokens of control codes, which are never predicted


@dataclass(frozen=True)
class TokenRuns:
    """Runs of the buffer in the order of the line."""

    bounds: Ints  # p + 1: places in the line
    sources: Ints  # p: first token of each in the buffer
    segments: NDArray[np.uint8]  # p


@dataclass(frozen=True)
class ControlRuns:
    """The control code before each example: a run of the buffer, behind all others."""

    sources: Ints  # e: first token in the buffer
    lengths: Ints  # e
    first: int  # first token of all codes in the buffer


@dataclass(frozen=True)
class ShuffleWindow:
    """The line of one window, and the key of its random draws."""

    buffer: NDArray[Any]
    numbers: Ints  # e: number of each example in the index
    bounds: Ints  # e + 1: places of the examples in the line
    parts: TokenRuns
    labels: Ints | None  # e
    seconds: Ints | None  # e: place in the line where the second segment starts
    mask_key: np.uint64
    controls: ControlRuns | None = None
    cls_last: bool = False  # examples end with [CLS], which is in a segment of its own

    def read(self, low: int, high: int, cuts: Ints | None = None) -> PackedSlice:
        """Return the tokens from `low` to `high`.

        A sequence that extends beyond them, or over one of the cuts between, is split: each side is a sequence of its
        own without the other's special tokens. With control codes the second side begins with its code, which takes the
        place of its first tokens.
        """
        parts, size = self.parts, high - low
        first = int(np.searchsorted(parts.bounds, low, "right")) - 1
        last = int(np.searchsorted(parts.bounds, high, "left"))
        edges = np.clip(parts.bounds[first : last + 1], low, high) - low
        sources = parts.sources[first:last] - edges[:-1]
        sources[0] += low - parts.bounds[first]
        lengths = np.diff(edges)
        line = np.arange(size)
        counters = np.repeat(sources, lengths)
        counters += line
        bounds, labels = self._sequences(low, high, cuts)
        line -= np.repeat(bounds[:-1], np.diff(bounds))
        given = self._begin_with_codes(low, bounds, counters)
        if self.labels is None and not self.cls_last:
            segments = np.zeros(size, np.int64)
        else:
            segments = np.repeat(parts.segments[first:last], lengths).astype(np.int64)
        ids = self.buffer.take(counters).astype(np.int64)
        return PackedSlice(ids, line, segments, counters, bounds, labels, given)

    def _begin_with_codes(self, low: int, bounds: Ints, counters: Ints) -> NDArray[np.bool_] | None:
        """Let sequences that begin inside an example begin with its code; return which tokens belong to codes."""
        if self.controls is None:
            return None
        owners = np.searchsorted(self.bounds, bounds[:-1] + low, "right") - 1
        for number in np.flatnonzero(bounds[:-1] + low != self.bounds[owners]).tolist():
            begin, owner = int(bounds[number]), owners[number]
            count = min(int(self.controls.lengths[owner]), int(bounds[number + 1]) - begin)
            counters[begin : begin + count] = self.controls.sources[owner] + np.arange(count)
        return counters >= self.controls.first

    def _sequences(self, low: int, high: int, cuts: Ints | None) -> tuple[Ints, Ints | None]:
        first = int(np.searchsorted(self.bounds, low, "right")) - 1
        last = int(np.searchsorted(self.bounds, high, "left"))
        edges = np.clip(self.bounds[first : last + 1], low, high)
        owners = np.arange(first, last)
        if cuts is not None and cuts.size:
            edges = np.union1d(edges, cuts)
            owners = np.searchsorted(self.bounds, edges[:-1], "right") - 1
        if self.labels is None or self.seconds is None:
            return edges - low, None
        # A split pair keeps its label if its head still contains some of B, as after BERT's truncation.
        asks = (edges[:-1] == self.bounds[owners]) & (edges[1:] > self.seconds[owners])
        if self.cls_last:  # its state answers, and sees A and B only in the whole pair
            asks &= edges[1:] == self.bounds[owners + 1]
        return edges - low, np.where(asks, self.labels[owners], NO_LABEL)


def build_window(
    store: Store,
    index: ExampleIndex,
    format: Format,
    room: int,
    chunks: Ints,
    content: np.uint64,
    order: np.uint64 | None = None,
    arrange: Callable[[Ints], Ints] | None = None,
) -> ShuffleWindow:
    """Build the window of some chunks.

    `content` is the key of what the examples are, `order` of how they are shuffled (None: as in the corpus); `arrange`
    returns the final order of shuffled examples of these lengths.
    """
    chunks = np.sort(chunks)
    firsts, lasts = index.chunks[chunks], index.chunks[chunks + 1]
    numbers = keyed_random.concatenate_ranges(firsts, lasts - firsts)
    runs = list(zip(firsts, lasts, strict=True))
    contents = _concatenate_ranges(index.examples.contents, runs)
    offsets = keyed_random.cumulative_offsets(_concatenate_ranges(index.examples.counts, runs))
    marks = _concatenate_ranges(index.examples.marks, zip(index.marks[chunks], index.marks[chunks + 1], strict=True))
    read = contents if format.paired else contents - np.diff(offsets)
    starts = np.cumsum(read) - read
    buffer, size = _read_buffer(store, index, chunks)
    lengths, pairs, controls = contents + format.single_overhead, None, None
    if store.controls:
        codes = store.document_codes[_concatenate_ranges(index.examples.documents, runs)]
        controls = ControlRuns(size + store.prefixes.bounds[codes], store.prefixes.lengths[codes], size)
        lengths = controls.lengths + contents + format.closed
    if format.paired:
        places = marks + np.repeat(starts, np.diff(offsets))
        borders = pairing.Borders(starts, contents, offsets, places)
        documents = _concatenate_ranges(index.examples.documents, runs)
        pairs = pairing.make_pairs(borders, documents, format.objective, room, content)
        lengths = pairs.first_lengths + pairs.second_lengths
        lengths += np.where(pairs.labels == NO_LABEL, format.single_overhead, format.full_overhead)
    shuffled = np.arange(numbers.size) if order is None else np.argsort(keyed_random.bits(order, numbers))
    if arrange is not None:
        shuffled = shuffled[arrange(lengths[shuffled])]
    bounds = keyed_random.cumulative_offsets(lengths[shuffled])
    labels = seconds = None
    cls_last = store.cls_last and format.closed > 0 and controls is None
    if pairs is not None:
        parts = _pair_runs(pairs, shuffled, format.separators, size, cls_last)
        labels = pairs.labels[shuffled]
        seconds = bounds[:-1] + (not cls_last) + pairs.first_lengths[shuffled] + format.separators
    else:
        if controls is not None:
            controls = ControlRuns(controls.sources[shuffled], controls.lengths[shuffled], size)
        texts = _Texts(starts, contents, offsets, marks)
        parts = _single_runs(texts, shuffled, format.closed > 0, size, controls, cls_last)
    mask_key = keyed_random.key(int(content), "mask")
    return ShuffleWindow(buffer, numbers[shuffled], bounds, parts, labels, seconds, mask_key, controls, cls_last)


def _concatenate_ranges(array: NDArray[Any], runs: Iterable[tuple[int, int]]) -> Ints:
    return np.concatenate([array[first:last] for first, last in runs]).astype(np.int64)


def _read_buffer(store: Store, index: ExampleIndex, chunks: Ints) -> tuple[NDArray[Any], int]:
    """Return the text of some chunks with the special tokens behind it, the length of that, and behind it the control
    codes."""
    runs = []
    for chunk in chunks:
        shard = int(index.shard_of[chunk])
        first, last = index.tokens[chunk : chunk + 2] - index.shard_tokens[shard]
        runs.append(store.shards[shard].read(first, last, store.vocab_size))
    special = [store.special.get(kind, 0) for kind in ("cls", "sep", "sep")]
    ends = np.array([*special, *store.prefixes.ids], dtype=runs[0].dtype)
    return np.concatenate((*runs, ends)), sum(run.size for run in runs) + len(special)


def _pair_runs(pairs: pairing.Pairs, shuffled: Ints, separators: int, size: int, cls_last: bool) -> TokenRuns:
    """Lay out [CLS] A [SEP] B [SEP], or [CLS] A [SEP] if there is no B; or A [SEP] B [SEP] [CLS]."""
    count = shuffled.size
    alone = pairs.labels[shuffled] == NO_LABEL
    lengths = np.ones((count, 5), np.int64)
    lengths[:, 1] = pairs.first_lengths[shuffled]
    lengths[:, 2] = np.where(alone, 0, separators)
    lengths[:, 3] = pairs.second_lengths[shuffled]
    sources = np.empty((count, 5), np.int64)
    sources[:, 0], sources[:, 2], sources[:, 4] = size - 3, size - 2, size - 1
    sources[:, 1], sources[:, 3] = pairs.first_starts[shuffled], pairs.second_starts[shuffled]
    segments = np.tile(np.array([0, 0, 0, 1, 1], np.uint8), (count, 1))
    segments[alone, 4] = 0
    if cls_last:
        lengths, sources, segments = np.roll(lengths, -1, 1), np.roll(sources, -1, 1), np.roll(segments, -1, 1)
        segments[:, 4] = CLS_SEGMENT
    return _token_runs(lengths.ravel(), sources.ravel(), segments.ravel())


class _Texts(NamedTuple):
    """Examples of one segment: first token in the buffer, length, and marks."""

    starts: Ints  # e
    contents: Ints  # e
    offsets: Ints  # e + 1
    marks: Ints


def _single_runs(
    texts: _Texts, shuffled: Ints, framed: bool, size: int, controls: ControlRuns | None, cls_last: bool
) -> TokenRuns:
    """Lay out [CLS] text [SEP], or text [SEP] [CLS], with a separator at each mark of the text; a stream is the text
    alone. A control code takes the place of [CLS], and stands before a stream too."""
    starts, contents, offsets, marks = texts
    opened = framed or controls is not None
    counts = np.diff(offsets)[shuffled]
    marks = marks[keyed_random.concatenate_ranges(offsets[shuffled], counts)]
    pieces = counts + 1  # pieces of text between separators
    ends_of = np.cumsum(pieces)
    firsts = ends_of - pieces
    heads = np.zeros(int(ends_of[-1]), np.bool_)
    heads[firsts] = True
    tails = np.zeros_like(heads)
    tails[ends_of - 1] = True
    begins = np.zeros(heads.size, np.int64)
    begins[~heads] = marks + 1
    ends = np.repeat(contents[shuffled], pieces)
    ends[~tails] = marks
    skipped = np.arange(heads.size) - np.repeat(firsts, pieces)  # separators before the piece
    slots = pieces + counts + opened + framed
    place = np.cumsum(slots) - slots
    lengths = np.ones(int(slots.sum()), np.int64)
    sources = np.full(lengths.size, size - 2)
    segments = np.zeros(lengths.size, np.uint8)
    text = np.repeat(place + (opened and not cls_last), pieces) + 2 * skipped
    lengths[text] = ends - begins
    sources[text] = np.repeat(starts[shuffled], pieces) + begins - skipped
    if controls is not None:
        sources[place], lengths[place] = controls.sources, controls.lengths
    elif opened:
        at = place + slots - 1 if cls_last else place
        sources[at] = size - 3
        segments[at] = CLS_SEGMENT if cls_last else 0
    return _token_runs(lengths, sources, segments)


def _token_runs(lengths: Ints, sources: Ints, segments: NDArray[np.uint8]) -> TokenRuns:
    there = lengths > 0
    if not there.all():
        lengths, sources, segments = lengths[there], sources[there], segments[there]
    return TokenRuns(keyed_random.cumulative_offsets(lengths), sources, segments)
