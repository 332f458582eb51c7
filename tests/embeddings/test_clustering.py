"""Groups of vectors: those that are there are found, the same each time, and none is empty."""

from typing import Any

import numpy as np
import pytest

from bertree.embeddings import clustering
from bertree.embeddings.clustering import communities, k_means
from bertree.errors import UserError


def blobs(sizes: list[int], spread: float = 0.1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows around so many directions, mixed, and the direction of each."""
    draw = np.random.default_rng(seed)
    centres = np.linalg.qr(draw.standard_normal((24, 24)))[0][: len(sizes)]
    which = draw.permutation(np.repeat(np.arange(len(sizes)), sizes))
    rows = centres[which] + spread * draw.standard_normal((len(which), 24)) / 24**0.5
    length = draw.uniform(0.5, 4.0, (len(which), 1))  # the direction alone counts
    return (rows * length).astype(np.float32), which


def same(labels: np.ndarray, which: np.ndarray) -> bool:
    """Whether two labellings name the same groups."""
    pairs = set(zip(labels.tolist(), which.tolist(), strict=True))
    return len(pairs) == len(set(labels.tolist())) == len(set(which.tolist()))


@pytest.mark.parametrize("seed", range(5))
def test_k_means_finds_what_is_there(seed: int) -> None:
    vectors, which = blobs([40, 25, 10, 5, 60], seed=seed)
    clusters = k_means(vectors, 5, seed)
    assert same(clusters.labels, which)
    assert [len(cluster.rows) for cluster in clusters.clusters] == [60, 40, 25, 10, 5]
    for number, cluster in enumerate(clusters.clusters):
        assert (clusters.labels[cluster.rows] == number).all()
        assert cluster.central == cluster.rows[0]
        inside = vectors[cluster.rows] / np.linalg.norm(vectors[cluster.rows], axis=1, keepdims=True)
        centre = inside.mean(0) / np.linalg.norm(inside.mean(0))
        assert (inside @ centre).argmax() == 0
        assert cluster.mean == pytest.approx(float((inside @ centre).mean()), abs=1e-5)


def test_k_means_is_the_same_for_one_seed_and_no_worse_than_one_run() -> None:
    vectors = np.random.default_rng(3).standard_normal((300, 24)).astype(np.float32)
    left, right = k_means(vectors, 12, 7), k_means(vectors, 12, 7)
    assert np.array_equal(left.labels, right.labels)

    def worth(clusters: clustering.Clusters) -> float:
        return sum(cluster.mean * len(cluster.rows) for cluster in clusters.clusters)

    assert worth(left) >= worth(k_means(vectors, 12, 7, restarts=1)) - 1e-6


def test_every_cluster_has_a_row_even_among_copies() -> None:
    vectors = np.ones((6, 3), np.float32)
    vectors[5] = (1, -1, 0)
    clusters = k_means(vectors, 4, 0)
    assert len(clusters.clusters) == 4
    assert all(cluster.rows for cluster in clusters.clusters)
    assert sorted(row for cluster in clusters.clusters for row in cluster.rows) == list(range(6))
    assert len(k_means(vectors, 6, 0).clusters) == 6


@pytest.mark.parametrize("count", [0, 7])
def test_more_clusters_than_rows(count: int) -> None:
    with pytest.raises(UserError, match="there are 6 sentences"):
        k_means(np.ones((6, 3), np.float32), count, 0)


@pytest.mark.parametrize("rows", [1024, 7])
def test_communities_find_what_is_there_and_leave_the_rest(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(clustering, "ROWS", rows)
    monkeypatch.setattr(clustering, "COLUMNS", 8 * rows)
    vectors, which = blobs([30, 12, 3, 1, 1, 1])
    clusters = communities(vectors, 0.75)
    small = np.isin(which, (3, 4, 5))
    assert (clusters.labels[small] == clustering.ALONE).all()
    assert same(clusters.labels[~small], which[~small])
    assert [len(cluster.rows) for cluster in clusters.clusters] == [30, 12, 3]
    assert len(communities(vectors, 0.75, min_size=4).clusters) == 2


def test_the_rows_of_a_community_are_near_one_of_them() -> None:
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((400, 6)).astype(np.float32)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    clusters = communities(vectors, 0.8)
    assert len(clusters.clusters) > 5
    for cluster in clusters.clusters:
        inside = units[cluster.rows] @ units[cluster.rows].T
        assert (inside >= 0.8 - 1e-6).all(1).any()
    alone = np.flatnonzero(clusters.labels == clustering.ALONE)
    left = units[alone] @ units[alone].T
    np.fill_diagonal(left, -1)
    assert (left < 0.8).all(), "two rows that are near each other were both left alone"


def test_nothing_alike() -> None:
    assert communities(np.eye(5, dtype=np.float32), 0.5).clusters == []


def test_copies_are_alike_whatever_the_rounding() -> None:
    assert communities(np.ones((5, 3), np.float32), 1.0).labels.tolist() == [0] * 5


def test_few_rows_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, _ = blobs([30, 12, 3, 1])
    whole = communities(vectors, 0.75)
    asked: list[int] = []
    around = clustering._around

    def watched(units: Any, centres: Any, labels: Any, min_similarity: float) -> Any:
        asked.append(len(centres))
        return around(units, centres, labels, min_similarity)

    monkeypatch.setattr(clustering, "_around", watched)
    monkeypatch.setattr(clustering, "NEAR", 40)
    assert communities(vectors, 0.75).labels.tolist() == whole.labels.tolist()
    assert max(asked) < 10
