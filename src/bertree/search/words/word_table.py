"""How often each term occurs in each passage, in files that are written once and then only read.

A table covers the passages of one file of vectors, in the same order: row 7 of both is the same passage. It has the
sorted terms and, for each, its postings: the rows it occurs in, and how often. A file is memory-mapped.
"""

import os
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.files.atomic import sync
from bertree.files.formats import check_regular
from bertree.search.vector_files import REMAKE, CheckedFile, IndexFile
from bertree.search.words.terms import Analyzer

MAGIC, HEADER, ALIGNED = b"bertree words\n\0\0", 128, 64
LAYOUT = struct.Struct("<16sQQQQQ")  # magic, layout, passages, terms, bytes of all terms, postings
PREFIX = 8  # bytes of a term
MOST_COUNTED = (1 << 16) - 1  # occurrences of a term in a passage
BLOCK = 1 << 22  # postings that are moved at once
DISAGREE = f"the word index and the vectors do not belong together; {REMAKE}"
Keep = NDArray[np.bool_]


@dataclass(frozen=True)
class WordTable:
    """The terms of some passages. `_ends`: where the bytes and the postings of each term end; both begin with 0."""

    lengths: NDArray[np.uint32]  # terms of each passage
    term_ends: NDArray[np.uint64]
    posting_ends: NDArray[np.uint64]
    term_bytes: NDArray[np.uint8]  # all terms in UTF-8, sorted
    rows: NDArray[np.uint32]
    counts: NDArray[np.uint16]
    _: KW_ONLY
    file: CheckedFile | None = None  # that holds these arrays
    places: tuple[int, int] = (0, 0)  # of `rows` and `counts` in it

    @classmethod
    def of_texts(cls, texts: Iterable[str], analyzer: Analyzer) -> "WordTable":
        """Count the terms of texts."""
        ids: dict[str, int] = {}
        lengths, rows, term_ids, counts = [], [], [], []
        for row, text in enumerate(texts):
            terms = analyzer.terms(text)
            lengths.append(len(terms))
            for term, count in Counter(terms).items():
                rows.append(row)
                term_ids.append(ids.setdefault(term, len(ids)))
                counts.append(min(count, MOST_COUNTED))
        encoded = [term.encode() for term in ids]
        order = sorted(range(len(encoded)), key=encoded.__getitem__)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        ranks = rank[np.array(term_ids, np.int64)]
        by_term = np.argsort(ranks, kind="stable")
        posting_ends = _ends(np.bincount(ranks, minlength=len(order)))
        return cls(
            np.array(lengths, np.uint32),
            *_pack_terms([encoded[number] for number in order], posting_ends),
            np.array(rows, np.uint32)[by_term],
            np.array(counts, np.uint16)[by_term],
        )

    @classmethod
    def read(cls, folder: Path, part: IndexFile) -> "WordTable":
        """Map a file, after checking its size and header; raise FileNotFoundError if it is gone."""
        path = folder / part.name
        broken = f"{path}: is damaged or cut off; {REMAKE}"
        check_regular(path)
        with path.open("rb") as file:
            head = file.read(LAYOUT.size)
            size = os.fstat(file.fileno()).st_size
            if len(head) < LAYOUT.size or size != part.bytes:
                raise UserError(broken)
            magic, layout, *counts = LAYOUT.unpack(head)
            sections = list(_sections(*counts))
            if (magic, layout) != (MAGIC, 1) or size != _file_size(sections):
                raise UserError(broken)
            if counts[0] != part.count:
                raise UserError(f"{path}: {DISAGREE}")
            mapped = np.memmap(file, np.uint8, "r")
        checked = CheckedFile(path, part, np.asarray(mapped), REMAKE)
        checked.check(0, sections[-2][0])
        arrays = (np.asarray(_section(mapped, at, count, kind)) for at, count, kind in sections)
        return cls(*arrays, file=checked, places=(sections[-2][0], sections[-1][0]))

    def check(self, start: int, end: int) -> None:
        """Compare some postings with the checksums of the file."""
        if self.file is not None and end > start:
            rows, counts = self.places
            self.file.check(rows + 4 * start, 4 * (end - start))
            self.file.check(counts + 2 * start, 2 * (end - start))

    @cached_property
    def _views(self) -> tuple[memoryview, memoryview, memoryview]:
        """Ends of terms, their bytes, and ends of postings; single items are read faster than those of arrays."""
        return self.term_ends.data, self.term_bytes.data, self.posting_ends.data

    @cached_property
    def _prefixes(self) -> NDArray[np.uint64]:
        """The first bytes of each term as a number; in these a term is found faster than among the terms."""
        ends = self.term_ends.astype(np.int64)[:, None]
        places = ends[:-1] + np.arange(PREFIX)
        padded = np.append(self.term_bytes, np.zeros(PREFIX, np.uint8))
        letters = np.where(places < ends[1:], padded[places], 0).astype(np.uint8)
        return letters.view(">u8")[:, 0].astype(np.uint64)

    def __len__(self) -> int:
        """Number of terms."""
        return len(self.term_ends) - 1

    def __getitem__(self, number: int) -> bytes:
        """Return a term by its place in the order."""
        ends, letters, _ = self._views
        return letters[ends[number] : ends[number + 1]].tobytes()

    def frequencies(self) -> NDArray[np.int64]:
        """Return how many passages have each term."""
        ends = self.posting_ends.astype(np.int64)
        return ends[1:] - ends[:-1]

    def spans(self, terms: Sequence[bytes], prefixes: NDArray[np.uint64]) -> list[tuple[int, int]]:
        """Return where the postings of each term begin and end; (0, 0) if it does not occur."""
        posting_ends, spans = self._views[2], []
        numbers = self._prefixes.searchsorted(prefixes).tolist()
        for term, prefix, number in zip(terms, prefixes, numbers, strict=True):
            if len(term) >= PREFIX and number < len(self) and self[number] < term:  # others have the same first letters
                number = bisect_left(self, term, number, int(self._prefixes.searchsorted(prefix, "right")))
            if number == len(self) or self[number] != term:
                spans.append((0, 0))
                continue
            start, end = posting_ends[number], posting_ends[number + 1]
            if not start < end <= len(self.rows):
                raise UserError(f"the postings of {term.decode()!r} are damaged; {DISAGREE}")
            self.check(start, end)
            spans.append((start, end))
        return spans

    def only(self, keep: Keep) -> "WordTable":
        """Return the table without some passages."""
        self.check(0, len(self.rows))
        kept = keep[self.rows]
        ends = np.concatenate([[0], np.cumsum(kept)])[self.posting_ends.astype(np.int64)]
        used = np.diff(ends) > 0
        new_rows = np.cumsum(keep) - 1
        return WordTable(
            self.lengths[keep],
            *_pack_terms([self[number] for number in np.flatnonzero(used).tolist()], _ends(np.diff(ends)[used])),
            new_rows[self.rows[kept]].astype(np.uint32),
            self.counts[kept],
        )


