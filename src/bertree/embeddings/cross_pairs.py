"""The most similar pairs of a small set of texts by a cross-encoder, which reads the two texts of a pair together.

Every pair is a pass of the model, so the time is estimated first, and very many pairs are refused.
"""

import heapq
import random
import time
from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from typing import NamedTuple

from bertree.console import bar, note
from bertree.errors import UserError
from bertree.inference.model import Model
from bertree.report.formats import duration
from bertree.search.rerank import check_cross_encoder, pair_score

SAMPLE = 64  # pairs that are timed first, in two equal parts: the first warms up
BLOCK = 1024  # pairs scored at once


class ScoredPair(NamedTuple):
    """Two rows and the score of their texts."""

    first: int
    second: int
    score: float


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
