"""How words are spelled, for models that read characters, as ELMo's authors do it.

The characters of a word are the bytes of its UTF-8, between marks for its beginning and its end; a longer word is cut.
The special tokens around a text have a mark of their own instead of bytes. A word outside the vocabulary is an id that
carries its characters: below 0, because tables have no row for it. `Batch.pack` separates the two.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Words as in the CoNLL-2003 files, see tasks/tagging/words.py: clitics, letters with points, numbers, what is joined by
# hyphens, runs of one sign, other signs.
WORDS = (
    r"n['’]t(?!\w)|['’](?:s|re|ve|ll|m|d)(?!\w)|\w+?(?=n['’]t(?!\w))|(?:[^\W\d_]\.){2,}"
    r"|\w+(?:(?:[-/&.]|['’](?!(?:s|re|ve|ll|m|d)(?!\w))|(?<=\d)[,:](?=\d))\w+)*|\.{2,}|-{2,}|[^\w\s]"
)
TEXT_BEGIN, TEXT_END, WORD_BEGIN, WORD_END, PADDING = range(256, 261)


class SpelledWord(int):
    """A word outside the vocabulary: -1 - the id of the unknown token, with its characters."""

    word: str
    characters: tuple[int, ...]

    def __new__(cls, unknown: int, word: str, length: int) -> "SpelledWord":
        """`length`: characters of a word, with its marks and padding."""
        spelled = super().__new__(cls, -1 - unknown)
        spelled.word, spelled.characters = word, tuple(spell(word, length))
        return spelled

    def __reduce__(self) -> tuple[type["SpelledWord"], tuple[int, str, int]]:
        return SpelledWord, (-1 - self, self.word, len(self.characters))


def spell(word: str, length: int) -> list[int]:
    """Return the characters of a word, padded to `length`."""
    return _mark(word.encode("utf-8", "replace")[: length - 2], length)


def _mark(characters: Sequence[int], length: int) -> list[int]:
    return [WORD_BEGIN, *characters, WORD_END, *[PADDING] * (length - 2 - len(characters))]


def spell_vocabulary(tokens: Sequence[str], begin: int | None, end: int | None, length: int) -> NDArray[np.int16]:
    """Return the characters of each entry of a vocabulary (entries x length); `begin` and `end` are the ids of the
    special tokens around a text."""
    marks = {begin: [TEXT_BEGIN], end: [TEXT_END]}
    rows = [_mark(marks[i], length) if i in marks else spell(token, length) for i, token in enumerate(tokens)]
    return np.array(rows, np.int16).reshape(-1, length)
