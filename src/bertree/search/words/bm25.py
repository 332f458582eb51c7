"""BM25 as Lucene computes it: how well the terms of a query describe each passage; and the word tables of an index
while it changes.

A term that few passages have counts more (`idf`), a second occurrence less than the first (`K1`), and an occurrence in
a long passage less than in a short one (`B`). Removed passages count for nothing.

    score = sum over terms of  ln(1 + (N - n + 0.5) / (n + 0.5)) * f / (f + K1 * (1 - B + B * length / mean length))

There is one table for each file of vectors, written before the state names it. An index without words (`word_version`
0) stays without, until `count_words`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.search.faiss_index import Watch
from bertree.search.index_state import IndexState
from bertree.search.passage_store import PassageStore
from bertree.search.vector_files import IndexFile, MappedVectors, Numbers
from bertree.search.words.terms import analyzer_for
from bertree.search.words.word_table import DISAGREE, WordTable, prefixes_of, write_words

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
        times = Counter(terms)
        places, counts, sizes = self.postings(list(times))
        weights = [number * self._idf(size) for number, size in zip(times.values(), sizes, strict=True)]
        gains, norms = counts.astype(np.float32), self._norms.take(places)
        norms += gains
        gains /= norms
        gains *= np.repeat(np.array(weights, np.float32), sizes)
        np.add.at(scores, places, gains)
        return scores

    def _idf(self, count: int) -> float:
        """Return the weight of a term that so many passages have."""
        return math.log(1 + (self.passages - count + 0.5) / (count + 0.5))

    def postings(self, terms: Sequence[str]) -> tuple[Numbers, NDArray[np.uint16], list[int]]:
        """Return the positions with the first term, with the second and so on; how often it occurs in each; and how
        many positions each term has."""
        encoded = [term.encode() for term in terms]
        prefixes = prefixes_of(encoded)
        by_table = [table.spans(encoded, prefixes) for table in self._tables]
        starts, rows, counts = [0], [np.empty(0, np.uint32)], [np.empty(0, np.uint16)]
        sizes = [0] * len(terms)
        for number in range(len(terms)):
            for table, start, spans in zip(self._tables, self._starts, by_table, strict=False):
                first, last = spans[number]
                if first < last:
                    starts.append(start)
                    rows.append(table.rows[first:last])
                    counts.append(table.counts[first:last])
                    sizes[number] += last - first
        places = np.repeat(starts, list(map(len, rows))) + np.concatenate(rows)
        all_counts = np.concatenate(counts)
        if len(places) and int(places.max()) >= len(self._norms):
            raise UserError(f"the postings of {', '.join(terms)} are damaged; {DISAGREE}")
        if self._alive is None:
            return places, all_counts, sizes
        alive = self._alive[places]
        ends = np.append(0, alive.cumsum())[np.cumsum([0, *sizes])]
        return places[alive], all_counts[alive], np.diff(ends).tolist()


BLOCK = 1 << 16  # passages whose words are counted at once
Parts = tuple[IndexFile, ...]


def extend_words(folder: Path, name: str, state: IndexState, first: int, texts: Iterable[str]) -> Parts:
    """Write the words of new passages and of the old tables from `first` on into a new table; return all tables."""
    if not state.word_version:
        return ()
    table = WordTable.of_texts(texts, analyzer_for(state.chunking.language))
    return (*state.words[:first], write_words(folder, name, [*_tables(folder, state)[first:], table]))


def compact_words(folder: Path, name: str, state: IndexState, alive: Numbers) -> Parts:
    """Write the words of the passages at the positions `alive` into one new table; return it."""
    if not state.word_version:
        return ()
    keep = np.zeros(state.vectors, np.bool_)
    keep[alive] = True
    spans = pairwise(np.cumsum([0, *(part.count for part in state.parts)]))
    tables = [table.only(keep[start:end]) for table, (start, end) in zip(_tables(folder, state), spans, strict=True)]
    return (write_words(folder, name, tables),)


def count_words(folder: Path, name: str, state: IndexState, store: PassageStore, watch: Watch) -> Parts:
    """Write the words of all passages, whatever tables there are; return the new tables."""
    analyzer, done = analyzer_for(state.chunking.language), 0
    words: list[IndexFile] = []
    for number, part in enumerate(state.parts):
        numbers = MappedVectors(folder, [part], state.dimension).numbers.tolist()
        tables = []
        for at in range(0, len(numbers), BLOCK):
            with store.transaction():
                tables.append(WordTable.of_texts(store.texts(numbers[at : at + BLOCK]), analyzer))
            done += len(numbers[at : at + BLOCK])
            watch("counting words", done, state.vectors)
        words.append(write_words(folder, f"{name}-{number}.bin", tables))
    return tuple(words)


def _tables(folder: Path, state: IndexState) -> list[WordTable]:
    return read_tables(folder, state.words, [part.count for part in state.parts])
