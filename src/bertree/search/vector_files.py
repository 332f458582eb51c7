"""The vectors of an index, in files that are written once and then only read.

A file has a header, the number of each vector and the vectors in float32, memory-mapped: processes that search the same
index share the pages, and every score is computed from these exact vectors. Positions count the vectors of all files in
order; numbers are permanent, positions change when files are rewritten.
"""

import hashlib
import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.files.atomic import sync
from bertree.files.formats import check_regular

Vectors = NDArray[np.float32]
Numbers = NDArray[np.int64]
WHICH = "`bertree verify` says which file; restore it, or build the index again"
MAGIC, HEADER = b"bertree vectors\n", 64
LAYOUT = struct.Struct("<16sQQQ")  # magic, layout, vectors, dimension
LEAST_BLOCK, MOST_BLOCKS = 1 << 18, 4096  # bytes of a block with a checksum, and blocks of a file
ADVICE = "build the index again, or restore this file"
REMAKE = "make it again with `bertree index upgrade`"  # of a word table
LEAST = 1 << 20  # bytes below which the size of a file does not matter
BLOCK = 1 << 14  # vectors copied or compared at once


@dataclass(frozen=True)
class IndexFile:
    """One file of an index, as its state describes it."""

    name: str
    count: int
    bytes: int
    hash: str  # sha256
    blocks: str = ""  # crc32 of each block in hex; "": made by an earlier version

    def __post_init__(self) -> None:
        if self.blocks and len(bytes.fromhex(self.blocks)) != 4 * -(-self.bytes // self.block_size):
            raise ValueError(f"the blocks of {self.name!r}")
        if not 0 <= self.count <= self.bytes:
            raise ValueError(f"{self.count} rows in {self.name!r}")
        if "/" in self.name or self.name.startswith("."):
            raise ValueError(f"a file of the name {self.name!r}")

    @classmethod
    def describe(cls, folder: Path, name: str, count: int) -> "IndexFile":
        """Describe a file that is complete, with its checksums."""
        path = folder / name
        size, digest, blocks = path.stat().st_size, hashlib.sha256(), bytearray()
        with path.open("rb") as file:
            while block := file.read(_block_size(size)):
                digest.update(block)
                blocks += zlib.crc32(block).to_bytes(4, "big")
        return cls(name, count, size, digest.hexdigest(), blocks.hex())

    @property
    def block_size(self) -> int:
        """Bytes of a block that has a checksum of its own."""
        return _block_size(self.bytes)


def _block_size(size: int) -> int:
    return max(LEAST_BLOCK, -(-size // MOST_BLOCKS))


class CheckedFile:
    """A mapped file whose blocks are compared with their checksums when they are first read."""

    def __init__(self, path: Path, part: IndexFile, mapped: NDArray[np.uint8], advice: str) -> None:
        self._damaged = f"{path}: is damaged; {advice}"
        self._mapped, self._size = mapped, part.block_size
        self._expected = np.frombuffer(bytes.fromhex(part.blocks), ">u4")
        self._open_items = bytearray(b"\1" * len(self._expected))  # 1: not compared yet
        self._open = np.frombuffer(self._open_items, np.bool_)  # the same memory

    def check(self, start: int, length: int) -> None:
        """Compare the blocks of a range of bytes."""
        first, last = start // self._size, (start + length - 1) // self._size
        if self._open_items.find(1, first, last + 1) >= 0:
            self._check(np.arange(first, last + 1))

    def check_rows(self, starts: Numbers, length: int) -> None:
        """Compare the blocks of many short ranges of one length."""
        if 1 in self._open_items:
            for step in (*range(0, length, self._size), length - 1):
                self._check((starts + step) // self._size)

    def _check(self, numbers: Numbers) -> None:
        for number in set(numbers[self._open[numbers]].tolist()):
            block = self._mapped[number * self._size : (number + 1) * self._size]
            if zlib.crc32(block.data) != self._expected[number]:
                raise UserError(self._damaged)
            self._open[number] = False


def write_vectors(
    folder: Path, name: str, blocks: Iterator[tuple[Numbers, Vectors]], count: int, dimension: int
) -> IndexFile:
    """Write a new file of `count` vectors and sync it."""
    path = folder / name
    start = _vectors_start(count)
    done = 0
    with path.open("wb") as file:
        file.truncate(start + 4 * count * dimension)
        file.write(LAYOUT.pack(MAGIC, 1, count, dimension))
        for numbers, vectors in blocks:
            file.seek(HEADER + 8 * done)
            file.write(np.ascontiguousarray(numbers, "<i8").tobytes())
            file.seek(start + 4 * done * dimension)
            file.write(np.ascontiguousarray(vectors, "<f4").data)
            done += len(numbers)
        assert done == count, f"{done} vectors where {count} were announced"
        file.flush()
        os.fsync(file.fileno())
    sync(folder)
    return IndexFile.describe(folder, name, count)


def merge_start(sizes: Sequence[int], new: int, most: int) -> int:
    """Return the index of the first file to merge with a new one (sizes in bytes), so that at most `most` have about
    one size."""
    first = len(sizes)
    while True:
        begin, level = first, _level(new, most)
        while begin and _level(sizes[begin - 1], most) <= level:
            begin -= 1
        if first - begin + 1 < most:
            return first
        first, new = begin, new + sum(sizes[begin:first])


def _level(size: int, most: int) -> int:
    return max(0, math.floor(math.log(max(size, 1) / LEAST, most)))


def missing_file(path: str) -> UserError:
    """Return the error for a file of an index that is gone."""
    return UserError(f"{path}: is missing; {REMAKE if Path(path).name.startswith('words-') else ADVICE}")


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file; raise FileNotFoundError if it is gone."""
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _vectors_start(count: int) -> int:
    """Return where the vectors begin: at a multiple of 64 bytes."""
    return (HEADER + 8 * count + 63) // 64 * 64


class MappedVectors:
    """Several files as one table of vectors."""

    def __init__(self, folder: Path, parts: Sequence[IndexFile], dimension: int) -> None:
        self.folder, self.parts, self.dimension = folder, tuple(parts), dimension
        opened = [_map_file(folder / part.name, part, dimension) for part in parts]
        self._tables = [vectors for _, vectors, _ in opened]
        self._files = [file for _, _, file in opened]
        self.numbers: Numbers = np.concatenate([np.empty(0, np.int64), *(numbers for numbers, _, _ in opened)])
        self._ends = np.cumsum([0, *(part.count for part in parts)])
        if len(self.numbers) > 1 and not (np.diff(self.numbers) > 0).all():
            raise UserError(f"{folder}: the numbers of its vectors are out of order; {WHICH}")

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, positions: Numbers) -> Vectors:
        """Return the vectors at these positions, which ascend."""
        assert (positions[:-1] <= positions[1:]).all()
        cuts = np.searchsorted(positions, self._ends).tolist()
        blocks = [
            self._rows(table, positions[start:end] - first)
            for table, (start, end, first) in enumerate(zip(cuts[:-1], cuts[1:], self._ends.tolist(), strict=False))
            if start < end
        ]
        return blocks[0] if len(blocks) == 1 else np.concatenate([np.empty((0, self.dimension), np.float32), *blocks])

    def _rows(self, table: int, rows: Numbers) -> Vectors:
        self._files[table].check_rows(
            _vectors_start(self.parts[table].count) + 4 * self.dimension * rows, 4 * self.dimension
        )
        return self._tables[table].take(rows, 0)

    def blocks(self, first: int = 0) -> Iterator[tuple[int, Vectors]]:
        """Yield all vectors from a position on in blocks, with the position of each block."""
        for start, table, file in zip(self._ends.tolist(), self._tables, self._files, strict=False):
            for at in range(max(first - start, 0), len(table), BLOCK):
                block = table[at : at + BLOCK]
                file.check(_vectors_start(len(table)) + 4 * self.dimension * at, block.nbytes)
                yield start + at, block

    def positions(self, numbers: Numbers) -> Numbers:
        """Return the sorted positions of the vectors with these numbers, as far as they exist."""
        positions = np.searchsorted(self.numbers, numbers)
        inside = positions < len(self.numbers)
        positions, numbers = positions[inside], numbers[inside]
        return np.sort(positions[self.numbers[positions] == numbers])

    def copy(self, positions: Numbers) -> Iterator[tuple[Numbers, Vectors]]:
        """Yield numbers and vectors at these positions, as `write_vectors` takes them."""
        for at in range(0, len(positions), BLOCK):
            block = positions[at : at + BLOCK]
            yield self.numbers[block], self[block]


def _map_file(path: Path, part: IndexFile, dimension: int) -> tuple[Numbers, Vectors, CheckedFile]:
    """Return the numbers and the memory-mapped vectors of a file, after checking its size and header."""
    broken = f"{path}: is damaged or cut off; {ADVICE}"
    start = _vectors_start(part.count)
    size = start + 4 * part.count * dimension
    with _open_file(path) as file:
        if os.fstat(file.fileno()).st_size != size or size != part.bytes:
            raise UserError(broken)
        if file.read(LAYOUT.size) != LAYOUT.pack(MAGIC, 1, part.count, dimension):
            raise UserError(broken)
        mapped = np.asarray(np.memmap(file, np.uint8, "r"))
    checked = CheckedFile(path, part, mapped, ADVICE)
    checked.check(0, start)
    numbers = mapped[HEADER : HEADER + 8 * part.count].view("<i8").astype(np.int64)
    return numbers, mapped[start:].view("<f4").reshape(part.count, dimension), checked


@contextmanager
def _open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read; raise FileNotFoundError if it is gone, report other errors in one line."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def top_k(scores_qn: Vectors, k: int) -> tuple[NDArray[np.int64], Vectors]:
    """Return the columns and values of the k largest scores of each row, largest first; the first of equals."""
    k = min(k, scores_qn.shape[1])
    if k == 0:
        return np.empty((len(scores_qn), 0), np.int64), scores_qn[:, :0]
    if k < scores_qn.shape[1]:
        least_q1 = -np.partition(-scores_qn, k - 1, axis=1)[:, k - 1 : k]
        chosen_qn = scores_qn >= least_q1
        if chosen_qn.sum() > k * len(scores_qn):  # of equals at the limit, the first
            last_qn = scores_qn == least_q1
            room_q1 = k - (chosen_qn & ~last_qn).sum(1, keepdims=True)
            chosen_qn &= ~last_qn | (last_qn.cumsum(1) <= room_q1)
        columns = np.nonzero(chosen_qn)[1].reshape(-1, k)
        scores_qn = np.take_along_axis(scores_qn, columns, 1)
    else:
        columns = np.broadcast_to(np.arange(k), scores_qn.shape)
    order = np.argsort(-scores_qn, axis=1, kind="stable")
    return np.take_along_axis(columns, order, 1), np.take_along_axis(scores_qn, order, 1)
