"""Exact search for the most similar pairs of texts, by their vectors or by a cross-encoder, and for the nearest texts.

All n x n cosines of vectors are computed, in blocks of a bounded size, and never kept: a block is compared with the
least cosine that can still be among the k best, which rises as better pairs are found. So after a few blocks most are
read only once. 100,000 vectors are five billion pairs, a minute of processor time; for millions use an index.

A cross-encoder reads the two texts of a pair together: every pair is a pass of the model, so the time is estimated
first, and very many pairs are refused.
"""

import heapq
import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertree.console import bar, note
from bertree.errors import UserError
from bertree.inference.embedding import Vectors
from bertree.inference.model import Model
from bertree.report.formats import duration
from bertree.search.rerank import check_cross_encoder, pair_score

ROWS, COLUMNS = 1024, 8192  # of a block: 32 MB of cosines
ROUNDING = 1e-6  # of a cosine: a vector's with itself may be as much less than 1
Advance = Callable[[int], None]
SAMPLE = 64  # pairs that are timed first, in two equal parts: the first warms up
BLOCK = 1024  # pairs scored at once


def normalize_rows(vectors: Vectors) -> Tensor:
    """Scale vectors to length one; a zero vector stays zero."""
    rows = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
    return rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)


class ScoredPair(NamedTuple):
    """Two rows, and the cosine of their vectors or the score of their texts."""

    first: int
    second: int
    score: float


class _Best:
    """The k best pairs so far, and the smallest cosine that can still enter."""

    def __init__(self, k: int, min_similarity: float) -> None:
        self._k, self.min_similarity = k, min_similarity
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []
        self._count = 0

    def add(self, cosines: Tensor, first: Tensor, second: Tensor) -> None:
        self._waiting.append((cosines, first, second))
        self._count += len(cosines)
        if self._count >= 4 * self._k + 4096:
            self._settle()

    def _settle(self) -> None:
        cosines, first, second = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
        # By cosine, then by rows: pairs of one cosine at the end of the list do not depend on the blocks.
        order = np.lexsort((second.numpy(), first.numpy(), -cosines.numpy()))[: self._k]
        rows = torch.from_numpy(order.copy())
        self._waiting = [(cosines[rows], first[rows], second[rows])]
        self._count = len(rows)
        if self._count == self._k:
            self.min_similarity = max(self.min_similarity, float(cosines[rows[-1]]))

    def pairs(self) -> list[ScoredPair]:
        if not self._waiting:
            return []
        self._settle()
        cosines, first, second = (part.tolist() for part in self._waiting[0])
        return [ScoredPair(i, j, min(1.0, value)) for value, i, j in zip(cosines, first, second, strict=True)]


def cosine_blocks(units: Tensor, advance: Advance) -> Iterator[tuple[int, int, Tensor]]:
    """Yield the cosines of all pairs of different rows in blocks, each with its first row and column; where a pair has
    come before, on the diagonal and below it, there is -2."""
    for top in range(0, len(units), ROWS):
        rows = units[top : top + ROWS]
        for left in range(top, len(units), COLUMNS):
            block = rows @ units[left : left + COLUMNS].T
            if left == top:
                block.masked_fill_(torch.ones_like(block, dtype=torch.bool).tril_(), -2.0)
            yield top, left, block
        advance(len(rows))


@torch.no_grad()
def closest_pairs(
    vectors: Vectors, k: int, min_similarity: float, advance: Advance = lambda rows: None
) -> list[ScoredPair]:
    """Return the k pairs of different rows with the largest cosine, at least `min_similarity`, the best first."""
    assert k >= 1
    best = _Best(k, min_similarity - ROUNDING)
    for top, left, block in cosine_blocks(normalize_rows(vectors), advance):
        _gather(block, top, left, best, k)
    return best.pairs()


def _gather(block: Tensor, top: int, left: int, best: _Best, k: int) -> None:
    """Add the pairs of a block that may be among the best."""
    peaks = block.amax(1)
    lines = (peaks >= best.min_similarity).nonzero()[:, 0]
    if not len(lines):
        return
    near = block if len(lines) == len(block) else block[lines]
    limit = k + 4096
    if int((near >= best.min_similarity).sum()) > limit:  # many near copies: only the best of the block can count
        cut = float(near.flatten().kthvalue(near.numel() - k + 1).values) if k < near.numel() else -2.0
        best.min_similarity = max(best.min_similarity, cut)
    hits = (near >= best.min_similarity).nonzero()
    best.add(near[hits[:, 0], hits[:, 1]], lines[hits[:, 0]] + top, hits[:, 1] + left)


