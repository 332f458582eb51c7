"""The example index of a store, and the order of examples in the batch stream.

The index is built once per format and length limit, and cached in the store's folder. It takes at most ten bytes per
example and two bytes per mark, is memory-mapped, and is divided into chunks of contiguous examples, the unit in which
an epoch is shuffled. A cached index that is truncated, altered or of another store is built again; a read-only store is
used without a cache.

In the order of the batch stream (data/stream.py), batch borders fall on the ends of examples. Batches are equal pieces
of one long stream of examples. In a random order most borders fall inside an example, and with few examples per batch,
moving the border to the end of the example would waste much of a batch. So the examples are distributed: longest first,
each to the piece with the most room left; then the fullest and the emptiest pieces exchange examples until they differ
by a few tokens; and the pieces are ordered so that the sum of the differences stays small. Which examples share a batch
is still random, up to their lengths.
"""

import contextlib
import heapq
import json
import zlib
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from bertree.console import bar
from bertree.data.formats import Examples, Format, cut_shard
from bertree.data.store import Store
from bertree.errors import UserError
from bertree.files.atomic import AtomicFile
from bertree.keyed_random import Ints, cumulative_offsets

VERSION = 1
CHUNK_TOKENS = 1 << 20
FOLDER = "index"
TYPES = {"I64": np.int64, "U32": np.uint32, "U16": np.uint16}
ROUNDS = 8  # of exchanges at most; two or three are usual
ATTEMPTS = 6  # at most, to meet the first border


@dataclass(frozen=True, kw_only=True)
class ExampleIndex:
    """Examples, and the chunks in which they are shuffled."""

    examples: Examples
    chunks: Ints  # chunks + 1: first example of each chunk
    totals: Ints  # tokens of each chunk in batches, including special tokens
    shard_of: Ints  # shard of each chunk
    tokens: Ints  # chunks + 1: tokens of the corpus before each chunk
    marks: Ints  # chunks + 1: marks before each chunk
    shard_tokens: Ints  # shards + 1: tokens of the corpus before each shard

    @classmethod
    def load_or_build(cls, store: Store, format: Format, max_length: int, seed: int) -> "ExampleIndex":
        """Load the index from the store's folder, or build it and save it there."""
        format.room(max_length, store.prefixes.longest)
        if store.tokens == 0:
            raise UserError(f"{store.name}: has no tokens; prepare it from a corpus with text")
        if store.folder is None:
            return cls._from_examples(_build(store, format, max_length, seed), format, store)
        path = store.folder / FOLDER / _cache_name(store, format, max_length, seed)
        examples = _read(path, store)
        if examples is not None and (index := cls._from_examples(examples, format, store))._fits():
            return index
        examples = _build(store, format, max_length, seed)
        with contextlib.suppress(OSError):
            _write(path, examples)
        return cls._from_examples(examples, format, store)

    def _fits(self) -> bool:
        """Return whether the examples of each shard have as many tokens as the shard."""
        first_chunks = np.searchsorted(self.shard_of, np.arange(self.shard_tokens.size))
        return bool((self.tokens[first_chunks] == self.shard_tokens).all())

    @classmethod
    def _from_examples(cls, examples: Examples, format: Format, store: Store) -> "ExampleIndex":
        chunks, shard_of = [], []
        for shard, (first, last) in enumerate(zip(examples.shards[:-1], examples.shards[1:], strict=True)):
            ends = np.cumsum(examples.contents[first:last], dtype=np.int64)
            count = max(1, round(int(ends[-1]) / CHUNK_TOKENS))
            borders = np.arange(count) * int(ends[-1]) // count
            firsts = np.unique(np.searchsorted(ends, borders, "right"))
            chunks.append(first + firsts)
            shard_of += [shard] * firsts.size
        starts = np.concatenate(chunks)
        sizes = np.diff(np.append(starts, examples.contents.size))
        contents = np.add.reduceat(examples.contents, starts, dtype=np.int64)
        marks = np.add.reduceat(examples.counts, starts, dtype=np.int64)
        totals = contents + sizes * format.single_overhead
        if store.controls:
            totals = contents + sizes * format.closed
            totals += np.add.reduceat(store.prefixes.lengths[store.prefix_numbers[examples.documents]], starts)
        if format.paired:
            totals += np.add.reduceat(examples.counts > 0, starts, dtype=np.int64) * (
                format.full_overhead - format.single_overhead
            )
        return cls(
            examples=examples,
            chunks=np.append(starts, examples.contents.size),
            totals=totals,
            shard_of=np.array(shard_of, dtype=np.int64),
            tokens=cumulative_offsets(contents if format.paired else contents - marks),
            marks=cumulative_offsets(marks),
            shard_tokens=cumulative_offsets(np.array([shard.tokens.size for shard in store.shards])),
        )


