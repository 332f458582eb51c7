"""Sentences of words: from CoNLL column files, tables (JSONL, Parquet, CSV, TSV with named columns) and plain text.

Sentences of a file keep their line: tags can only be checked when all of them are read (their scheme, and whether the
training data had them), and messages must still name the line.

Text is split into words as in the CoNLL-2003 files. Hyphens, slashes, ampersands and apostrophes inside a word stay
(call-up, 1996/97, S&P, O'Brien), and so do points, commas and colons inside numbers (3.14, 1,000, 2:29.34); clitics are
words ('s, n't, 'll); letters with points are one word (U.S., a.m.), as are initials and titles before a name (J., Mr.)
and runs of one sign (--, ...). Every other character that is not a letter or digit is a word. This is a rule, not a
dictionary: text without spaces (Chinese, Japanese, Thai) must be given as words.

A sentence that is too long is read in overlapping windows. Each word is tagged once, in the window where it is farthest
from the nearer edge. Consecutive windows share half of their words, so that a word has about a quarter of a window on
either side. A long text is read about twice. The beginning and the end of the sentence do not count as edges, since
nothing is missing there.
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.text.records import location, read_lines, read_records, suffix_of, text_field, texts_field

TABLES = (".jsonl", ".ndjson", ".json", ".parquet", ".csv")
CELLS = (".csv", ".tsv")  # tables without lists: words and tags are separated by spaces
SAMPLE = 1000  # first lines, which decide the layout of a file
PREFIXED = 10  # words at least that must have a prefix
WORD_FILES = (".conll", ".iob", ".bio")
COLUMNS = (".txt", *WORD_FILES, ".tsv")
NUMBER = re.compile(r"-?\d{1,3}")
_REMARK = re.compile(r"# +[^ \t]|#(begin|end) document")  # the second alternative: CoNLL-2012
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*:")
_BLANKS = re.compile(r"[ \t]+")  # not all white space: words contain no-break spaces and the like
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


@dataclass(frozen=True)
class Sentence:
    """Words, their tags if known, and their offsets in the text they come from, if there is one."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    text: str | None = None
    offsets: tuple[tuple[int, int], ...] | None = None
    file: str = field(default="", compare=False)  # for messages

    def with_offsets(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        """Return the text (by default the words joined by spaces) and each word's offsets in it."""
        if self.text is not None and self.offsets is not None:
            return self.text, self.offsets
        offsets, at = [], 0
        for word in self.words:
            offsets.append((at, at + len(word)))
            at += len(word) + 1
        return " ".join(self.words), tuple(offsets)


class SentenceRecord(NamedTuple):
    """A sentence and its line in a file, for messages."""

    path: Path
    line: int
    by_word: bool  # one word a line
    words: list[str]
    tags: list[str] | None

    def word_location(self, word: int) -> str:
        """Return file and line of a word, which messages begin with."""
        return location(self.path, self.line + (word if self.by_word else 0))


def read(path: Path, text: str | None, label: str | None) -> Iterator[SentenceRecord]:
    """Yield the sentences of a file. `text` and `label` are names of fields, or numbers of columns.

    A .tsv file is in columns (one word a line) unless one of them is a name: only a table has names."""
    named = any(name is not None and not NUMBER.fullmatch(name) for name in (text, label))
    if suffix_of(path) in TABLES or (suffix_of(path) == ".tsv" and named):
        return _table(path, text or "words", label)
    return _columns(path, _column(path, text, 0), _column(path, label, -1), label is not None)


def _column(path: Path, column: str | None, default: int) -> int:
    if column is None:
        return default
    if not NUMBER.fullmatch(column):
        raise UserError(f"{path}: column '{column}': a file in columns has no names; give a number from 0, or -1")
    return int(column)


class _Layout(NamedTuple):
    """How the lines of a column file are read."""

    tabs: bool  # between the columns, and nothing else
    width: int  # columns
    prefix: str  # before every word: the language in files of PAN-X (en:Turin)

    def row(self, line: str) -> list[str]:
        """Return the cells of a line."""
        return line.split("\t") if self.tabs else _BLANKS.split(line.strip(" \t"))


def _columns(path: Path, text: int, label: int, must: bool) -> Iterator[SentenceRecord]:
    """Yield the sentences of a file with one word a line and blank lines between; one column alone has no tags."""
    words: list[str] = []
    tags: list[str] = []
    first = 0
    layout = _layout(path, text, label, must)
    width = layout.width
    for number, line in read_lines(path):
        row = layout.row(line)
        begins = not words
        if not line.strip(" \t") or "-DOCSTART-" in row:
            if words:
                yield SentenceRecord(path, first, True, words, tags if width > 1 else None)
            words, tags = [], []
            continue
        if begins and _REMARK.match(line) and len(row) != width:
            continue  # a comment above a sentence; a word "#" has as many columns as other words
        if len(row) != width:
            raise UserError(f"{location(path, number)}: has {len(row)} columns where the lines before have {width}")
        if begins:
            first = number
        words.append(row[text].removeprefix(layout.prefix))
        tags.append(row[label])
    if words:
        yield SentenceRecord(path, first, True, words, tags if width > 1 else None)


def _layout(path: Path, text: int, label: int, must: bool) -> _Layout:
    """Find the layout from the first lines; the first that is no comment gives the number of columns.

    A file may begin with a word "#", so if every line could be a comment, the first one is used."""
    sample = _sample(path)
    if not sample:
        return _Layout(False, 0, "")
    rows = [(number, line) for number, line in sample if not _REMARK.match(line)] or sample[:1]
    number, line = rows[0]
    layout = _Layout(False, len(_BLANKS.split(line.strip(" \t"))), "")
    spaced = any(len(layout.row(other_line)) != layout.width for _, other_line in rows)  # words that hold spaces
    tabbed = all(other_line.count("\t") == line.count("\t") > 0 for _, other_line in rows)
    if "\t" in line and (suffix_of(path) == ".tsv" or (spaced and tabbed)):
        layout = _Layout(True, line.count("\t") + 1, "")
    width = layout.width
    if not (-width <= text < width and -width <= label < width) or (must and width == 1):
        raise UserError(f"{location(path, number)}: has {width} columns; there is no column {label} beside {text}")
    words = [cells[text] for _, row in rows if len(cells := layout.row(row)) == width]
    prefix = match[0] if (match := _LANGUAGE.match(words[0])) else ""
    everywhere = len(words) >= PREFIXED and all(word.startswith(prefix) for word in words)
    return layout._replace(prefix=prefix if everywhere else "")


def _sample(path: Path) -> list[tuple[int, str]]:
    """Return the first lines that are neither blank nor the beginning of a document."""
    lines = ((n, line) for n, line in read_lines(path) if line.strip(" \t") and "-DOCSTART-" not in _BLANKS.split(line))
    return list(islice(lines, SAMPLE))


def holds_columns(path: Path, text: int, label: int, is_tag: Callable[[str], bool], names: Collection[str]) -> bool:
    """True if a file has one word a line: by its ending, or by a tag at the end of every line.

    A .tsv file is a table of texts instead if its first line has one of `names`."""
    suffix, sample = suffix_of(path), _sample(path) if suffix_of(path) not in TABLES else []
    if not sample or suffix in WORD_FILES:
        return bool(sample)
    if suffix == ".tsv":
        return not set(names) & set(sample[0][1].split("\t"))
    try:
        layout = _layout(path, text, label, must=True)
    except UserError:
        return False
    rows = [layout.row(line) for _, line in sample if not _REMARK.match(line)]
    return bool(rows) and all(len(row) == layout.width and is_tag(row[label]) for row in rows)


def _table(path: Path, text: str, label: str | None) -> Iterator[SentenceRecord]:
    """Yield the sentences of a table. Unless their column was named, tags may be missing, in all rows or in none."""
    tagged = None
    name = label or "tags"
    texts = _cell if suffix_of(path) in CELLS else texts_field
    for number, record in read_records(path):
        where = location(path, number)
        words = texts(record, text, where)
        if tagged is None:
            tagged = label is not None or name in record
        tags = texts(record, name, where) if tagged or name in record else None
        if tags is not None and not tagged:
            raise UserError(f"{where}: has '{name}' where the records before have none")
        if tags is not None and len(tags) != len(words):
            raise UserError(f"{where}: has {len(words)} words and {len(tags)} tags; one tag a word is needed")
        yield SentenceRecord(path, number, False, words, tags)


def _cell(record: Json, name: str, where: str) -> list[str]:
    return split_words(text_field(record, name, where))


def split_words(text: str) -> list[str]:
    """Split words or tags that are separated by spaces."""
    return [word for word in _BLANKS.split(text) if word]


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
