"""The most similar pairs and the nearest rows, against all cosines at once."""

import numpy as np
import pytest

from bertree.embeddings import mining
from bertree.embeddings.mining import closest_pairs, find_distinct, nearest


def drawn(rows: int, seed: int = 0, width: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def cosines(vectors: np.ndarray, others: np.ndarray | None = None) -> np.ndarray:
    def normalize_rows(rows: np.ndarray) -> np.ndarray:
        wide = rows.astype(np.float64)
        return wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)

    return normalize_rows(vectors) @ normalize_rows(vectors if others is None else others).T


def expected(vectors: np.ndarray, k: int, min_similarity: float) -> list[tuple[int, int]]:
    every = cosines(vectors)
    i, j = np.triu_indices(len(vectors), 1)
    order = np.argsort(-every[i, j], kind="stable")
    return [(int(i[n]), int(j[n])) for n in order[:k] if every[i[n], j[n]] >= min_similarity]


@pytest.mark.parametrize("k", [1, 7, 300, 100_000])
@pytest.mark.parametrize("min_similarity", [-1.0, 0.5, 0.99])
def test_pairs_equal_those_of_the_whole_matrix(monkeypatch: pytest.MonkeyPatch, k: int, min_similarity: float) -> None:
    monkeypatch.setattr(mining, "ROWS", 16)
    monkeypatch.setattr(mining, "COLUMNS", 32)
    vectors = drawn(150)
    pairs = closest_pairs(vectors, k, min_similarity)
    # As a set, because float32 may order two pairs otherwise that differ in the eighth digit.
    assert {(pair.first, pair.second) for pair in pairs} == set(expected(vectors, k, min_similarity))
    values = [pair.score for pair in pairs]
    assert values == sorted(values, reverse=True)
    every = cosines(vectors)
    assert np.allclose(values, [every[p.first, p.second] for p in pairs], atol=1e-5)


@pytest.mark.slow
def test_blocks_as_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = drawn(3000, width=8)
    seen: list[int] = []
    pairs = closest_pairs(vectors, 50, 0.0, seen.append)
    assert [(pair.first, pair.second) for pair in pairs] == expected(vectors, 50, 0.0)
    assert sum(seen) == 3000


def test_near_copies_everywhere_stay_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    before = mining._Best.add

    def add(self: mining._Best, values: object, *rest: object) -> None:
        kept.append(len(values))
        before(self, values, *rest)

    monkeypatch.setattr(mining._Best, "add", add)
    vectors = 1 + 0.01 * drawn(3000)  # every pair is above the min_similarity cosine
    pairs = closest_pairs(vectors, 20, 0.7)
    assert len(pairs) == 20
    assert max(kept) <= 20 + 4096
    every = cosines(vectors)
    best = np.sort(every[np.triu_indices(3000, 1)])[::-1][:20]
    assert np.allclose([pair.score for pair in pairs], best, atol=1e-6)


def test_a_row_of_zeros_is_like_nothing() -> None:
    vectors = drawn(5)
    vectors[2] = 0
    assert all(2 not in (pair.first, pair.second) for pair in closest_pairs(vectors, 100, 0.01))


def test_the_nearest_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mining, "ROWS", 4)
    monkeypatch.setattr(mining, "COLUMNS", 8)
    queries, among = drawn(11, 1), drawn(50, 2)
    every = cosines(queries, among)
    for k in (1, 5, 60):
        hits = list(nearest(queries, among, k))
        assert len(hits) == 11
        for row, matches in enumerate(hits):
            assert [place for place, _ in matches] == np.argsort(-every[row])[:k].tolist()
            assert np.allclose([value for _, value in matches], np.sort(every[row])[::-1][:k], atol=1e-6)


def test_texts_that_are_the_same() -> None:
    distinct = find_distinct(["a", "b", " a ", "", "b", "a", " "])
    assert distinct.first.tolist() == [0, 1]
    assert distinct.groups == [[0, 2, 5], [1, 4]]


def test_copies_have_a_cosine_of_one() -> None:
    assert len(mining.closest_pairs(np.ones((3, 3), np.float32), 10, 1.0)) == 3
