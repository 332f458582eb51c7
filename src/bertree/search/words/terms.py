"""Texts -> terms: words without case, accents and endings, and without the stop words of their language.

Words of Chinese, Japanese and Korean are not separated by spaces; their terms are pairs of neighboring characters.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache

from bertree.search.words.languages import base_language, ending_steps, stop_words

VERSION = 1  # of what makes terms: an index whose terms another version made is made again
MOST_CACHED = 1 << 20  # words
_WORD = re.compile(r"\w+(?:['’]\w+)*")
_PAIRED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]+")
_TOKEN = re.compile(f"{_PAIRED.pattern}|{_WORD.pattern}")
_VOWEL = re.compile("[aeiou]|(?<=[^aeiou])y")
_ENDS_SHORT = re.compile("(^|[^aeiou])[aeiouy][^aeiouwxy]$")  # "hop", "whal": an e was dropped before -ing, -ed
_SYLLABLE = re.compile("[aeiouy]+[^aeiouy]+")


class Analyzer(dict[str, str]):
    """The terms of the words of a language, by word; "" for a stop word. Made by `analyzer_for`."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self.language = base_language(language)

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text in order."""
        if not text.isascii():
            text = _PAIRED.sub(lambda run: f" {' '.join(_pairs(run.group()))} ", text)
        return [term for word in _WORD.findall(text) if (term := self[word])]

    def spans(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Yield the words of a text, stop words too, each with its beginning and end."""
        for match in _TOKEN.finditer(text):
            start, end = match.span()
            if _PAIRED.match(match.group()):
                yield from ((pair, start + at, start + at + len(pair)) for at, pair in enumerate(_pairs(match.group())))
            else:
                yield match.group(), start, end

    def stem(self, word: str) -> str:
        """Return a folded word without its ending."""
        if self.language == "en":
            return _stem_english(word)
        for pattern, replacement in ending_steps(self.language):
            word = pattern.sub(replacement, word)
        return word

    def is_stop_word(self, word: str) -> bool:
        """Whether a folded word is left out of the index."""
        return word in stop_words(self.language)

    def __missing__(self, word: str) -> str:
        if len(self) >= MOST_CACHED:
            self.clear()
        folded = fold(word)
        for pattern, replacement in ending_steps(self.language)[:1] if "'" in folded or "’" in folded else ():
            folded = pattern.sub(replacement, folded)  # l'homme: a stop word may be behind the article
        term = self[word] = "" if self.is_stop_word(folded) else self.stem(folded)
        return term


@cache
def analyzer_for(language: str) -> Analyzer:
    """Return the analyzer of a language, which remembers the words it has seen."""
    return Analyzer(language)


def fold(word: str) -> str:
    """Return a word without case and accents, and without 's."""
    word = word.casefold()
    for ending in ("'s", "’s"):
        word = word.removesuffix(ending)
    if word.isascii():
        return word
    return "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)] or [run]


def _stem_english(word: str) -> str:
    """Return a word without the endings of plurals and verbs: the first rules of Porter's stemmer."""
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
