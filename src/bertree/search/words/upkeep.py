"""The word tables of an index while it changes: one for each file of vectors, written before the state names them.

An index without words (`word_version` 0) stays without, until `count_words`.
"""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np

from bertree.search.faiss_index import Watch
from bertree.search.index_state import IndexState
from bertree.search.passage_store import PassageStore
from bertree.search.vector_files import IndexFile, MappedVectors, Numbers
from bertree.search.words.bm25 import read_tables
from bertree.search.words.terms import analyzer_for
from bertree.search.words.word_table import WordTable, write_words

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
