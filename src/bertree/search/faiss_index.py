"""Which kind of index suits how many vectors, and FAISS, which builds and asks the larger kinds.

    flat    every vector is compared: exact, nothing to build, its time grows with the number of vectors
    hnsw    a graph of neighbours: fast, but it holds every vector again and takes long to build
    ivfpq   cells of near vectors, each vector in a few dozen bytes: small and fast to build

None of the latter two is believed: what they find is compared again with the exact vectors (`WANTED`).
"""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError, suggest
from bertree.search.vector_files import IndexFile, MappedVectors, Numbers, Vectors, sha256_of

SETTINGS = {"flat": (), "hnsw": ("beam",), "ivfpq": ("cells", "probes", "trained")}  # what each kind remembers
KINDS = tuple(SETTINGS)
FLAT = 1 << 24  # numbers that are compared in a few milliseconds
GRAPH = 250_000  # vectors from which on building a graph takes more than a few minutes
LEAST = 1000  # vectors an ivfpq can be learned from
LINKS, BUILD_BEAM, BEAM = 32, 100, 192  # of hnsw: neighbours, candidates while building, while searching
ROUNDS, PER_CELL = 10, 64  # of k-means, and vectors it sees for each cell
SHARE = 3 / 16  # of the cells that are looked into, where there are a thousand; fewer where there are more
WANTED, MORE = 800, 10  # candidates of ivfpq that are compared exactly, and more for each result that is wanted
BLOCK = 4096
Keep = NDArray[np.bool_]  # of each position, whether it may be found
Watch = Callable[[str, int, int | None], None]  # what is done, how many of them, of how many


def no_progress(what: str, done: int, total: int | None) -> None:
    """For whoever does not watch."""


def import_faiss() -> Any:
    """FAISS, with as many threads as torch has, or one line on how to get it."""
    try:
        import faiss
    except ImportError:
        raise UserError(
            "this kind of index needs FAISS; pip install 'bertree[search]', or ask for --kind flat"
        ) from None
    import torch

    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss


def choose_kind(count: int, dimension: int, asked: str = "auto") -> tuple[str, str]:
    """A kind, and why it is this one."""
    if asked != "auto":
        if asked not in KINDS:
            raise UserError(f"kind '{asked}': unknown, {suggest(asked, [*KINDS, 'auto'])}")
        if asked == "ivfpq" and count < LEAST:
            return "flat", f"{count:,} vectors: too few to learn cells from, so all of them are compared"
        return asked, "asked for"
    size = f"{count:,} vectors of {dimension} numbers"
    if count * dimension <= FLAT:
        return "flat", f"{size}: comparing all of them takes a few milliseconds, and is exact"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = count * (4 * dimension + 8 * LINKS + 16)
    if count > GRAPH:
        return "ivfpq", f"{size}: a graph of more than {GRAPH:,} takes very long to build; cells of short codes do not"
    if needed > memory // 4:
        return "ivfpq", f"{size}: a graph would take {needed / 2**30:.1f} GB, more than a quarter of the memory"
    return "hnsw", f"{size}: too many to compare all, few enough for a graph ({needed / 2**20:,.0f} MB)"


def check_kind(asked: str) -> None:
    """Refuse a kind that is unknown or cannot be built here, before the work is done."""
    if choose_kind(LEAST, 1, asked)[0] != "flat":
        import_faiss()


