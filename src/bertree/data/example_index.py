"""The example index of a store: built once per format and length limit, and cached in the store's folder.

It takes at most ten bytes per example and two bytes per mark, is memory-mapped, and is divided into chunks of
contiguous examples, the unit in which an epoch is shuffled. A cached index that is truncated, altered or of another
store is built again; a read-only store is used without a cache.
"""

import contextlib
import json
import zlib
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