def write_words(folder: Path, name: str, tables: Sequence[WordTable]) -> IndexFile:
    """Write several tables, one after the other, as one new file and sync it."""
    terms = sorted(set().union(*([table[number] for number in range(len(table))] for table in tables)))
    numbers = {term: number for number, term in enumerate(terms)}
    new_numbers = [np.array([numbers[table[n]] for n in range(len(table))], np.int64) for table in tables]
    totals = np.zeros(len(terms), np.int64)
    for table, to in zip(tables, new_numbers, strict=True):
        totals[to] += table.frequencies()
    term_ends, posting_ends, term_bytes = _pack_terms(terms, _ends(totals))
    passages = sum(len(table.lengths) for table in tables)
    counts = (passages, len(terms), len(term_bytes), int(posting_ends[-1]))
    sections = list(_sections(*counts))
    path = folder / name
    with path.open("w+b") as file:
        file.truncate(_file_size(sections))
        file.write(LAYOUT.pack(MAGIC, 1, *counts))
        file.flush()
        mapped = np.memmap(file, np.uint8, "r+")
        target = WordTable(*(_section(mapped, at, count, kind) for at, count, kind in sections))
        target.term_ends[:], target.posting_ends[:], target.term_bytes[:] = term_ends, posting_ends, term_bytes
        free, first = posting_ends[:-1].astype(np.int64), 0  # where the next posting of each term goes
        for table, to in zip(tables, new_numbers, strict=True):
            target.lengths[first : first + len(table.lengths)] = table.lengths
            _copy_postings(table, target, to, free, first)
            first += len(table.lengths)
        mapped.flush()
        os.fsync(file.fileno())
    sync(folder)
    return IndexFile.describe(folder, name, passages)


def _copy_postings(
    table: WordTable, target: WordTable, to: NDArray[np.int64], free: NDArray[np.int64], first: int
) -> None:
    """Copy the postings of a table into a larger one; `to`: its terms there, `first`: its first row there."""
    table.check(0, len(table.rows))
    ends = table.posting_ends.astype(np.int64)
    begin = 0
    while begin < len(table):
        end = max(begin + 1, int(np.searchsorted(ends, ends[begin] + BLOCK, "right")) - 1)
        frequencies = np.diff(ends[begin : end + 1])
        chosen = slice(int(ends[begin]), int(ends[end]))
        places = np.repeat(free[to[begin:end]] - ends[begin:end], frequencies) + np.arange(chosen.start, chosen.stop)
        target.rows[places] = table.rows[chosen] + np.uint32(first)
        target.counts[places] = table.counts[chosen]
        free[to[begin:end]] += frequencies
        begin = end


def prefixes_of(terms: Iterable[bytes]) -> NDArray[np.uint64]:
    """Return the first bytes of terms as numbers, which have the same order."""
    return np.array([int.from_bytes(term[:PREFIX].ljust(PREFIX, b"\0"), "big") for term in terms], np.uint64)


def _ends(sizes: NDArray[np.int64]) -> NDArray[np.uint64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64)


def _pack_terms(
    terms: Sequence[bytes], posting_ends: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint8]]:
    """Return the three arrays of a table that describe its terms."""
    sizes = np.fromiter(map(len, terms), np.int64, len(terms))
    return _ends(sizes), posting_ends, np.frombuffer(b"".join(terms), np.uint8)


def _sections(passages: int, terms: int, letters: int, postings: int) -> Iterator[tuple[int, int, str]]:
    """Yield the place, length and type of each array of a file."""
    at = HEADER
    for count, kind in (
        (passages, "<u4"),
        (terms + 1, "<u8"),
        (terms + 1, "<u8"),
        (letters, "u1"),
        (postings, "<u4"),
        (postings, "<u2"),
    ):
        yield at, count, kind
        at += -(-count * np.dtype(kind).itemsize // ALIGNED) * ALIGNED


def _file_size(sections: Sequence[tuple[int, int, str]]) -> int:
    at, count, kind = sections[-1]
    return at + count * np.dtype(kind).itemsize


def _section(mapped: NDArray[np.uint8], at: int, count: int, kind: str) -> NDArray[Any]:
    return mapped[at : at + count * np.dtype(kind).itemsize].view(kind)