@torch.no_grad()
def nearest(queries: Vectors, among: Vectors, k: int) -> Iterator[list[tuple[int, float]]]:
    """Yield for each query its k nearest rows and their cosines, nearest first."""
    targets = normalize_rows(among)
    wanted = normalize_rows(queries)
    k = min(k, len(targets))
    for top in range(0, len(wanted), ROWS):
        rows = wanted[top : top + ROWS]
        values, indices = rows.new_empty(len(rows), 0), torch.empty(len(rows), 0, dtype=torch.int64)
        for left in range(0, len(targets), COLUMNS):
            best = (rows @ targets[left : left + COLUMNS].T).topk(min(k, len(targets) - left, COLUMNS))
            values, indices = torch.cat([values, best.values], 1), torch.cat([indices, best.indices + left], 1)
            kept = values.topk(min(k, values.shape[1]))
            values, indices = kept.values, indices.gather(1, kept.indices)
        for cosines, numbers in zip(values.clamp(max=1.0).tolist(), indices.tolist(), strict=True):
            yield list(zip(numbers, cosines, strict=True))


def cosines(first: Vectors, second: Vectors) -> list[float]:
    """Return the cosine of each row of `first` with the same row of `second`."""
    values: list[float] = (normalize_rows(first) * normalize_rows(second)).sum(1).clamp(-1.0, 1.0).tolist()
    return values


class DistinctTexts(NamedTuple):
    """The rows of texts without repetition, and the groups of equal texts."""

    first: NDArray[np.int64]  # the row each distinct text was first seen in
    groups: list[list[int]]  # rows that hold the same text, where there are several


def find_distinct(texts: Sequence[str]) -> DistinctTexts:
    """Find texts that repeat others, apart from white space at the ends; empty texts are left out."""
    rows: dict[str, list[int]] = {}
    for number, text in enumerate(texts):
        if bare := text.strip():
            rows.setdefault(bare, []).append(number)
    return DistinctTexts(
        np.array([group[0] for group in rows.values()], np.int64), [group for group in rows.values() if len(group) > 1]
    )


class CrossOptions(NamedTuple):
    """What is asked of a cross-encoder: `label` is its positive class, `max_length=0` its own maximum."""

    k: int
    min_score: float
    label: str | None
    max_length: int
    max_pairs: int


def cross_pairs(model: Model, texts: Sequence[str], file: str, options: CrossOptions) -> list[ScoredPair]:
    """Return the k pairs of different texts with the largest score, at least `min_score`, the best first.

    The texts of a pair are read in the order of the file. `file` is its name, for messages.
    """
    check_cross_encoder(model)
    total = len(texts) * (len(texts) - 1) // 2
    if total > min(SAMPLE, options.max_pairs):
        seconds = total * _seconds_per_pair(model, texts, options)
        estimate = f"{file}: {total:,} pairs, about {duration(seconds)}"
        if total > options.max_pairs:
            raise UserError(
                f"{estimate}; more than {options.max_pairs:,} are scored only with `max_pairs={total}`; vectors "
                "(without `cross`) compare as many texts in seconds"
            )
        note(estimate)
    with bar("comparing", total, speed="pairs") as progress:

        def scored() -> Iterator[ScoredPair]:
            rows = combinations(range(len(texts)), 2)
            while block := list(islice(rows, BLOCK)):
                for (first, second), score in zip(block, _scores(model, texts, block, options), strict=True):
                    if score >= options.min_score:
                        yield ScoredPair(first, second, score)
                progress.advance(len(block))

        return heapq.nlargest(options.k, scored(), key=lambda pair: pair.score)


def _scores(
    model: Model, texts: Sequence[str], rows: Sequence[tuple[int, int]], options: CrossOptions
) -> Iterator[float]:
    pairs = [(texts[first], texts[second]) for first, second in rows]
    return (pair_score(prediction, options.label) for prediction in model.predict(pairs, options.max_length))


def _seconds_per_pair(model: Model, texts: Sequence[str], options: CrossOptions) -> float:
    """Time random pairs."""
    draw = random.Random(0)
    rows = [(min(pair), max(pair)) for pair in (draw.sample(range(len(texts)), 2) for _ in range(SAMPLE))]
    list(_scores(model, texts, rows[: SAMPLE // 2], options))
    start = time.perf_counter()
    list(_scores(model, texts, rows[SAMPLE // 2 :], options))
    return (time.perf_counter() - start) / (SAMPLE - SAMPLE // 2)
