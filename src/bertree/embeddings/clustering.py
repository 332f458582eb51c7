"""Cluster vectors, into a given number of clusters or by a minimum similarity, and map an index in a plane.

Both use the cosine. k-means on the sphere (Dhillon and Modha 2001) with k-means++ seeds is run several times and the
best result kept, because a single run often ends in a poor optimum. Communities need no number: the row with the most
neighbours forms a group with them, then the next, and rows without neighbours belong to no group. This is greedy: it
reads the cosines of 100,000 rows twice, in blocks, where linkage trees would need all of them at once.

The plane of a map is that of the two principal components. It needs no library, is the same each time, and shows the
coarse structure of an index, not neighbourhoods; clusters are computed in the full space.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertree.embeddings.mining import COLUMNS, ROUNDING, ROWS, cosine_blocks, normalize_rows
from bertree.errors import UserError
from bertree.inference.embedding import Vectors
from bertree.result_table import ResultTable, ShownAsTable
from bertree.search.passages import Passage
from bertree.search.searcher import Searcher

RESTARTS, ROUNDS = 8, 100
MOST_MAP_CLUSTERS = 10  # as many as can be told apart by colour
MAP_RESTARTS = 3
NEAR = 1 << 22  # rows near a group of centres that are held at once
Advance = Callable[[int], None]
ALONE = -1
Rows = NDArray[np.int64]


class Cluster(NamedTuple):
    """One cluster."""

    rows: list[int]  # the most central first
    central: int
    mean: float  # cosine of its rows with its centre


class Clusters(NamedTuple):
    """Clusters, the largest first; `labels` has the cluster of each row, -1 for none."""

    labels: Rows
    clusters: list[Cluster]


@torch.no_grad()
def k_means(
    vectors: Vectors, count: int, seed: int, restarts: int = RESTARTS, advance: Advance = lambda n: None
) -> Clusters:
    """Return `count` clusters around unit centres, the best of several runs."""
    if not 1 <= count <= len(vectors):
        raise UserError(f"`clusters={count}`: there are {len(vectors)} sentences; ask for at most as many clusters")
    units = normalize_rows(vectors)
    generator = torch.Generator().manual_seed(seed)
    best, labels = -np.inf, torch.zeros(len(units), dtype=torch.int64)
    for _ in range(restarts):
        candidate, value = _run(units, _seeds(units, count, generator))
        if value > best:
            best, labels = value, candidate
        advance(1)
    return _group(units, labels.numpy())


def _seeds(units: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw the starting rows, each by its distance from those before it (k-means++)."""
    first = int(torch.randint(len(units), (1,), generator=generator))
    chosen = [first]
    far = (1 - units @ units[first]).clamp_(min=0).double()
    for _ in range(count - 1):
        far[chosen] = 0
        total = far.cumsum(0)
        if float(total[-1]) <= 1e-9:  # only copies of the chosen ones are left: any of them
            rest = torch.ones(len(units), dtype=torch.bool)
            rest[chosen] = False
            row = int(rest.nonzero()[0])
        else:
            at = torch.rand(1, generator=generator, dtype=torch.float64) * total[-1]
            row = min(int(torch.searchsorted(total, at)), len(units) - 1)
        chosen.append(row)
        far = torch.minimum(far, (1 - units @ units[row]).clamp_(min=0).double())
    return units[chosen]


def _run(units: Tensor, centres: Tensor) -> tuple[Tensor, float]:
    """Iterate until nothing changes; return labels and the mean cosine of rows with their centre."""
    labels = torch.full((len(units),), -1)
    for _ in range(ROUNDS):
        near, cosines = _assign(units, centres)
        near = _fill_empty(near, cosines, len(centres))
        if torch.equal(near, labels):
            break
        labels = near
        sums = torch.zeros_like(centres).index_add_(0, labels, units)
        lengths = sums.norm(dim=1, keepdim=True)
        centres = torch.where(lengths > 0, sums / lengths.clamp(min=1e-12), centres)
    return labels, float((units * centres[labels]).sum(1).double().mean())


