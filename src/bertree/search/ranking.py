"""The best passages of one state of an index for a query: by vectors, by words, or by both.

A hybrid search takes the best passages of both parts and computes both scores of each exactly. The sum is

    weight * BM25 / best BM25  +  (1 - weight) * (cosine - mean) / (5 * standard deviation)

of this query: the best BM25 of all passages, mean and standard deviation of the cosines with all passages (a sample of
them). Cosines of a model lie in a narrow range, which differs between queries; one of five standard deviations above
the mean is about the best.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from bertree.errors import UserError, suggest
from bertree.search.open_files import Neighbors, OpenFiles
from bertree.search.passages import PassageScore
from bertree.search.vector_files import Numbers, Vectors
from bertree.search.words.terms import analyzer_for

MODES = ("hybrid", "vectors", "words")
DEVIATIONS = 5.0
SAMPLED = 64  # one of so many scores is looked at before all are sorted
POOL, POOL_PER_RESULT = 100, 2  # passages that each part gives to a hybrid search, and more per result
WITHOUT = "has no word index; make one with `bertree index upgrade`, or search with the mode vectors"


class QueryError(UserError):
    """A mistake in the query, not in the index."""


class Query(NamedTuple):
    """A question as an index compares it: a unit vector (None: by words only) and terms (None: by vectors only)."""

    vector: Vectors | None
    terms: Sequence[str] | None


def choose_mode(mode: str | None, has_words: bool, name: str) -> str:
    """Return the mode of a search; None: hybrid, if the index has words."""
    if mode is None:
        return "hybrid" if has_words else "vectors"
    if mode not in MODES:
        raise QueryError(f"mode {mode!r}: is unknown; {suggest(mode, MODES)}")
    if mode != "vectors" and not has_words:
        raise QueryError(f"{name}: {WITHOUT}")
    return mode


def query_terms(question: str, language: str, mode: str) -> list[str] | None:
    """Return the terms of a question; refuse one without terms if there is nothing else to search by."""
    if mode == "vectors":
        return None
    terms = analyzer_for(language).terms(question)
    if not terms and mode == "words":
        raise QueryError(f"{question[:80]!r}: has only stop words or none; add a word, or use the mode vectors")
    return terms


def rank(
    files: OpenFiles, queries: Sequence[Query], k: int, weight: float, allowed: Numbers | None = None
) -> list[list[tuple[int, PassageScore]]]:
    """Return the positions of the k best passages of each query with their scores, best first."""
    hybrid = any(query.terms is not None for query in queries)
    pool = max(POOL, POOL_PER_RESULT * k) if hybrid else k
    vectors = [query.vector for query in queries if query.vector is not None]
    nearest = iter(files.nearest(np.stack(vectors), pool, allowed, sure=k) if vectors else [])
    results = []
    for query in queries:
        near = next(nearest) if query.vector is not None else None
        if query.terms is None:
            assert near is not None
            results.append([(at, PassageScore(score, cosine=score, vector_rank=n)) for n, at, score in _ranked(near)])
        elif near is None:
            best, _ = _best_words(files, query.terms, k, allowed)
            results.append([(at, PassageScore(score, word_score=score, word_rank=n)) for n, at, score in _ranked(best)])
        else:
            results.append(_by_both(files, query, near, k, pool, weight, allowed))
    return results


def _ranked(best: Neighbors) -> Iterator[tuple[int, int, float]]:
    """Return rank, position and score of the best passages."""
    return zip(count(1), best[0].tolist(), best[1].tolist(), strict=False)


def _best_words(files: OpenFiles, terms: Sequence[str], k: int, allowed: Numbers | None) -> tuple[Neighbors, Vectors]:
    """Return the k best passages by BM25, those with a term, and the BM25 of all."""
    assert files.words is not None
    scores = files.words.scores(terms)
    among = scores if allowed is None else scores[allowed]
    columns = np.flatnonzero(among > _lower_bound(among, k))
    if len(columns) < k:
        columns = np.flatnonzero(among > 0)
    order = np.argsort(-among[columns], kind="stable")[:k]
    positions = columns[order] if allowed is None else allowed[columns[order]]
    return (positions, scores[positions]), scores


def _lower_bound(scores: Vectors, k: int) -> float:
    """Return a score that a few more than k are likely to exceed, from a sample."""
    sample = np.sort(scores[::SAMPLED])
    return float(sample[max(0, len(sample) - 2 * k // SAMPLED - 4)]) if len(sample) else 0.0


def _by_both(
    files: OpenFiles, query: Query, near: Neighbors, k: int, pool: int, weight: float, allowed: Numbers | None
) -> list[tuple[int, PassageScore]]:
    assert query.vector is not None
    assert query.terms is not None
    words, all_words = _best_words(files, query.terms, pool, allowed)
    near_ranks, word_ranks = (dict(zip(part[0].tolist(), range(1, pool + 1), strict=False)) for part in (near, words))
    others = np.array(sorted(word_ranks.keys() - near_ranks.keys()), np.int64)
    positions = np.concatenate([near[0], others])
    if not len(positions):
        return []
    cosines = np.concatenate([near[1], files.cosines(others, query.vector)])
    word_scores = all_words[positions]
    scores = fuse(cosines, word_scores, *files.cosine_range(query.vector), weight)
    order = np.lexsort((positions, -scores))[:k]
    rows = zip(*(column[order].tolist() for column in (positions, scores, cosines, word_scores)), strict=True)
    return [
        (position, PassageScore(score, cosine, word_score, near_ranks.get(position), word_ranks.get(position)))
        for position, score, cosine, word_score in rows
    ]


def fuse(cosines: Vectors, word_scores: Vectors, mean: float, deviation: float, weight: float) -> Vectors:
    """Return the hybrid scores of the candidates of one query, among which are the best of both parts.

    `mean`, `deviation`: of the cosines of the query with passages of the index.
    """
    if not len(cosines):
        return cosines
    vector_part = (cosines - mean) / (DEVIATIONS * max(deviation, 1e-6))
    word_part = word_scores / max(float(word_scores.max()), 1e-9)
    return np.asarray(weight * word_part + (1 - weight) * vector_part, np.float32)
