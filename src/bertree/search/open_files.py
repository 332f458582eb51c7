"""The open files of one state of an index: the nearest vectors in them, their checksums, and their description.

The nearest vectors are found with FAISS, by comparing all vectors, or by comparing the few that a filter leaves, where
FAISS would have to skip everything else. In every case the scores are computed from the exact vectors.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import metadata as packages
from pathlib import Path

import numpy as np

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.search.database import DATABASE
from bertree.search.faiss_index import FaissIndex, Keep
from bertree.search.index_state import FORMAT, IndexState
from bertree.search.passage_store import PassageStore
from bertree.search.vector_files import (
    BLOCK,
    WHICH,
    IndexFile,
    MappedVectors,
    Numbers,
    Vectors,
    missing_file,
    sha256_of,
    top_k,
)
from bertree.search.words.bm25 import WordIndex, read_tables
from bertree.search.words.terms import VERSION
from bertree.version import __version__

Neighbors = tuple[Numbers, Vectors]  # positions and scores of one query, best first
QUERIES = 256  # queries compared with a block of vectors at once
FEW_NUMBERS = 1 << 23  # numbers of vectors below which comparing is faster than searching
MAX_COSINE = 1.001  # cosine, with rounding
DISAGREE = "the files do not belong together; build the index again"
SAMPLE = 1024  # vectors whose cosines stand for those of all
SHARE = 0.1  # of all vectors: below it, the vectors that a filter leaves are compared


@dataclass(frozen=True, kw_only=True)
class OpenFiles:
    """The files that a search reads. Files that were deleted meanwhile can still be read while they are open."""

    folder: Path
    state: IndexState | None = None
    vectors: MappedVectors = field(default_factory=lambda: MappedVectors(Path(), (), 1))
    graph: FaissIndex | None = None
    dead: Numbers = field(default_factory=lambda: np.empty(0, np.int64))  # positions, sorted
    words: WordIndex | None = None

    def for_state(self, state: IndexState, store: PassageStore) -> "OpenFiles":
        """Return the files of a state, within its transaction; unchanged files stay open."""
        if self.state is not None and self.state.generation == state.generation:
            return self
        vectors = MappedVectors(self.folder, state.parts, state.dimension)
        store.check_counts(state)
        graph = None
        if state.graph is not None:
            same = self.state is not None and self.state.graph == state.graph
            graph = self.graph if same else None
            if graph is None:
                graph = FaissIndex.read(self.folder, state.graph, state.kind, dict(state.settings), state.dimension)
            if graph.count > len(vectors):
                raise UserError(f"{self.folder}: {DISAGREE}")
        dead = vectors.positions(store.dead()) if state.dead else np.empty(0, np.int64)
        words = None
        if state.word_version == VERSION:
            words = WordIndex(self.folder, state.words, [part.count for part in state.parts], dead)
        return OpenFiles(folder=self.folder, state=state, vectors=vectors, graph=graph, dead=dead, words=words)

    @cached_property
    def _moments(self) -> tuple[Vectors, Vectors]:
        """Mean and covariance of the vectors, or of some that are spread evenly if there are many."""
        most = min(len(self.vectors), SAMPLE)
        sample = self.vectors[np.arange(most) * len(self.vectors) // max(1, most)]
        mean = sample.mean(0)
        return mean, (sample - mean).T @ (sample - mean) / np.float32(max(1, most))

    def cosine_range(self, query_d: Vectors) -> tuple[float, float]:
        """Return mean and standard deviation of the cosines of a query with the vectors; read much faster than them."""
        mean_d, covariance_dd = self._moments
        return float(mean_d @ query_d), math.sqrt(max(0.0, float(query_d @ covariance_dd @ query_d)))

    @cached_property
    def _stored(self) -> Vectors | None:
        """The vectors in the graph: those that a search has just compared are in the processor's cache."""
        return self.graph.stored() if self.graph is not None else None

    def cosines(self, positions: Numbers, query_d: Vectors) -> Vectors:
        """Return the cosines of a query with the vectors at these positions, which ascend."""
        stored = self._stored
        if stored is None or not len(positions) or positions[-1] >= len(stored):
            return self._check_cosines(self.vectors[positions] @ query_d)
        return np.asarray(stored.take(positions, 0) @ query_d)

    def nearest(
        self, queries_qd: Vectors, k: int, allowed: Numbers | None = None, sure: int | None = None
    ) -> list[Neighbors]:
        """Return the k nearest of each query that are not dead and, if given, in `allowed` (sorted positions).

        `sure`: so many of them matter most, if not all (`FaissIndex.candidates`).
        """
        blocks = (queries_qd[at : at + QUERIES] for at in range(0, len(queries_qd), QUERIES))
        return [
            neighbors for block in blocks for neighbors in self._nearest(block, k, allowed, k if sure is None else sure)
        ]

    def _nearest(self, queries_qd: Vectors, k: int, allowed: Numbers | None, sure: int) -> list[Neighbors]:
        vectors, graph, dead = self.vectors, self.graph, self.dead
        if graph is None:
            return self._compare_all(queries_qd, k, allowed)
        keep: Keep | None = None
        if allowed is not None:
            inside = allowed[: np.searchsorted(allowed, graph.count)]
            if len(allowed) * vectors.dimension <= FEW_NUMBERS or len(inside) < SHARE * graph.count:
                return self._compare_all(queries_qd, k, allowed)
            keep = np.zeros(graph.count, np.bool_)
            keep[inside] = True
        elif len(dead):
            keep = np.ones(graph.count, np.bool_)
            keep[dead[: np.searchsorted(dead, graph.count)]] = False
        outside = self._compare_all(queries_qd, k, allowed, first=graph.count)
        neighbors = []
        candidates = graph.candidates(queries_qd, k, sure, keep)
        for query_d, positions, added in zip(queries_qd, candidates, outside, strict=True):
            scores = self.cosines(positions, query_d)
            neighbors.append(_top(np.concatenate([positions, added[0]]), np.concatenate([scores, added[1]]), k))
        available = len(vectors) - len(dead) if allowed is None else len(allowed)
        short = [number for number, (positions, _) in enumerate(neighbors) if len(positions) < min(k, available)]
        if short:  # the graph does not lead to all vectors, for example not to many copies of one
            for number, complete in zip(short, self._compare_all(queries_qd[short], k, allowed), strict=True):
                neighbors[number] = complete
        return neighbors

    def _compare_all(self, queries_qd: Vectors, k: int, allowed: Numbers | None, first: int = 0) -> list[Neighbors]:
        """Compare with all vectors from position `first` on, or with those allowed."""
        neighbors: list[Neighbors] = [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries_qd]
        for positions, block_nd in self._blocks(allowed, first):
            scores_qn = np.ascontiguousarray((block_nd @ queries_qd.T).T)  # twice as fast as the transposed product
            columns, scores_qk = top_k(self._check_cosines(scores_qn), k)
            for number, (best, scores) in enumerate(neighbors):
                at = np.concatenate([best, positions[columns[number]]])
                neighbors[number] = _top(at, np.concatenate([scores, scores_qk[number]]), k)
        return neighbors

    def _check_cosines(self, scores: Vectors) -> Vectors:
        """Raise an error for cosines outside -1 to 1, which only damaged vectors give."""
        if scores.size and not np.abs(scores).max() <= MAX_COSINE:
            largest = np.abs(scores).max()
            raise UserError(f"{self.vectors.folder}: the vectors are damaged (a cosine is {largest:g}); {WHICH}")
        return scores

    def _blocks(self, allowed: Numbers | None, first: int) -> Iterator[tuple[Numbers, Vectors]]:
        if allowed is not None:
            allowed = allowed[np.searchsorted(allowed, first) :]
            for at in range(0, len(allowed), BLOCK):
                positions = allowed[at : at + BLOCK]
                yield positions, self.vectors[positions]
            return
        for start, block in self.vectors.blocks(first):
            positions = np.arange(start, start + len(block))
            dead = self.dead[np.searchsorted(self.dead, start) : np.searchsorted(self.dead, start + len(block))]
            if len(dead):
                alive = np.setdiff1d(positions, dead, assume_unique=True)
                yield alive, block[alive - start]
            else:
                yield positions, block