def _build(store: Store, format: Format, max_length: int, seed: int) -> Examples:
    pieces: list[Examples] = []
    documents: list[int] = []
    tokens = 0
    longest, separated = store.prefixes.longest, "sep" in store.special
    with bar("indexing examples", len(store.shards)) as progress:
        for shard in store.shards:
            pieces.append(
                cut_shard(shard, format, max_length, seed=seed, first_token=tokens, prefix=longest, separated=separated)
            )
            tokens += shard.tokens.size
            documents.append(len(shard.document_starts) - 1)
            progress.advance()
    return Examples.join(pieces, documents, max_length)


def _cache_name(store: Store, format: Format, max_length: int, seed: int) -> str:
    """Return the name of the cache file: all settings that change the examples' borders, so not the pair objective."""
    settings = [store.fingerprint[:16], f"v{VERSION}", format.kind, str(max_length)]
    if format.paired:
        settings += [f"{format.separators}sep"]
    if format.kind == "segment-pair":
        settings += [f"short{format.short:g}", f"seed{seed}"]
    return "-".join(settings) + ".safetensors"


def _write(path: Path, examples: Examples) -> None:
    arrays = examples.arrays()
    data = save(arrays, metadata={"checksum": str(_checksum(arrays))})
    path.parent.mkdir(exist_ok=True)
    with AtomicFile(path) as file:
        file.write(data)


def _read(path: Path, store: Store) -> Examples | None:
    """Return the cached index, memory-mapped; None if it is missing or invalid."""
    if not path.is_file():
        return None
    try:
        raw = np.memmap(path, dtype=np.uint8, mode="r")
        size = int.from_bytes(raw[:8].tobytes(), "little")
        header = json.loads(raw[8 : 8 + size].tobytes())
        checksum = header.pop("__metadata__")["checksum"]
        arrays: dict[str, NDArray[Any]] = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            arrays[name] = raw[8 + size + begin : 8 + size + end].view(TYPES[entry["dtype"]])
        if str(_checksum(arrays)) != checksum:
            return None
        examples = Examples(**arrays)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    sizes = (examples.shards.size, examples.contents.size)
    return examples if sizes == (len(store.shards) + 1, int(examples.shards[-1])) else None


def _checksum(arrays: dict[str, NDArray[Any]]) -> int:
    value = 0
    for name in sorted(arrays):
        value = zlib.crc32(np.ascontiguousarray(arrays[name]).data, value)
    return value


def balanced_order(lengths: Ints, start: int, stride: int, slack: int) -> Ints:
    """Return an order of examples that begin at `start`, for borders at the multiples of `stride`.

    A border is met if an example ends at it or up to `slack` tokens after it. The examples come in random order, which
    breaks ties and is kept within each piece.
    """
    longest = int(lengths.max(initial=0))
    rest = np.arange(lengths.size)
    if slack == 0 or slack >= longest or stride < 2 * longest:  # impossible, or not needed
        return rest
    front: list[int] = []
    for attempt in range(ATTEMPTS):
        remaining = lengths[rest]
        room = stride - start % stride  # in the first piece
        fitting = np.flatnonzero((remaining >= room) & (remaining <= room + slack))
        if room < longest and fitting.size:  # too little to distribute, but one example fills it
            leading = int(fitting[0])
        else:
            order, met = _fill_pieces(remaining, start, stride, slack)
            if met or attempt == ATTEMPTS - 1:
                return np.append(front, rest[order]).astype(np.int64)
            leading = 0  # the first border is missed: another example before it may help
        front.append(int(rest[leading]))
        start += int(remaining[leading])
        rest = np.delete(rest, leading)
    return np.append(front, rest).astype(np.int64)


