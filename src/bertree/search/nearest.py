"""Find the nearest vectors of an index: with FAISS, by comparing all, or by comparing the few a filter leaves.

In every case the scores are computed from the exact vectors. If a filter leaves little, that is compared exhaustively,
since FAISS would have to skip everything else.
"""

from collections.abc import Iterator

import numpy as np

from bertree.errors import UserError
from bertree.search.faiss_index import FaissIndex, Keep
from bertree.search.vector_files import BLOCK, WHICH, MappedVectors, Numbers, Vectors, top_k

Neighbors = tuple[Numbers, Vectors]  # positions and scores of one query, best first
QUERIES = 256  # queries compared with a block of vectors at once
FEW_NUMBERS = 1 << 23  # numbers of vectors below which comparing is faster than searching
MAX_COSINE = 1.001  # cosine, with rounding
SHARE = 0.1  # of all vectors: below it, the vectors that a filter leaves are compared


def find_nearest(
    vectors: MappedVectors,
    graph: FaissIndex | None,
    queries_qd: Vectors,
    k: int,
    dead: Numbers,
    allowed: Numbers | None = None,
) -> list[Neighbors]:
    """Return the k nearest of each query that are not `dead` and, if given, in `allowed` (both sorted)."""
    some = (queries_qd[at : at + QUERIES] for at in range(0, len(queries_qd), QUERIES))
    return [found for queries in some for found in _find_nearest(vectors, graph, queries, k, dead, allowed)]


def _find_nearest(
    vectors: MappedVectors,
    graph: FaissIndex | None,
    queries_qd: Vectors,
    k: int,
    dead: Numbers,
    allowed: Numbers | None,
) -> list[Neighbors]:
    if graph is None:
        return _compare_all(vectors, queries_qd, k, dead, allowed)
    keep: Keep | None = None
    if allowed is not None:
        inside = allowed[: np.searchsorted(allowed, graph.count)]
        if len(allowed) * vectors.dimension <= FEW_NUMBERS or len(inside) < SHARE * graph.count:
            return _compare_all(vectors, queries_qd, k, dead, allowed)
        keep = np.zeros(graph.count, np.bool_)
        keep[inside] = True
    elif len(dead):
        keep = np.ones(graph.count, np.bool_)
        keep[dead[: np.searchsorted(dead, graph.count)]] = False
    beside = _compare_all(vectors, queries_qd, k, dead, allowed, graph.count)
    found = []
    for query_d, positions, other in zip(queries_qd, graph.candidates(queries_qd, k, keep), beside, strict=True):
        scores = _check_cosines(vectors[positions] @ query_d, vectors)
        found.append(_top(np.concatenate([positions, other[0]]), np.concatenate([scores, other[1]]), k))
    there = len(vectors) - len(dead) if allowed is None else len(allowed)
    short = [number for number, (positions, _) in enumerate(found) if len(positions) < min(k, there)]
    if short:  # the graph does not lead to all vectors, for example not to many copies of one
        for number, whole in zip(short, _compare_all(vectors, queries_qd[short], k, dead, allowed), strict=True):
            found[number] = whole
    return found


def _compare_all(
    vectors: MappedVectors, queries_qd: Vectors, k: int, dead: Numbers, allowed: Numbers | None, first: int = 0
) -> list[Neighbors]:
    """Compare with all vectors from position `first` on, or with those allowed."""
    found: list[Neighbors] = [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries_qd]
    for positions, block_nd in _blocks(vectors, dead, allowed, first):
        scores_qn = np.ascontiguousarray((block_nd @ queries_qd.T).T)  # twice as fast as the transposed product
        columns, scores_qk = top_k(_check_cosines(scores_qn, vectors), k)
        for number, (known, scores) in enumerate(found):
            at = np.concatenate([known, positions[columns[number]]])
            found[number] = _top(at, np.concatenate([scores, scores_qk[number]]), k)
    return found


def _check_cosines(scores: Vectors, vectors: MappedVectors) -> Vectors:
    """Raise an error for cosines outside -1 to 1, which only damaged vectors give."""
    if scores.size and not np.abs(scores).max() <= MAX_COSINE:
        raise UserError(f"{vectors.folder}: the vectors are damaged (a cosine is {np.abs(scores).max():g}); {WHICH}")
    return scores


def _blocks(
    vectors: MappedVectors, dead: Numbers, allowed: Numbers | None, first: int
) -> Iterator[tuple[Numbers, Vectors]]:
    if allowed is not None:
        allowed = allowed[np.searchsorted(allowed, first) :]
        for at in range(0, len(allowed), BLOCK):
            some = allowed[at : at + BLOCK]
            yield some, vectors[some]
        return
    for start, block in vectors.blocks(first):
        positions = np.arange(start, start + len(block))
        gone = dead[np.searchsorted(dead, start) : np.searchsorted(dead, start + len(block))]
        if len(gone):
            kept = np.setdiff1d(positions, gone, assume_unique=True)
            yield kept, block[kept - start]
        else:
            yield positions, block


def _top(positions: Numbers, scores: Vectors, k: int) -> Neighbors:
    columns, kept = top_k(scores[None], k)
    return positions[columns[0]], kept[0]
