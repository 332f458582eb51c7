"""Plain text -> words with their places, cut as the CoNLL-2003 files are.

Hyphens, slashes, ampersands and apostrophes inside a word stay (call-up, 1996/97, S&P, O'Brien), so do points,
commas and colons inside numbers (3.14, 1,000, 2:29.34); what is clipped to a word is its own ('s, n't, 'll); letters
with points are one word (U.S., a.m.), as are initials and titles before a name (J., Mr.) and runs of one sign (--,
...). Everything else that is not a letter or digit stands alone. A rule, not a language's dictionary: text written
without spaces (Chinese, Japanese, Thai) must be given as words.
"""

import re
import unicodedata

_MARK = "\u0640"  # stands in for combining marks while matching: a letter to \w, which the marks themselves are not
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
    """Where each word begins and ends, in characters."""
    return [match.span() for match in _WORD.finditer(_marks_as_letters(text))]


def _marks_as_letters(text: str) -> str:
    if text.isascii():
        return text
    return "".join(_MARK if unicodedata.category(c)[0] == "M" or c in _JOINERS else c for c in text)