def _fill_pieces(lengths: Ints, start: int, stride: int, slack: int) -> tuple[Ints, bool]:
    """Return an order in which each piece gets its share, and whether the first border is met."""
    total = int(lengths.sum())
    before = start % stride  # tokens of the first piece before these examples
    pieces = -(-(before + total) // stride)
    if pieces < 2:
        return np.arange(lengths.size), True
    # Aim half the slack after each border, to leave as much on either side.
    sizes = [0] * pieces
    sizes[0] = before - slack // 2
    sizes[-1] += pieces * stride - before - total + slack // 2
    members = _assign_to_emptiest(lengths, sizes)
    _exchange(members, sizes, stride, slack // 8)
    turn = np.empty(lengths.size, np.int64)
    for index, piece in enumerate(_order_pieces([size - stride for size in sizes])):
        turn[[number for _, number in members[piece]]] = index
    return np.argsort(turn, kind="stable"), abs(sizes[0] - stride) <= slack // 2


def _assign_to_emptiest(lengths: Ints, sizes: list[int]) -> list[list[tuple[int, int]]]:
    """Return the (length, number) of the examples in each piece, shortest first; update `sizes`."""
    members: list[list[tuple[int, int]]] = [[] for _ in sizes]
    heap = [(size, piece) for piece, size in enumerate(sizes)]
    heapq.heapify(heap)
    order = np.argsort(-lengths, kind="stable")
    for number, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        size, piece = heap[0]
        heapq.heapreplace(heap, (size + length, piece))
        members[piece].append((length, number))
    for size, piece in heap:
        sizes[piece] = size
    for examples in members:
        examples.sort()
    return members


def _exchange(members: list[list[tuple[int, int]]], sizes: list[int], target: int, tolerance: int) -> None:
    """Exchange examples between the fullest and emptiest pieces, in rounds, until sizes are near `target`."""
    for _ in range(ROUNDS):
        order = sorted(range(len(sizes)), key=sizes.__getitem__)
        if max(sizes[order[-1]] - target, target - sizes[order[0]]) <= tolerance:
            return
        for low, high in zip(order[: len(order) // 2], reversed(order), strict=False):
            gap = (sizes[high] - sizes[low]) // 2
            if gap <= tolerance or not members[low] or not members[high]:
                continue
            best = min((_nearest_length(members[low], length, gap), i) for i, (length, _) in enumerate(members[high]))
            (difference, low_index), high_index = best
            if difference < gap:  # the exchange brings them closer
                longer, shorter = members[high].pop(high_index), members[low].pop(low_index)
                members[low].insert(bisect_left(members[low], longer), longer)
                members[high].insert(bisect_left(members[high], shorter), shorter)
                sizes[high] += shorter[0] - longer[0]
                sizes[low] += longer[0] - shorter[0]


def _nearest_length(examples: list[tuple[int, int]], length: int, gap: int) -> tuple[int, int]:
    """Return how far the nearest example of a piece is from `length` - `gap`, and its index."""
    at = bisect_left(examples, (length - gap, -1))
    return min((abs(length - gap - examples[i][0]), i) for i in (at - 1, at) if 0 <= i < len(examples))


def _order_pieces(differences: list[int]) -> list[int]:
    """Return an order of the pieces, first and last fixed, that keeps the running sum of differences near 0.

    A piece that differs much comes late, so that it shifts few borders.
    """
    middle = sorted(range(1, len(differences) - 1), key=lambda piece: -abs(differences[piece]))
    above = [piece for piece in middle if differences[piece] >= 0]
    below = [piece for piece in middle if differences[piece] < 0]
    order, drift = [0], differences[0]
    while above or below:
        side = above if above and (drift <= 0 or not below) else below
        piece = side.pop()
        drift += differences[piece]
        order.append(piece)
    return [*order, len(differences) - 1]
