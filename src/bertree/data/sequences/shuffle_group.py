"""A shuffle group: a few chunks of the example index, whose examples are shuffled together into one line of tokens.

stream.py cuts that line into batches; lanes read it through token_line.py. A chunk is a range of contiguous examples
(example_index.py). Everything a batch can contain has one form here: a list of runs, each of consecutive tokens in the
group's buffer. The special tokens are at the end of that buffer, so a separator is a run like any other, and a batch is
one `repeat` and one `take` in every format. The buffer takes two bytes per token and turns the random reads of a
shuffled epoch into a few long sequential ones.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertree import keyed_random
from bertree.data.example_index import ExampleIndex
from bertree.data.formats import Format
from bertree.data.sequences import pairing
from bertree.data.sequences.pairing import NO_LABEL
from bertree.data.store import Store
from bertree.data.store_files import Prefixes
from bertree.keyed_random import Ints

CLS_SEGMENT = 2  # segment of a [CLS] that comes last (XLNet)
SPECIAL = ("cls", "sep", "sep")  # after the text in the buffer; two separators, because RoBERTa's pairs have both
CLS, SEP, LAST_SEP = -3, -2, -1  # their indices, counted from the end of the special tokens
Key = TypeVar("Key")
Value = TypeVar("Value")


class RecentlyUsed(Generic[Key, Value]):
    """Values that are computed when they are needed; at most `most` of them are kept. Threads may share it."""

    def __init__(self, compute: Callable[[Key], Value], most: int) -> None:
        self._compute, self._most = compute, most
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = Lock()

    def __getitem__(self, key: Key) -> Value:
        with self._lock:
            if key not in self._values:
                self._values[key] = self._compute(key)
                if len(self._values) > self._most:
                    self._values.popitem(last=False)
            self._values.move_to_end(key)
            return self._values[key]


@dataclass(kw_only=True)
class PackedSlice:
    """A slice of the line, packed as sequences."""

    ids: Ints
    positions: Ints  # of each token in its sequence
    segments: Ints  # of each token
    counters: Ints  # index of each token in the group's buffer: the counter of its random draws
    bounds: Ints  # sequences + 1
    labels: Ints | None  # one per sequence
    is_code: NDArray[np.bool_] | None = None  # which tokens belong to control codes, which are never predicted


@dataclass(frozen=True)
class TokenRuns:
    """Runs of the buffer in the order of the line. A run is a range of consecutive tokens."""

    bounds: Ints  # runs + 1: offsets in the line
    sources: Ints  # first token of each run in the buffer
    segments: NDArray[np.uint8]  # of each run


@dataclass(frozen=True)
class CodeRuns:
    """The control code of each example: a run at the end of the buffer."""

    sources: Ints  # first token of each example's code in the buffer
    lengths: Ints
    first: int  # where the codes start in the buffer


@dataclass(frozen=True, kw_only=True)
class ShuffleGroup:
    """The line of one group, and the key of its random draws."""

    buffer: NDArray[Any]
    numbers: Ints  # number of each example in the index, in the order of the line
    bounds: Ints  # examples + 1: offsets in the line
    runs: TokenRuns
    labels: Ints | None  # of each example
    seconds: Ints | None  # offset in the line of each example's second segment
    mask_key: np.uint64
    codes: CodeRuns | None
    cls_last: bool  # examples end with [CLS], which is in a segment of its own

    def read(self, low: int, high: int, cuts: Ints | None = None) -> PackedSlice:
        """Return the tokens from `low` to `high`.

        An example that extends beyond them, or over one of the cuts between them, is split: each side is a sequence of
        its own without the other's special tokens. With control codes the second side begins with the code, which
        replaces its first tokens.
        """
        runs, size = self.runs, high - low
        first = int(np.searchsorted(runs.bounds, low, "right")) - 1
        last = int(np.searchsorted(runs.bounds, high, "left"))
        edges = np.clip(runs.bounds[first : last + 1], low, high) - low
        sources = runs.sources[first:last] - edges[:-1]
        sources[0] += low - runs.bounds[first]
        lengths = np.diff(edges)
        positions = np.arange(size)
        counters = np.repeat(sources, lengths)
        counters += positions
        bounds, labels = self._sequences(low, high, cuts)
        positions -= np.repeat(bounds[:-1], np.diff(bounds))
        is_code = self._insert_codes(low, bounds, counters)
        if self.labels is None and not self.cls_last:
            segments = np.zeros(size, np.int64)
        else:
            segments = np.repeat(runs.segments[first:last], lengths).astype(np.int64)
        return PackedSlice(
            ids=self.buffer.take(counters).astype(np.int64),
            positions=positions,
            segments=segments,
            counters=counters,
            bounds=bounds,
            labels=labels,
            is_code=is_code,
        )

    def _insert_codes(self, low: int, bounds: Ints, counters: Ints) -> NDArray[np.bool_] | None:
        """Start sequences that begin inside an example with its code; return which tokens belong to codes."""
        if self.codes is None:
            return None
        owners = np.searchsorted(self.bounds, bounds[:-1] + low, "right") - 1
        for number in np.flatnonzero(bounds[:-1] + low != self.bounds[owners]).tolist():
            begin, owner = int(bounds[number]), owners[number]
            count = min(int(self.codes.lengths[owner]), int(bounds[number + 1]) - begin)
            counters[begin : begin + count] = self.codes.sources[owner] + np.arange(count)
        return counters >= self.codes.first

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
        labeled = (edges[:-1] == self.bounds[owners]) & (edges[1:] > self.seconds[owners])
        if self.cls_last:  # the label is predicted at [CLS], which sees A and B only in the complete pair
            labeled &= edges[1:] == self.bounds[owners + 1]
        return edges - low, np.where(labeled, self.labels[owners], NO_LABEL)


def build_group(
    store: Store,
    index: ExampleIndex,
    format: Format,
    chunks: Ints,
    *,
    room: int,
    content_key: np.uint64,
    order_key: np.uint64 | None = None,
    arrange: Callable[[Ints], Ints] | None = None,
) -> ShuffleGroup:
    """Build the group of some chunks; `room` is the largest number of tokens of text in an example.

    `content_key` decides the pairs and masks of the examples, `order_key` their order (None: as in the corpus);
    `arrange` returns the final order of shuffled examples of these lengths.
    """
    chunks = np.sort(chunks)
    firsts, lasts = index.chunks[chunks], index.chunks[chunks + 1]
    numbers = keyed_random.concatenate_ranges(firsts, lasts - firsts)
    ranges = list(zip(firsts, lasts, strict=True))
    contents = _concatenate_ranges(index.examples.contents, ranges)
    offsets = keyed_random.cumulative_offsets(_concatenate_ranges(index.examples.counts, ranges))
    marks = _concatenate_ranges(index.examples.marks, zip(index.marks[chunks], index.marks[chunks + 1], strict=True))
    stored = contents if format.paired else contents - np.diff(offsets)  # without separators
    starts = np.cumsum(stored) - stored
    prefixes = None
    if store.controls:  # those of the group's documents
        used, owners = np.unique(
            store.prefix_numbers[_concatenate_ranges(index.examples.documents, ranges)], return_inverse=True
        )
        prefixes = store.prefixes.take(used)
    buffer, special_end = _read_buffer(store, index, chunks, prefixes)
    lengths, pairs, codes = contents + format.single_overhead, None, None
    if prefixes is not None:
        codes = CodeRuns(special_end + prefixes.bounds[owners], prefixes.lengths[owners], special_end)
        lengths = codes.lengths + contents + format.closed
    if format.paired:
        borders = pairing.Borders(starts, contents, offsets, marks + np.repeat(starts, np.diff(offsets)))
        documents = _concatenate_ranges(index.examples.documents, ranges)
        pairs = pairing.make_pairs(borders, documents, format.objective, room, content_key)
        lengths = pairs.first_lengths + pairs.second_lengths
        lengths += np.where(pairs.labels == NO_LABEL, format.single_overhead, format.full_overhead)
    order = np.arange(numbers.size) if order_key is None else np.argsort(keyed_random.bits(order_key, numbers))
    if arrange is not None:
        order = order[arrange(lengths[order])]
    bounds = keyed_random.cumulative_offsets(lengths[order])
    labels = seconds = None
    cls_last = store.cls_last and format.closed > 0 and codes is None
    if pairs is not None:
        runs = _pair_runs(pairs, order, format.separators, special_end, cls_last)
        labels = pairs.labels[order]
        seconds = bounds[:-1] + (not cls_last) + pairs.first_lengths[order] + format.separators
    else:
        if codes is not None:
            codes = CodeRuns(codes.sources[order], codes.lengths[order], special_end)
        texts = _Texts(starts, contents, offsets, marks)
        runs = _single_runs(texts, order, format.closed > 0, special_end, codes, cls_last)
    return ShuffleGroup(
        buffer=buffer,
        numbers=numbers[order],
        bounds=bounds,
        runs=runs,
        labels=labels,
        seconds=seconds,
        mask_key=keyed_random.key(int(content_key), "mask"),
        codes=codes,
        cls_last=cls_last,
    )


def _concatenate_ranges(array: NDArray[Any], ranges: Iterable[tuple[int, int]]) -> Ints:
    return np.concatenate([array[first:last] for first, last in ranges]).astype(np.int64)


def _read_buffer(
    store: Store, index: ExampleIndex, chunks: Ints, prefixes: Prefixes | None
) -> tuple[NDArray[Any], int]:
    """Return the text of some chunks, the special tokens and the prefixes; and where the special tokens end."""
    texts = []
    for chunk in chunks:
        shard = int(index.shard_of[chunk])
        first, last = index.tokens[chunk : chunk + 2] - index.shard_tokens[shard]
        texts.append(store.shards[shard].read(first, last, store.vocab_size))
    special = [store.special.get(kind, 0) for kind in SPECIAL]
    tail = np.array([*special, *(() if prefixes is None else prefixes.ids)], dtype=texts[0].dtype)
    return np.concatenate((*texts, tail)), sum(text.size for text in texts) + len(special)


def _pair_runs(pairs: pairing.Pairs, order: Ints, separators: int, special_end: int, cls_last: bool) -> TokenRuns:
    """Lay out [CLS] A [SEP] B [SEP], or [CLS] A [SEP] if there is no B; or A [SEP] B [SEP] [CLS]."""
    count = order.size
    alone = pairs.labels[order] == NO_LABEL
    lengths = np.ones((count, 5), np.int64)
    lengths[:, 1] = pairs.first_lengths[order]
    lengths[:, 2] = np.where(alone, 0, separators)
    lengths[:, 3] = pairs.second_lengths[order]
    sources = np.empty((count, 5), np.int64)
    sources[:, [0, 2, 4]] = special_end + CLS, special_end + SEP, special_end + LAST_SEP
    sources[:, 1], sources[:, 3] = pairs.first_starts[order], pairs.second_starts[order]
    segments = np.tile(np.array([0, 0, 0, 1, 1], np.uint8), (count, 1))
    segments[alone, 4] = 0
    if cls_last:
        lengths, sources, segments = np.roll(lengths, -1, 1), np.roll(sources, -1, 1), np.roll(segments, -1, 1)
        segments[:, 4] = CLS_SEGMENT
    return _token_runs(lengths.ravel(), sources.ravel(), segments.ravel())


class _Texts(NamedTuple):
    """Examples of one segment."""

    starts: Ints  # first token of each in the buffer
    contents: Ints  # length of each
    offsets: Ints  # examples + 1: into the marks
    marks: Ints


def _single_runs(
    texts: _Texts, order: Ints, framed: bool, special_end: int, codes: CodeRuns | None, cls_last: bool
) -> TokenRuns:
    """Lay out [CLS] text [SEP], or text [SEP] [CLS], with a separator at each mark of the text; a stream is the text
    alone. A control code replaces [CLS], and precedes a stream too."""
    starts, contents, offsets, marks = texts
    opened = framed or codes is not None
    counts = np.diff(offsets)[order]
    marks = marks[keyed_random.concatenate_ranges(offsets[order], counts)]
    pieces = counts + 1  # pieces of text between separators
    ends_of = np.cumsum(pieces)
    firsts = ends_of - pieces
    heads = np.zeros(int(ends_of[-1]), np.bool_)
    heads[firsts] = True
    tails = np.zeros_like(heads)
    tails[ends_of - 1] = True
    begins = np.zeros(heads.size, np.int64)
    begins[~heads] = marks + 1
    ends = np.repeat(contents[order], pieces)
    ends[~tails] = marks
    skipped = np.arange(heads.size) - np.repeat(firsts, pieces)  # separators before the piece
    slots = pieces + counts + opened + framed
    first_slots = np.cumsum(slots) - slots
    lengths = np.ones(int(slots.sum()), np.int64)
    sources = np.full(lengths.size, special_end + SEP)
    segments = np.zeros(lengths.size, np.uint8)
    text = np.repeat(first_slots + (opened and not cls_last), pieces) + 2 * skipped
    lengths[text] = ends - begins
    sources[text] = np.repeat(starts[order], pieces) + begins - skipped
    if codes is not None:
        sources[first_slots], lengths[first_slots] = codes.sources, codes.lengths
    elif opened:
        cls_slots = first_slots + slots - 1 if cls_last else first_slots
        sources[cls_slots] = special_end + CLS
        segments[cls_slots] = CLS_SEGMENT if cls_last else 0
    return _token_runs(lengths, sources, segments)


def _token_runs(lengths: Ints, sources: Ints, segments: NDArray[np.uint8]) -> TokenRuns:
    filled = lengths > 0
    if not filled.all():
        lengths, sources, segments = lengths[filled], sources[filled], segments[filled]
    return TokenRuns(keyed_random.cumulative_offsets(lengths), sources, segments)
