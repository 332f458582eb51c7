"""Passages, passages as search results, and the words of a passage that a query shares with it.

Shared words are found by their letters, without the model: this takes microseconds, so it can be done while someone
types. Words are compared without case and accents. English forms of one word (brig, brigs; whale, whaling) count as the
same: the first rules of Porter's stemmer remove their endings. The last word of a query may be the beginning of one. A
passage that resembles a query in meaning alone has no highlights.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bertree.files.formats import Json
from bertree.search.vector_files import Vectors

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_LEAST = 4  # letters of the beginning of a word
_VOWEL = re.compile("[aeiou]|(?<=[^aeiou])y")
_ENDS_SHORT = re.compile("(^|[^aeiou])[aeiouy][^aeiouwxy]$")  # "hop", "whal": an e was dropped before -ing, -ed
_SYLLABLE = re.compile("[aeiouy]+[^aeiouy]+")
_COMMON = frozenset((
    "a", "about", "after", "all", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by", "can", "could",
    "did", "do", "does", "for", "from", "had", "has", "have", "he", "her", "him", "his", "how", "i", "if", "in",
    "is", "it", "its", "me", "my", "no", "not", "of", "on", "or", "our", "she", "should", "so", "than", "that",
    "the", "their", "them", "then", "there", "these", "they", "this", "to", "was", "we", "were", "what", "when",
    "where", "which", "who", "whom", "whose", "why", "will", "with", "would", "you", "your",
))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Passage:
    """One passage of an index."""

    text: str
    document: str  # id of its document
    source: str
    start: int  # of the passage in its document, in characters
    end: int
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PassageSample:
    """Passages of one state of an index, with their vectors."""

    passages: list[Passage]
    vectors: Vectors  # a row each, of length 1
    total: int  # passages in the index
    generation: int  # changes whenever the index does


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One passage of a search result."""

    score: float  # the cosine, or the re-ranker's score
    text: str
    document: str  # id of its document
    source: str
    start: int  # of the passage in its document, in characters
    end: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    cosine: float = 0.0

    @classmethod
    def of_passage(cls, passage: Passage, cosine: float) -> "Hit":
        """Return a passage as a search result."""
        return cls(score=cosine, cosine=cosine, **vars(passage))

    def _repr_html_(self) -> str:
        from bertree.report.html import notebook_table

        rows = [("score", f"{self.score:.4f}"), ("text", self.text)]
        return notebook_table(self.document, [*rows, *((key, str(value)) for key, value in self.metadata.items())])

    def json(self) -> Json:
        """Return the fields as a JSON object."""
        return asdict(self)


def find_highlights(query: str, text: str) -> list[tuple[int, int]]:
    """Return beginning and end, in characters, of the words of a text that are also in a query.

    Common English words are left out, unless the query has no others.
    """
    words = [_fold(match.group()) for match in _WORD.finditer(query)]
    typed = words[-1] if words and re.search(r"\w$", query) else ""
    matches = _matcher({*words} - _COMMON or {*words}, typed)
    return [match.span() for match in _WORD.finditer(text) if matches(_fold(match.group()))]


def _matcher(words: set[str], typed: str) -> Callable[[str], bool]:
    """Return a function that tells whether a word is one of `words`; `typed` may be its beginning."""
    stems = {_stem(word) for word in words}
    begins = len(typed) >= _LEAST and typed in words
    return lambda word: word in words or (begins and word.startswith(typed)) or _stem(word) in stems


def _stem(word: str) -> str:
    """Return a word without the endings of plurals and verbs."""
    if word.endswith(("sses", "ies")) and len(word) > 4:
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us")) and len(word) > 3:
        word = word[:-1]
    for ending in ("eed", "ed", "ing"):
        if word.endswith(ending):
            word = _without(word, ending)
            break
    return word[:-1] + "i" if word.endswith("y") and _VOWEL.search(word[:-1]) else word


def _without(word: str, ending: str) -> str:
    """Remove the ending of a verb: hopping, hop; whaling, whale; filed, file; agreed, agree; but not sing or red."""
    rest = word.removesuffix(ending)
    if not _VOWEL.search(rest):
        return word
    if ending == "eed":
        return rest + "ee"
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if rest[-1:] == rest[-2:-1] and rest[-1] not in "aeioulsz":
        return rest[:-1]
    return rest + "e" if len(_SYLLABLE.findall(rest)) == 1 and _ENDS_SHORT.search(rest) else rest


def _fold(word: str) -> str:
    word = word.casefold()
    for ending in ("'s", "’s"):
        word = word.removesuffix(ending)
    if word.isascii():
        return word
    return "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))
