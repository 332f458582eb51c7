"""A map of an index: principal components and clusters, the same each time."""

from pathlib import Path

import numpy as np
import pytest

from bertree.embeddings.clustering import map_index, project
from bertree.errors import UserError
from bertree.search.index import Index
from tests.support.search_samples import SHIPS
from tests.support.standin import Words

TEXTS = ["the brig in the bay", "tea on a table", "the brig in the bay at dawn", "more tea on a table"]
TOPICS = [{"id": name, "text": text} for name, text in zip("abcd", TEXTS, strict=True)]


def test_points_are_the_two_principal_components() -> None:
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((50, 6)).astype(np.float32) * [9, 1, 4, 1, 1, 1]
    left, sizes, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    wanted = left[:, :2] * sizes[:2]
    points = project(vectors)
    np.testing.assert_allclose(np.abs(points), np.abs(wanted), atol=1e-4)
    np.testing.assert_allclose(points @ points.T, wanted @ wanted.T, atol=1e-2)
    np.testing.assert_array_equal(points, project(vectors))
    for few in (0, 1, 2):
        assert project(vectors[:few]).shape == (few, 2)
    assert project(vectors[:, :1]).shape == (50, 2)


def test_a_map_has_every_passage_with_its_cluster(tmp_path: Path) -> None:
    index = Index.build(Words(), TOPICS, tmp_path / "index")
    points = map_index(index, clusters=2)
    assert [passage.document for passage in points.passages] == ["a", "b", "c", "d"]
    assert (points.total, points.clusters, points.points.shape) == (4, 2, (4, 2))
    assert points.labels.tolist() == [0, 1, 0, 1]
    index.remove(["b"])
    after = map_index(index)
    assert [passage.document for passage in after.passages] == ["a", "c", "d"]
    assert after.generation > points.generation


def test_a_sample_is_spread_evenly_over_the_index(tmp_path: Path) -> None:
    documents = [{"id": f"{n:02}", "text": f"text number {n}"} for n in range(40)]
    index = Index.build(Words(), documents, tmp_path / "index")
    sample = index.sample(10)
    assert [passage.document for passage in sample.passages] == [f"{n:02}" for n in range(0, 40, 4)]
    assert (sample.total, sample.vectors.shape[0]) == (40, 10)
    for passage, vector in zip(sample.passages, sample.vectors, strict=True):
        (hit,) = index.nearest(vector[None], 1)[0]
        assert hit.cosine == pytest.approx(1, abs=1e-5)
        assert hit.document == passage.document
    with pytest.raises(UserError, match="most: must be at least 1"):
        index.sample(0)


def test_an_empty_index_has_an_empty_map(tmp_path: Path) -> None:
    index = Index.build(Words(), SHIPS, tmp_path / "index")
    index.remove(list("abcd"))
    points = map_index(index)
    assert (len(points.passages), points.points.shape, points.clusters, points.total) == (0, (0, 2), 0, 0)
