"""Plain text -> words with their offsets, split as in the CoNLL-2003 files.

Hyphens, slashes, ampersands and apostrophes inside a word stay (call-up, 1996/97, S&P, O'Brien), so do points,
commas and colons inside numbers (3.14, 1,000, 2:29.34); clitics are words ('s, n't, 'll); letters with points are one
word (U.S., a.m.), as are initials and titles before a name (J., Mr.) and runs of one sign (--, ...). Every other
character that is not a letter or digit is a word. This is a rule, not a dictionary: text without spaces (Chinese,
Japanese, Thai) must be given as words.
"""

import re
import unicodedata

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
