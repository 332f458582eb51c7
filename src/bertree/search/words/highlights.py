"""The words of a passage that a query shares with it.

Shared words are found by their letters, without the model: this takes microseconds, so it can be done while someone
types. Words are compared as terms (terms.py), so brig and brigs count as the same. The last word of a query may be the
beginning of one. A passage that resembles a query in meaning alone has no highlights.
"""

import re

from bertree.search.words.terms import analyzer_for, fold

_LEAST = 4  # letters of the beginning of a word


def find_highlights(query: str, text: str, language: str = "en") -> list[tuple[int, int]]:
    """Return beginning and end, in characters, of the words of a text that are also in a query.

    Stop words of the language are left out, unless the query has no others.
    """
    analyzer = analyzer_for(language)
    all_words = [fold(word) for word, _, _ in analyzer.spans(query)]
    typed = all_words[-1] if all_words and re.search(r"\w$", query) else ""
    words = {word for word in all_words if not analyzer.is_stop_word(word)} or set(all_words)
    stems = {analyzer.stem(word) for word in words}
    begins = len(typed) >= _LEAST and typed in words
    spans: list[tuple[int, int]] = []
    for word, start, end in analyzer.spans(text):
        folded = fold(word)
        if folded in words or (begins and folded.startswith(typed)) or analyzer.stem(folded) in stems:
            if spans and start < spans[-1][1]:  # pairs of characters overlap
                start = spans.pop()[0]
            spans.append((start, end))
    return spans