def _top(positions: Numbers, scores: Vectors, k: int) -> Neighbors:
    columns, best = top_k(scores[None], k)
    return positions[columns[0]], best[0]


def describe_index(folder: Path, store: PassageStore) -> Json:
    """Describe an index: its contents, size, model and settings."""
    with store.transaction() as state:
        documents, passages, sources = store.count()
        keys = store.metadata_keys()
    vectors, words = (sum(part.bytes for part in parts) for parts in (state.parts, state.words))
    graph = state.graph.bytes if state.graph else 0
    database = sum(path.stat().st_size for path in folder.glob(f"{DATABASE}*"))
    return {
        "path": str(folder),
        "format": FORMAT,
        "generation": state.generation,
        "complete": state.complete,
        "kind": state.kind,
        "why": state.why,
        "settings": dict(state.settings),
        "documents": documents,
        "passages": passages,
        "removed": state.dead,  # vectors of removed passages that are still in the files
        "beside": state.vectors - state.graph.count if state.graph else 0,  # vectors that are not in the graph yet
        "dimension": state.dimension,
        "model": {"path": state.model, "digest": state.digest},
        "prompts": list(state.prompts),
        "chunking": asdict(state.chunking),
        "words": state.word_version == VERSION,  # False: only vectors are searched, until `index upgrade`
        "word_weight": state.word_weight,
        "bytes": {
            "vectors": vectors,
            "words": words,
            "graph": graph,
            "database": database,
            "all": vectors + words + graph + database,
        },
        "sources": sources,
        "metadata": keys,
        "versions": dict(state.versions),
    }


def verify_files(folder: Path, store: PassageStore) -> None:
    """Read every byte and report the first file whose checksum differs, or that does not belong to the others."""
    checked: set[IndexFile] = set()
    before: IndexState | None = None
    while True:
        with store.transaction() as state:
            parts = state.all_parts
        try:
            for part in parts:
                path = folder / part.name
                if part not in checked and sha256_of(path) != part.hash:
                    raise UserError(f"{path}: is damaged; build the index again, or restore this file")
                checked.add(part)
            with store.transaction() as state:
                vectors = MappedVectors(folder, state.parts, state.dimension)
                if state.word_version:
                    read_tables(folder, state.words, [part.count for part in state.parts])
                if state.graph is not None and state.graph.count > len(vectors):
                    raise UserError(f"{folder}: {DISAGREE}")
                store.check(state, vectors)
                if all(part in checked for part in state.all_parts):
                    return
        except FileNotFoundError as error:
            if state == before:  # otherwise a writer may have replaced it: there is a newer state
                raise missing_file(error.filename) from None
        before = state


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that an index is made with."""
    versions = {"bertree": __version__}
    for name in ("faiss-cpu", "numpy"):
        try:
            versions[name] = packages.version(name)
        except packages.PackageNotFoundError:
            continue
    return versions
