"""The nearest vectors of an index: by its graph, by comparing all, or by comparing the few a filter leaves.

Whatever the way, the scores are those of the exact vectors. A filter that leaves little is answered by comparing
what it leaves, for a graph would have to walk past everything else.
"""

from collections.abc import Iterator

import numpy as np

from bertree.errors import UserError
from bertree.search.faiss_index import FaissIndex, Keep
from bertree.search.vector_files import BLOCK, WHICH, MappedVectors, Numbers, Vectors, top_k

Neighbors = tuple[Numbers, Vectors]  # positions and scores of one query, the best first
QUERIES = 256  # compared with a block of vectors at once
FEW = 1 << 23  # numbers of vectors that are rather compared than looked for
LARGEST = 1.001  # cosine, but for rounding
SHARE = 0.1  # of all vectors: a filter that leaves less is answered by comparing


def find_nearest(
    vectors: MappedVectors,
    graph: FaissIndex | None,
    queries_qd: Vectors,
    k: int,
    dead: Numbers,
    allowed: Numbers | None = None,
) -> list[Neighbors]:
    """The k nearest of each query among those that are not `dead`, and, if given, `allowed` (both sorted)."""
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
        if len(allowed) * vectors.dimension <= FEW or len(inside) < SHARE * graph.count:
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
    return found


def _compare_all(
    vectors: MappedVectors, queries_qd: Vectors, k: int, dead: Numbers, allowed: Numbers | None, first: int = 0
) -> list[Neighbors]:
    """By comparing all from position `first` on, or those that are allowed."""
    found: list[Neighbors] = [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries_qd]
    for positions, block_nd in _blocks(vectors, dead, allowed, first):
        scores_qn = np.ascontiguousarray((block_nd @ queries_qd.T).T)  # twice as fast as the other way round
        columns, scores_qk = top_k(_check_cosines(scores_qn, vectors), k)
        for number, (known, scores) in enumerate(found):
            at = np.concatenate([known, positions[columns[number]]])
            found[number] = _top(at, np.concatenate([scores, scores_qk[number]]), k)
    return found


def _check_cosines(scores: Vectors, vectors: MappedVectors) -> Vectors:
    """Cosines as they are; no vectors of length 1 give others than from -1 to 1, so those are damaged."""
    if scores.size and not np.abs(scores).max() <= LARGEST:
        raise UserError(f"{vectors.folder}: its vectors are damaged (a cosine is {np.abs(scores).max():g}); {WHICH}")
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
