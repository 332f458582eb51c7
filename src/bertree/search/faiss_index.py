"""Choose the kind of index for a number of vectors, and build and search the larger kinds with FAISS.

    flat    every vector is compared: exact, nothing to build, time grows with the number of vectors
    hnsw    a graph of neighbours: fast, but it holds every vector again and takes long to build
    ivfpq   cells of near vectors, each vector in a few dozen bytes: small and fast to build

The results of the latter two are only candidates: they are compared again with the exact vectors (`CANDIDATES`).
"""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError, install_hint, suggest
from bertree.files.atomic import sync
from bertree.search.vector_files import IndexFile, MappedVectors, Numbers, Vectors, sha256_of

SETTINGS = {"flat": (), "hnsw": ("beam",), "ivfpq": ("cells", "probes", "trained")}  # settings of each kind
KINDS = tuple(SETTINGS)
FLAT = 1 << 24  # numbers that can be compared in a few milliseconds
GRAPH = 250_000  # vectors above which building a graph takes more than a few minutes
MIN_TRAINING = 1000  # vectors needed to train an ivfpq
LINKS, BUILD_BEAM, BEAM = 32, 100, 192  # hnsw: neighbours, candidates while building, candidates while searching
ROUNDS, PER_CELL = 10, 64  # k-means: iterations, and vectors per cell
SHARE = 3 / 16  # of the cells to search with a thousand cells; fewer with more
CANDIDATES, CANDIDATES_PER_RESULT = 800, 10  # ivfpq: candidates that are compared exactly, and more per result
BLOCK = 4096
Keep = NDArray[np.bool_]  # whether each position may be found
Watch = Callable[[str, int, int | None], None]  # what is being done, how many are done, of how many


def no_progress(what: str, done: int, total: int | None) -> None:
    """Ignore progress reports."""


def import_faiss() -> Any:
    """Import FAISS, with as many threads as torch uses, or say how to install it."""
    try:
        import faiss
    except ImportError:
        raise UserError(f"this kind of index needs FAISS; use `kind=flat`, or {install_hint('search')}") from None
    import torch

    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss


def choose_kind(count: int, dimension: int, requested: str = "auto") -> tuple[str, str]:
    """Return a kind of index, and the reason for it."""
    if requested != "auto":
        if requested not in KINDS:
            raise UserError(f"kind '{requested}': unknown, {suggest(requested, [*KINDS, 'auto'])}")
        if requested == "ivfpq" and count < MIN_TRAINING:
            return "flat", f"{count:,} vectors: too few to learn cells from, so all of them are compared"
        return requested, "asked for"
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


def check_kind(requested: str) -> None:
    """Raise an error for a kind that is unknown or cannot be built here, before any work is done."""
    if choose_kind(MIN_TRAINING, 1, requested)[0] != "flat":
        import_faiss()


