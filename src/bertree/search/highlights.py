"""The words of a passage that a query shares with it, to be marked in a search result.

By letters alone, without the model: this takes microseconds, so it can be done while someone types. Words are compared
without case and accents; forms of one word (brig, brigs; sail, sailing) count as the same if they begin with the same
letters; the last word of a query may be the beginning of one. What a passage shares with a query in meaning alone is
not marked.
"""

import re
import unicodedata
from collections.abc import Callable

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_LEAST, _ENDING = 4, 3  # letters that two forms of a word must share, and letters that may follow in either of them
_COMMON = frozenset((
    "a", "about", "after", "all", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by", "can", "could",
    "did", "do", "does", "for", "from", "had", "has", "have", "he", "her", "him", "his", "how", "i", "if", "in",
    "is", "it", "its", "me", "my", "no", "not", "of", "on", "or", "our", "she", "should", "so", "than", "that",
    "the", "their", "them", "then", "there", "these", "they", "this", "to", "was", "we", "were", "what", "when",
    "where", "which", "who", "whom", "whose", "why", "will", "with", "would", "you", "your",
))  # fmt: skip


def find_highlights(query: str, text: str) -> list[tuple[int, int]]:
    """Return beginning and end, in characters, of the words of a text that are also in a query.

    Common English words are left out, unless the query has no others.
    """
    asked = [_fold(match.group()) for match in _WORD.finditer(query)]
    typed = asked[-1] if asked and re.search(r"\w$", query) else ""
    wanted = _matcher({*asked} - _COMMON or {*asked}, typed)
    return [match.span() for match in _WORD.finditer(text) if wanted(_fold(match.group()))]


def _matcher(words: set[str], typed: str) -> Callable[[str], bool]:
    """Return what says whether a word is one of `words`; `typed` may be the beginning of it."""
    long = [word for word in words if len(word) >= _LEAST]
    begins = len(typed) >= _LEAST and typed in words
    return lambda other: (
        other in words or (begins and other.startswith(typed)) or any(_same_stem(word, other) for word in long)
    )


def _same_stem(one: str, other: str) -> bool:
    """True if two words begin with the same letters and differ in short endings only."""
    least = max(_LEAST, max(len(one), len(other)) - _ENDING)
    return len(other) >= _LEAST and one[:least] == other[:least]


def _fold(word: str) -> str:
    word = word.casefold()
    for ending in ("'s", "’s"):
        word = word.removesuffix(ending)
    if word.isascii():
        return word
    return "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))
