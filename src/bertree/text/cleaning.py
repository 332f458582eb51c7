"""Text cleaning, exact de-duplication, and how words are spelled.

Cleaning applies canonical composition (NFC), drops control and invisible characters, and keeps one kind of space and
one kind of line end. It changes no letter: lower-casing and the like belong to the tokenizer.

Words are spelled for models that read characters, as in ELMo's code. The characters of a word are the bytes of its
UTF-8, between marks for its beginning and its end; a longer word is cut. The special tokens around a text have their
own mark instead of bytes. A word outside the vocabulary is an id that carries its characters: below 0, because tables
have no row for it. `Batch.pack` separates the two.
"""

import hashlib
import unicodedata
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Words as in the CoNLL-2003 files, see tasks/tagging/sentences.py: clitics, letters with points, numbers, words
# joined by hyphens, runs of one sign, other signs.
WORDS = (
    r"n['’]t(?!\w)|['’](?:s|re|ve|ll|m|d)(?!\w)|\w+?(?=n['’]t(?!\w))|(?:[^\W\d_]\.){2,}"
    r"|\w+(?:(?:[-/&.]|['’](?!(?:s|re|ve|ll|m|d)(?!\w))|(?<=\d)[,:](?=\d))\w+)*|\.{2,}|-{2,}|[^\w\s]"
)
TEXT_BEGIN, TEXT_END, WORD_BEGIN, WORD_END, PADDING = range(256, 261)
# Joiners are invisible but shape emoji and several scripts.
KEPT = {"\u200c", "\u200d"}
DIGEST = 16  # bytes: a collision among 10^15 documents is unlikely


class _CharacterMap(dict[int, str | None]):
    """Replacement of each character, computed on first use."""

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        kind = unicodedata.category(character)
        new: str | None = character
        if kind == "Cs":
            new = "\ufffd"  # half a surrogate pair is not text
        elif character.isspace():
            new = " "
        elif (kind in ("Cc", "Cf") and character not in KEPT) or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF:
            new = None
        self[code] = new
        return new


_TABLE = _CharacterMap()


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON allows and UTF-8 cannot encode, by the replacement character."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean(text: str, wrapped: bool = False) -> str:
    """Return lines of words with single spaces between them and no empty line.

    With `wrapped`, the lines of a paragraph are joined; only an empty line ends a paragraph.
    """
    lines = [_clean_line(line) for line in text.splitlines()]
    cleaned = "\n".join(_join_paragraphs(lines) if wrapped else filter(None, lines))
    # Last, because a letter and its accent may have had an invisible character between them.
    return cleaned if cleaned.isascii() else unicodedata.normalize("NFC", cleaned)


def _clean_line(line: str) -> str:
    if line.isprintable():  # then a space is the only white space in it, as in nearly every line
        return " ".join(line.split()) if "  " in line else line.strip()
    return " ".join(line.translate(_TABLE).split())


def _join_paragraphs(lines: list[str]) -> list[str]:
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line:
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return [" ".join(paragraph) for paragraph in paragraphs if paragraph]


def digest(text: str) -> bytes:
    """Hash a document for comparison with others."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST).digest()


class DigestSet:
    """A set of digests in a flat table: 24 to 48 bytes per document, where a Python set takes 120."""

    def __init__(self) -> None:
        self.count = 0
        self._slots = 1024
        self._table = array("Q", bytes(16 * self._slots))

    def add(self, key: bytes) -> bool:
        """Add a digest; return False if the set has it already."""
        first = int.from_bytes(key[:8], "little")
        second = int.from_bytes(key[8:], "little") | 1  # an empty slot holds zero
        if not self._put(first, second):
            return False
        self.count += 1
        if 3 * self.count > 2 * self._slots:
            self._grow()
        return True

    def _put(self, first: int, second: int) -> bool:
        table, mask = self._table, self._slots - 1
        at = first & mask
        while stored := table[2 * at + 1]:
            if stored == second and table[2 * at] == first:
                return False
            at = (at + 1) & mask
        table[2 * at], table[2 * at + 1] = first, second
        return True

    def _grow(self) -> None:
        old = self._table
        self._slots *= 2
        self._table = array("Q", bytes(16 * self._slots))
        for at in range(0, len(old), 2):
            if old[at + 1]:
                self._put(old[at], old[at + 1])


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