def cell_count(count: int) -> int:
    """Return the number of cells of an ivfpq: about twice the square root, a power of two, no cell nearly empty."""
    most = max(1, count // PER_CELL)
    return int(2 ** min(np.floor(np.log2(most)), np.round(np.log2(2 * np.sqrt(max(count, 1))))))


def code_size(dimension: int) -> int:
    """Return the number of parts of a vector's code, four bits each, with at most four dimensions per part."""
    return next(parts for parts in range((dimension + 3) // 4, dimension + 1) if dimension % parts == 0)


@dataclass
class FaissIndex:
    """A FAISS index over the first `count` vectors, with its search settings."""

    kind: str
    index: Any
    count: int
    settings: dict[str, int]

    @classmethod
    def build(cls, kind: str, vectors: MappedVectors, watch: Watch = no_progress) -> "FaissIndex":
        """Build an index of all vectors."""
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
            watch(f"training {number:,} cells", 0, None)
            index.train(vectors[np.sort(sample)])
            probes = max(1, min(number, round(SHARE * np.sqrt(1024 * number))))
            settings = {"cells": number, "probes": probes, "trained": count}
        graph = cls(kind, index, 0, settings)
        graph.extend(vectors, watch)
        return graph

    def extend(self, vectors: MappedVectors, watch: Watch = no_progress) -> None:
        """Add the vectors that came since."""
        total = len(vectors)
        for _, block in vectors.blocks(self.count):
            for at in range(0, len(block), BLOCK):
                part = np.ascontiguousarray(block[at : at + BLOCK])
                self.index.add(part)
                self.count += len(part)
                watch(f"building {self.kind}", self.count, total)

    def write(self, folder: Path, name: str) -> IndexFile:
        """Write a new file and sync it."""
        path = folder / name
        try:
            import_faiss().write_index(self.index, str(path))
        except RuntimeError as error:
            raise UserError(f"{path}: cannot be written ({_reason(error)})") from None
        sync(path)
        return IndexFile.describe(folder, name, self.count)

    @classmethod
    def read(cls, folder: Path, part: IndexFile, kind: str, settings: dict[str, int], dimension: int) -> "FaissIndex":
        """Read a file after checking its checksum: FAISS trusts what it reads."""
        path = folder / part.name
        broken = f"{path}: is damaged or cut off; build the index again, or restore this file"
        if path.stat().st_size != part.bytes or sha256_of(path) != part.hash:
            raise UserError(broken)
        faiss = import_faiss()
        try:
            index = faiss.read_index(str(path))
        except RuntimeError as error:
            if not path.exists():  # a writer has replaced it since the check
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
            raise UserError(f"{path}: FAISS {faiss.__version__} cannot read it ({_reason(error)})") from None
        kinds = {"hnsw": faiss.IndexHNSWFlat, "ivfpq": faiss.IndexIVFPQFastScan}
        if not isinstance(index, kinds[kind]) or (index.d, index.ntotal) != (dimension, part.count):
            raise UserError(broken)
        return cls(kind, index, part.count, dict(settings))

    def stored(self) -> Vectors | None:
        """Return the exact vectors, if the kind holds them."""
        if self.kind != "hnsw":
            return None
        faiss, dimension = import_faiss(), self.index.d
        storage = faiss.downcast_index(self.index.storage)
        return np.asarray(faiss.rev_swig_ptr(storage.get_xb(), self.count * dimension).reshape(self.count, dimension))

    def candidates(self, queries_qd: Vectors, k: int, sure: int, allowed: Keep | None = None) -> Iterator[Numbers]:
        """Yield, for each query, positions that include its k nearest vectors; `allowed`: only from these.

        The width of the search suits the nearest `sure`: of the others, a few more may be missed.
        """
        faiss = import_faiss()
        count, selector = self.count, None
        if allowed is not None:
            count = int(np.count_nonzero(allowed))
            bits = np.packbits(allowed, bitorder="little")  # must outlive the search
            selector = faiss.IDSelectorBitmap(self.count, faiss.swig_ptr(bits))
        share = max(count, 1) / max(self.count, 1)
        if self.kind == "hnsw":
            wanted = max(k, 2 * sure)
            beam = int(min(self.count, max(self.settings["beam"], 4 * sure, k) / share))
            parameters = faiss.SearchParametersHNSW(efSearch=beam, sel=selector)
        else:
            wanted = max(k, CANDIDATES + CANDIDATES_PER_RESULT * sure)
            probes = int(min(self.settings["cells"], np.ceil(self.settings["probes"] / share)))
            parameters = faiss.SearchParametersIVF(nprobe=probes, sel=selector)
        if not count:
            yield from (np.empty(0, np.int64) for _ in queries_qd)
            return
        _, candidates = self.index.search(np.ascontiguousarray(queries_qd), min(wanted, count), params=parameters)
        for row in candidates:
            yield np.sort(row[row >= 0])


def _reason(error: Exception) -> str:
    """Return FAISS's message without the position in its source code."""
    return str(error).strip().splitlines()[-1].split("Error: ")[-1][:200]
