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
        for term, times in Counter(terms).items():
            places, counts = self.postings(term)
            if len(places):
                idf = math.log(1 + (self.passages - len(places) + 0.5) / (len(places) + 0.5))
                scores[places] += np.float32(times * idf) * (counts / (counts + self._norms[places]))
        return scores

    def postings(self, term: str) -> tuple[Numbers, Scores]:
        """Return the positions of the passages with a term, and how often it occurs in each."""
        per_table = [table.postings(term) for table in self._tables]
        shifted = [rows + start for (rows, _), start in zip(per_table, self._starts, strict=False)]
        places = np.concatenate([np.empty(0, np.int64), *shifted])
        counts = np.concatenate([np.empty(0, np.float32), *(counts for _, counts in per_table)], dtype=np.float32)
        if self._alive is None or not len(places):
            return places, counts
        alive = self._alive[places]
        return places[alive], counts[alive]
