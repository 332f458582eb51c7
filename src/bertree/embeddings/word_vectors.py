"""Vectors of words (GloVe), whose mean is a baseline for sentence vectors.

The plain mean is dominated by "the" and "of"; without the most frequent words it is far better (STS-B, 50 dimensions:
53 instead of 38). The files are large (840B tokens: 5 GB), so only the words of the texts at hand are parsed.
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

CLITICS = re.compile(r"(n't|'(?:s|m|d|re|ve|ll))\b")  # words of their own in these files
WORDS = re.compile(r"n't|'\w+|\d+(?:[.,:]\d+)*|\w+(?:-\w+)*|[^\w\s]")

FREQUENT = 100  # words at the start of a file, which is sorted by frequency: "the", "of" ...


def split_words(text: str) -> list[str]:
    """Split a text into words as these files have them: lower case, punctuation separate."""
    return WORDS.findall(CLITICS.sub(r" \1", text.lower().replace("’", "'")))


def words_of(texts: Iterable[str]) -> set[str]:
    """Return the words that may be looked up for these texts."""
    words = {word for text in texts for word in split_words(text)}
    return words | {part for word in words if "-" in word for part in word.split("-")}


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors."""

    rows: dict[str, int]
    table: NDArray[np.float32]
    frequent: frozenset[str] = field(default=frozenset())  # the first words of its file

    @classmethod
    def read(cls, path: Path, only: Collection[str] | None = None) -> "WordVectors":
        """Read a file with one word and its numbers per line, plain or compressed; `only`: skip all other words."""
        rows: dict[str, int] = {}
        frequent: set[str] = set()
        vectors: list[NDArray[np.float32]] = []
        width = 0
        with open_source(Source(str(path), "text", 0, 0)) as (stream, _):
            for number, line in enumerate(stream, 1):
                name, _, rest = line.rstrip().partition(b" ")
                if not name:
                    continue
                if not width:
                    width = len(rest.split())
                    if width == 1 and name.isdigit():  # word2vec's text form begins with the number of words
                        width = 0
                        continue
                if number <= FREQUENT:
                    frequent.add(_word(name))
                if only is not None and _word(name) not in only:
                    continue
                vector = _numbers(rest)
                if vector is None and line.count(b" ") > width:
                    continue  # a few of GloVe's words hold spaces: no text is split into them
                if vector is None:
                    raise UserError(f"{path}: line {number}: is not a word and its numbers")
                if len(vector) != width or not width:
                    raise UserError(f"{path}: line {number}: has {len(vector)} numbers, unlike the lines before")
                if (word := _word(name)) not in rows:
                    rows[word] = len(vectors)
                    vectors.append(vector)
        if not width:
            raise UserError(f"{path}: holds no vectors")
        if not vectors:
            raise UserError(f"{path}: has a vector for none of the words of these texts")
        return cls(rows, np.stack(vectors), frozenset(frequent))

    @property
    def dimension(self) -> int:
        """Width of the vectors."""
        return self.table.shape[1]

    @cached_property
    def digest(self) -> str:
        """Hash of words and vectors."""
        digest = hashlib.sha256("\n".join(self.rows).encode())
        digest.update(self.table.tobytes())
        return digest.hexdigest()

    def mean(self, text: str, content: bool = False) -> NDArray[np.float32]:
        """Return the mean vector of the known words; zeros if there is none. `content`: leave out punctuation and the
        most frequent words, unless there are no others."""
        words = [word for word in self._words(text) if word in self.rows]
        if content:
            words = [word for word in words if word not in self.frequent and word[-1].isalnum()] or words
        rows = [self.rows[word] for word in words]
        return self.table[rows].mean(0) if rows else np.zeros(self.dimension, np.float32)

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
        numbers = np.array(data.split(), np.float32)
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None