def _assign(units: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest centre of each row, a block at a time."""
    nearest = [(rows @ centres.T).max(1) for rows in units.split(max(1, (1 << 23) // len(centres)))]
    return torch.cat([block.indices for block in nearest]), torch.cat([block.values for block in nearest])


def _fill_empty(near: Tensor, cosines: Tensor, count: int) -> Tensor:
    """Give each empty cluster the row that fits its own cluster least, from a cluster with more than one row."""
    sizes = torch.bincount(near, minlength=count)
    empty = (sizes == 0).nonzero()[:, 0].tolist()
    if not empty:
        return near
    near = near.clone()
    order = iter(cosines.argsort(stable=True).tolist())
    for cluster in empty:
        row = next(row for row in order if sizes[near[row]] > 1)
        sizes[near[row]] -= 1
        near[row] = cluster
        sizes[cluster] = 1
    return near


@torch.no_grad()
def communities(
    vectors: Vectors, min_similarity: float, min_size: int = 2, advance: Advance = lambda rows: None
) -> Clusters:
    """Return groups whose rows all have at least this cosine with one row of the group."""
    units, min_similarity = normalize_rows(vectors), min_similarity - ROUNDING
    count = _neighbours(units, min_similarity, advance)
    labels = np.full(len(units), ALONE, np.int64)
    order = np.argsort(-count, kind="stable")
    order = order[count[order] >= min_size]
    number = start = 0
    while start < len(order):
        free = order[start:]
        centres = free[labels[free] == ALONE][:ROWS]  # without those that have joined a group meanwhile
        if not len(centres):
            break
        centres = centres[: 1 + int(np.searchsorted(count[centres].cumsum(), NEAR))]
        start = int(np.flatnonzero(order == centres[-1])[0]) + 1
        for centre, near in zip(centres.tolist(), _around(units, centres, labels, min_similarity), strict=True):
            members = near[labels[near] == ALONE]
            if labels[centre] == ALONE and len(members) >= min_size:
                labels[members] = number
                number += 1
    return _group(units, labels)


def _neighbours(units: Tensor, min_similarity: float, advance: Advance) -> Rows:
    """Count the rows that are similar enough to each row, itself included."""
    count = torch.ones(len(units), dtype=torch.int64)
    for top, left, block in cosine_blocks(units, advance):
        lines = (block.amax(1) >= min_similarity).nonzero()[:, 0]
        if len(lines):
            hits = (block[lines] >= min_similarity).nonzero()
            count += torch.bincount(lines[hits[:, 0]] + top, minlength=len(units))
            count += torch.bincount(hits[:, 1] + left, minlength=len(units))
    return count.numpy()


def _around(
    units: Tensor, centres: NDArray[np.int64], labels: NDArray[np.int64], min_similarity: float
) -> list[NDArray[np.int64]]:
    """Return the rows near each centre that belong to no group yet."""
    free = np.flatnonzero(labels == ALONE)
    targets = units[torch.from_numpy(free)]
    rows = units[torch.from_numpy(centres)]
    members: list[list[Rows]] = [[] for _ in centres]
    for left in range(0, len(free), COLUMNS):
        near = (rows @ targets[left : left + COLUMNS].T >= min_similarity).numpy()
        for number in np.flatnonzero(near.any(1)).tolist():
            members[number].append(free[left + np.flatnonzero(near[number])])
    own = [np.array([centre]) for centre in centres.tolist()]  # rounding may take a row from itself
    return [np.unique(np.concatenate([mine, *parts])) for mine, parts in zip(own, members, strict=True)]


def _group(units: Tensor, labels: Rows) -> Clusters:
    """Number clusters by size, then by their first row; order the rows of each by how central they are."""
    clusters = []
    for number in np.unique(labels[labels != ALONE]).tolist():
        rows = np.flatnonzero(labels == number)
        inside = units[torch.from_numpy(rows)]
        centre = torch.nn.functional.normalize(inside.mean(0), dim=0)
        cosines = (inside @ centre).numpy()
        order = np.argsort(-np.round(cosines, 6), kind="stable")  # copies differ by rounding: the first counts
        clusters.append(Cluster(rows[order].tolist(), int(rows[order[0]]), float(cosines.mean())))
    clusters.sort(key=lambda cluster: (-len(cluster.rows), min(cluster.rows)))
    numbers = np.full(len(labels), ALONE, np.int64)
    for number, cluster in enumerate(clusters):
        numbers[cluster.rows] = number
    return Clusters(numbers, clusters)


@dataclass(frozen=True, repr=False)
class IndexMap(ShownAsTable):
    """Passages of an index, each with its point and its cluster; clusters are numbered by size."""

    passages: list[Passage]
    points: NDArray[np.float64]  # a row of two coordinates each
    labels: NDArray[np.int64]
    clusters: int
    total: int  # passages in the index; these are a sample
    generation: int  # changes whenever the index does

    def _result_table(self) -> ResultTable:
        sizes = np.bincount(self.labels[self.labels >= 0], minlength=self.clusters).tolist()
        rows = [(str(number), f"{size:,}") for number, size in enumerate(sizes)]
        return ResultTable(f"{len(self.passages):,} of {self.total:,} passages", rows, ("cluster", "passages"))


def map_index(index: Searcher, most: int = 2000, clusters: int | None = None) -> IndexMap:
    """Return a map of at most `most` passages of an index, spread evenly over it.

    `clusters`: their number; by default more for more passages, up to ten.
    """
    sample = index.sample(most)
    count = len(sample.passages)
    wanted = clusters or min(MOST_MAP_CLUSTERS, round((count / 2) ** 0.5))
    wanted = max(1, min(wanted, count))
    labels = k_means(sample.vectors, wanted, seed=0, restarts=MAP_RESTARTS).labels if count else np.zeros(0, np.int64)
    points = project(sample.vectors)
    return IndexMap(sample.passages, points, labels, wanted if count else 0, sample.total, sample.generation)


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
