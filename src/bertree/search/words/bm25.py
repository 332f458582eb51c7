"""BM25 as Lucene computes it: how well the terms of a query describe each passage.

A term that few passages have counts more (`idf`), a second occurrence less than the first (`K1`), and an occurrence in
a long passage less than in a short one (`B`). Removed passages count for nothing.

    score = sum over terms of  ln(1 + (N - n + 0.5) / (n + 0.5)) * f / (f + K1 * (1 - B + B * length / mean length))
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.search.vector_files import IndexFile, Numbers
from bertree.search.words.word_table import DISAGREE, WordTable

K1, B = 1.2, 0.75
Scores = NDArray[np.float32]


def read_tables(folder: Path, parts: Sequence[IndexFile], counts: Sequence[int]) -> list[WordTable]:
    """Open the word tables of an index; `counts`: vectors in each of its files of vectors."""
    if [part.count for part in parts] != list(counts):
        raise UserError(f"{folder}: {DISAGREE}")
    return [WordTable.read(folder, part) for part in parts]


class WordIndex:
    """The word tables of one state of an index. A position is that of the passage's vector."""

    def __init__(self, folder: Path, parts: Sequence[IndexFile], counts: Sequence[int], dead: Numbers) -> None:
        """`dead`: positions of removed passages."""
        self._tables = read_tables(folder, parts, counts)
        self._starts = np.cumsum([0, *counts])
        lengths = np.concatenate([np.empty(0, np.uint32), *(table.lengths for table in self._tables)])
        self._alive: NDArray[np.bool_] | None = None
        if len(dead):
            self._alive = np.ones(len(lengths), np.bool_)
            self._alive[dead] = False
            living = lengths[self._alive]
        else:
            living = lengths
        self.passages = len(living)
        mean = max(1.0, float(living.sum(dtype=np.int64))) / max(1, self.passages)
        self._norms: Scores = (K1 * (1 - B + B / mean * lengths)).astype(np.float32)

    def scores(self, terms: Sequence[str]) -> Scores:
        """Return the score of every position; 0 where no term occurs. A term that is repeated counts each time."""
        scores = np.zeros(len(self._norms), np.float32)
        weights, held, all_places, all_counts = [], [], [], []
        for term, times in Counter(terms).items():
            postings = self.postings(term)
            weight = times * self._idf(sum(len(places) for places, _ in postings))
            for places, counts in postings:
                weights.append(weight)
                held.append(len(places))
                all_places.append(places)
                all_counts.append(counts)
        if held:
            places = np.concatenate(all_places)
            occurring = np.concatenate(all_counts, dtype=np.float32)
            idf = np.repeat(np.array(weights, np.float32), held)
            np.add.at(scores, places, idf * (occurring / (occurring + self._norms[places])))
        return scores

    def _idf(self, count: int) -> float:
        """Return the weight of a term that so many passages have."""
        return math.log(1 + (self.passages - count + 0.5) / (count + 0.5))

    def postings(self, term: str) -> list[tuple[Numbers, NDArray[np.uint16]]]:
        """Return, for each table with a term, the positions of its passages, and how often it occurs in each."""
        postings = []
        for table, start in zip(self._tables, self._starts, strict=False):
            rows, counts = table.postings(term)
            places = rows + start
            if self._alive is not None and len(rows):
                alive = self._alive[places]
                places, counts = places[alive], counts[alive]
            if len(places):
                postings.append((places, counts))
        return postings