def cell_count(count: int) -> int:
    """Cells of an ivfpq: about twice the square root, a power of two, none of them nearly empty."""
    most = max(1, count // PER_CELL)
    return int(2 ** min(np.floor(np.log2(most)), np.round(np.log2(2 * np.sqrt(max(count, 1))))))


def code_size(dimension: int) -> int:
    """Parts a vector is divided into for its code of four bits each: four numbers or fewer in each."""
    return next(parts for parts in range((dimension + 3) // 4, dimension + 1) if dimension % parts == 0)


@dataclass
class FaissIndex:
    """A FAISS index over the first `count` vectors, and how it is asked."""

    kind: str
    index: Any
    count: int
    settings: dict[str, int]

    @classmethod
    def build(cls, kind: str, vectors: MappedVectors, watch: Watch = no_progress) -> "FaissIndex":
        """Of all vectors."""
        faiss = import_faiss()
        d, count = vectors.dimension, len(vectors)
        if kind == "hnsw":
            index = faiss.IndexHNSWFlat(d, LINKS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = BUILD_BEAM
            settings = {"beam": BEAM}
        else:
            number = cell_count(count)
            index = faiss.index_factory(d, f"IVF{number},PQ{code_size(d)}x4fs", faiss.METRIC_INNER_PRODUCT)
            index.cp.niter, index.cp.max_points_per_centroid = ROUNDS, PER_CELL
            sample = np.random.default_rng(0).permutation(count)[: max(number * PER_CELL, 1 << 16)]
            watch(f"learning {number:,} cells", 0, None)
            index.train(vectors[np.sort(sample)])
            probes = max(1, min(number, round(SHARE * np.sqrt(1024 * number))))
            settings = {"cells": number, "probes": probes, "trained": count}
        graph = cls(kind, index, 0, settings)
        graph.extend(vectors, watch)
        return graph

    def extend(self, vectors: MappedVectors, watch: Watch = no_progress) -> None:
        """Take in the vectors that came since."""
        total = len(vectors)
        for _, some in vectors.blocks(self.count):
            for at in range(0, len(some), BLOCK):
                block = np.ascontiguousarray(some[at : at + BLOCK])
                self.index.add(block)
                self.count += len(block)
                watch(f"building {self.kind}", self.count, total)

    def write(self, folder: Path, name: str) -> IndexFile:
        """A new file, on the disk when this returns."""
        path = folder / name
        try:
            import_faiss().write_index(self.index, str(path))
        except RuntimeError as error:
            raise UserError(f"{path}: cannot be written ({_reason(error)})") from None
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return IndexFile(name, self.count, path.stat().st_size, sha256_of(path))

    @classmethod
    def read(cls, folder: Path, part: IndexFile, kind: str, settings: dict[str, int], dimension: int) -> "FaissIndex":
        """From a file that is, byte for byte, the one that was written: FAISS trusts what it reads."""
        path = folder / part.name
        broken = f"{path}: is damaged or cut off; build the index again, or restore this file"
        if path.stat().st_size != part.bytes or sha256_of(path) != part.hash:
            raise UserError(broken)
        faiss = import_faiss()
        try:
            index = faiss.read_index(str(path))
        except RuntimeError as error:
            if not path.exists():  # a writer has replaced it since it was checked
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
            raise UserError(f"{path}: FAISS {faiss.__version__} cannot read it ({_reason(error)})") from None
        kinds = {"hnsw": faiss.IndexHNSWFlat, "ivfpq": faiss.IndexIVFPQFastScan}
        if not isinstance(index, kinds[kind]) or (index.d, index.ntotal) != (dimension, part.count):
            raise UserError(broken)
        return cls(kind, index, part.count, dict(settings))

    def candidates(self, queries_qd: Vectors, k: int, allowed: Keep | None = None) -> Iterator[Numbers]:
        """For each query, positions that hold its nearest vectors with some others; `allowed`: only those."""
        faiss = import_faiss()
        count, selector = self.count, None
        if allowed is not None:
            count = int(np.count_nonzero(allowed))
            bits = np.packbits(allowed, bitorder="little")  # must outlive the search
            selector = faiss.IDSelectorBitmap(self.count, faiss.swig_ptr(bits))
        share = max(count, 1) / max(self.count, 1)
        if self.kind == "hnsw":
            wanted = 2 * k
            beam = int(min(self.count, max(self.settings["beam"], 2 * wanted) / share))
            parameters = faiss.SearchParametersHNSW(efSearch=beam, sel=selector)
        else:
            wanted = WANTED + MORE * k
            probes = int(min(self.settings["cells"], np.ceil(self.settings["probes"] / share)))
            parameters = faiss.SearchParametersIVF(nprobe=probes, sel=selector)
        if not count:
            yield from (np.empty(0, np.int64) for _ in queries_qd)
            return
        _, found = self.index.search(np.ascontiguousarray(queries_qd), min(wanted, count), params=parameters)
        for row in found:
            yield np.sort(row[row >= 0])


def _reason(error: Exception) -> str:
    """The last thing FAISS says, without where in its sources it says it."""
    return str(error).strip().splitlines()[-1].split("Error: ")[-1][:200]
