"""A map of an index: its passages as points in a plane, coloured by cluster.

The plane is that of the two principal components, which needs no library and is the same each time; it shows the
coarse structure of an index, not neighbourhoods. Clusters are found in the full space.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertree.embeddings.clustering import k_means
from bertree.inference.embedding import Vectors
from bertree.search.passages import Passage
from bertree.search.searcher import Searcher

MOST_CLUSTERS = 10  # as many as can be told apart by colour
RESTARTS = 3


@dataclass(frozen=True)
class IndexMap:
    """Passages of an index, each with its point and its cluster; clusters are numbered by size."""

    passages: list[Passage]
    points: NDArray[np.float64]  # a row of two coordinates each
    labels: NDArray[np.int64]
    clusters: int
    total: int  # passages in the index, of which these are a sample
    generation: int  # changes whenever the index does


def map_index(index: Searcher, most: int = 2000, clusters: int | None = None) -> IndexMap:
    """Return a map of at most so many passages of an index, spread evenly over it.

    `clusters`: how many; by default more for more passages, up to ten.
    """
    found = index.sample(most)
    count = len(found.passages)
    wanted = clusters or min(MOST_CLUSTERS, round((count / 2) ** 0.5))
    wanted = max(1, min(wanted, count))
    labels = k_means(found.vectors, wanted, seed=0, restarts=RESTARTS).labels if count else np.zeros(0, np.int64)
    points = project(found.vectors)
    return IndexMap(found.passages, points, labels, wanted if count else 0, found.total, found.generation)


def project(vectors: Vectors) -> NDArray[np.float64]:
    """Return each row's coordinates on the two principal components; the largest weight of a component is positive."""
    if not len(vectors):
        return np.zeros((0, 2))
    centred_nd = vectors - vectors.mean(0, dtype=np.float64)
    _, axes_dd = np.linalg.eigh(centred_nd.T @ centred_nd)
    axes_dk = axes_dd[:, ::-1][:, :2]
    axes_dk = axes_dk * np.sign(axes_dk[np.abs(axes_dk).argmax(0), np.arange(axes_dk.shape[1])])
    points_nk = centred_nd @ axes_dk
    return np.pad(points_nk, ((0, 0), (0, 2 - points_nk.shape[1])))
