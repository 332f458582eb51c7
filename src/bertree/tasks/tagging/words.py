"""The words of a plain text, and overlapping windows over the words of a sentence that is too long.

Text is split into words as in the CoNLL-2003 files. Hyphens, slashes, ampersands and apostrophes inside a word stay
(call-up, 1996/97, S&P, O'Brien), and so do points, commas and colons inside numbers (3.14, 1,000, 2:29.34); clitics are
words ('s, n't, 'll); letters with points are one word (U.S., a.m.), as are initials and titles before a name (J., Mr.)
and runs of one sign (--, ...). Every other character that is not a letter or digit is a word. This is a rule, not a
dictionary: text without spaces (Chinese, Japanese, Thai) must be given as words.

Each word is tagged once, in the window where it is farthest from the nearer edge. Consecutive windows share half of
their words, so that a word has about a quarter of a window on either side. A long text is read about twice. The
beginning and the end of the sentence do not count as edges, since nothing is missing there.
"""

import re
import unicodedata
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MARK = "\u0640"  # replaces combining marks while matching, since \w does not match them
_JOINERS = "\u200c\u200d"
_CLIPPED = r"(?:s|re|ve|ll|m|d)(?!\w)"
_WORD = re.compile(
    rf"""
      n['’]t(?!\w) | ['’]{_CLIPPED}
    | \w+?(?=n['’]t(?!\w))
    | (?:[^\W\d_]\.){{2,}}(?:-\w+)*
    | (?-i:[A-Z]|Mr|Mrs|Ms|Dr|St|Sgt|Lt|Col|Gen|Sen|Gov|Rep|Prof|Jr|vs)\.(?=\s+\w)
    | ^\d{{1,2}}\.(?=\s+\w)
    | [A-Z]{{0,3}}[$€£¥]
    | (?:(?<![\w.])[+.](?=\d))?\w+(?:(?:[-/&.] | ['’](?!{_CLIPPED}) | (?<=\d)[,:](?=\d))\w+)*
    | (?P<sign>[.\-*=_])(?P=sign)+
    | [^\w\s]{_MARK}*
    """,
    re.VERBOSE | re.IGNORECASE,
)


def words(text: str) -> list[tuple[int, int]]:
    """Return the beginning and end of each word, in characters."""
    return [match.span() for match in _WORD.finditer(_marks_as_letters(text))]


def _marks_as_letters(text: str) -> str:
    if text.isascii():
        return text
    return "".join(_MARK if unicodedata.category(c)[0] == "M" or c in _JOINERS else c for c in text)


class WordWindow(NamedTuple):
    """The words from `start` to `end` are read, those from `first` to `last` are tagged."""

    start: int
    end: int
    first: int
    last: int


def windows(lengths: NDArray[np.int64], room: int) -> list[WordWindow]:
    """Return windows over words of these lengths in tokens, none longer than `room`."""
    count = len(lengths)
    if not count:
        return []
    ends = np.concatenate([[0], lengths.cumsum()])
    if ends[-1] <= room:
        return [WordWindow(0, count, 0, count)]
    return _assign_words(ends, _window_bounds(ends, room))


def _window_bounds(ends: NDArray[np.int64], room: int) -> list[tuple[int, int]]:
    count = len(ends) - 1
    bounds = []
    start = 0
    while True:
        end = int(ends.searchsorted(ends[start] + room, "right")) - 1
        if end >= count:
            # The last window reaches as far back as it can.
            bounds.append((int(ends.searchsorted(ends[count] - room)), count))
            return bounds
        assert end > start, "a word is longer than the room"
        bounds.append((start, end))
        shared = int(ends.searchsorted(ends[end] - room // 2))
        fits_next = int(ends.searchsorted(ends[end + 1] - room))
        start = min(end, max(shared, fits_next, start + 1))


def _assign_words(ends: NDArray[np.int64], bounds: list[tuple[int, int]]) -> list[WordWindow]:
    count = len(ends) - 1
    far = int(ends[-1]) + 1
    best = np.full(count, -1)
    owner = np.zeros(count, np.int64)
    for number, (start, end) in enumerate(bounds):
        left = ends[start:end] - ends[start] + (far if start == 0 else 0)
        right = ends[end] - ends[start + 1 : end + 1] + (far if end == count else 0)
        context = np.minimum(left, right)
        better = context > best[start:end]
        best[start:end][better] = context[better]
        owner[start:end][better] = number
    # Windows are in order, so the owners are too: where the later of two is the better one, it stays so.
    firsts = owner.searchsorted(np.arange(len(bounds) + 1)).tolist()
    edges = zip(bounds, firsts[:-1], firsts[1:], strict=True)
    return [WordWindow(start, end, first, last) for (start, end), first, last in edges if first < last]
