"""Word vectors from GloVe files, and the mean of them as a baseline for texts.

The plain mean is mostly that of "the" and "of"; without the most frequent words it is a far better baseline
(STS-B, 50 numbers: 53 in place of 38), so both are given.

The files are large beside the texts they are asked about (840B tokens: 5 GB), so only the words that are needed are
parsed: `needed(texts)` says which, and every other line is passed over.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.text.sources import Source, open_source

CLITICS = re.compile(r"(n't|'(?:s|m|d|re|ve|ll))\b")  # the vectors' own words for them stand apart
WORDS = re.compile(r"n't|'\w+|\d+(?:[.,:]\d+)*|\w+(?:-\w+)*|[^\w\s]")

FREQUENT = 100  # the files are in the order of frequency: these are "the", "of" and their like


def split_words(text: str) -> list[str]:
    """Split a text into words as these files have them: lower case, punctuation separate."""
    return WORDS.findall(CLITICS.sub(r" \1", text.lower().replace("’", "'")))


def words_of(texts: Iterable[str]) -> set[str]:
    """Return the words that may be looked up for these texts."""
    found = {word for text in texts for word in split_words(text)}
    return found | {part for word in found if "-" in word for part in word.split("-")}


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors."""

    rows: dict[str, int]
    table: NDArray[np.float32]
    frequent: frozenset[str] = field(default=frozenset())  # those its file begins with, which say little

    @classmethod
    def read(cls, path: Path, only: Collection[str] | None = None) -> "WordVectors":
        """Read a file with one word and its numbers per line, plain or compressed; `only`: skip all other words."""
        rows: dict[str, int] = {}
        frequent: set[str] = set()
        found: list[NDArray[np.float32]] = []
        width = 0
        with open_source(Source(str(path), "text", 0, 0)) as (stream, _):
            for number, line in enumerate(stream, 1):
                name, _, rest = line.rstrip().partition(b" ")
                if not name:
                    continue
                if not width:
                    width = len(rest.split())
                    if width == 1 and name.isdigit():  # word2vec's text form begins with how many there are
                        width = 0
                        continue
                if number <= FREQUENT:
                    frequent.add(_word(name))
                if only is not None and _word(name) not in only:
                    continue
                vector = _numbers(rest)
                if vector is None and line.count(b" ") > width:
                    continue  # a few of GloVe's words hold spaces: none that a text can be split into
                if vector is None:
                    raise UserError(f"{path}: line {number}: is not a word and its numbers")
                if len(vector) != width or not width:
                    raise UserError(f"{path}: line {number}: has {len(vector)} numbers, unlike the lines before")
                if (word := _word(name)) not in rows:
                    rows[word] = len(found)
                    found.append(vector)
        if not width:
            raise UserError(f"{path}: holds no vectors")
        if not found:
            raise UserError(f"{path}: has a vector for none of the words of these texts")
        return cls(rows, np.stack(found), frozenset(frequent))

    @property
    def dimension(self) -> int:
        """Width of the vectors."""
        return self.table.shape[1]

    @cached_property
    def digest(self) -> str:
        """Hash of words and vectors."""
        found = hashlib.sha256("\n".join(self.rows).encode())
        found.update(self.table.tobytes())
        return found.hexdigest()

    def mean(self, text: str, content: bool = False) -> NDArray[np.float32]:
        """Return the mean vector of the known words; zeros if there is none. `content`: leave out punctuation and the
        most frequent words, unless there are no others."""
        words = [word for word in self._words(text) if word in self.rows]
        if content:
            words = [word for word in words if word not in self.frequent and word[-1].isalnum()] or words
        known = [self.rows[word] for word in words]
        return self.table[known].mean(0) if known else np.zeros(self.dimension, np.float32)

    def embed(self, texts: Iterable[str], content: bool = False) -> NDArray[np.float32]:
        """Return the mean vectors of n texts (n x d)."""
        return np.array([self.mean(text, content) for text in texts], np.float32).reshape(-1, self.dimension)

    def _words(self, text: str) -> Iterator[str]:
        for word in split_words(text):
            if word in self.rows or "-" not in word:
                yield word
            else:
                yield from word.split("-")


def _word(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _numbers(data: bytes) -> NDArray[np.float32] | None:
    try:
        found = np.array(data.split(), np.float32)
    except ValueError:
        return None
    return found if np.isfinite(found).all() else None
