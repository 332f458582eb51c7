"""Tagged sentences from CoNLL column files, JSONL and Parquet.

What was read keeps its place, because tags can only be judged when all of them are known (their scheme, and later
whether training had them), and an error must still name the line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bertree.errors import UserError
from bertree.tasks.records import kind_of, lines, place, records, texts_field

TABLES = (".jsonl", ".ndjson", ".parquet")
COLUMNS = (".txt", ".conll", ".iob", ".bio", ".tsv")
_BLANKS = re.compile(r"[ \t]+")  # not every white space: words hold no-break spaces and the like


@dataclass(frozen=True)
class Sentence:
    """Words, their tags where known, and where they stand in the text they come from, where there is one."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    text: str | None = None
    places: tuple[tuple[int, int], ...] | None = None

    def placed(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        """The text, which is the words joined by spaces if there is no other, and each word's place in it."""
        if self.text is not None and self.places is not None:
            return self.text, self.places
        found, at = [], 0
        for word in self.words:
            found.append((at, at + len(word)))
            at += len(word) + 1
        return " ".join(self.words), tuple(found)


class Read(NamedTuple):
    """A sentence and where it was found, for errors."""

    path: Path
    line: int
    by_word: bool  # each word has a line of its own
    words: list[str]
    tags: list[str] | None

    def at(self, word: int) -> str:
        """Where a word stands, as an error line begins."""
        return place(self.path, self.line + (word if self.by_word else 0))


def read(path: Path, text: str | None, label: str | None) -> Iterator[Read]:
    """The sentences of a file. `text` and `label`: names of fields, or numbers of columns."""
    if kind_of(path) in TABLES:
        return _table(path, text or "words", label)
    return _columns(path, _column(path, text, 0), _column(path, label, -1), label is not None)


def _column(path: Path, given: str | None, default: int) -> int:
    if given is None:
        return default
    if not re.fullmatch(r"-?\d{1,3}", given):
        raise UserError(f"{path}: column '{given}': a file in columns has no names; give a number from 0, or -1")
    return int(given)


def _columns(path: Path, text: int, label: int, must: bool) -> Iterator[Read]:
    """One word a line, a blank line after each sentence; lines of one column only have no tags."""
    words: list[str] = []
    tags: list[str] = []
    width = first = 0
    tabs = False
    for number, line in lines(path):
        if width == 0 and not line.startswith("#"):
            tabs = kind_of(path) == ".tsv" and "\t" in line
        row = line.split("\t") if tabs else _BLANKS.split(line.strip(" \t"))
        begins = not words
        if not line.strip(" \t") or "-DOCSTART-" in row:
            if words:
                yield Read(path, first, True, words, tags if width > 1 else None)
            words, tags = [], []
            continue
        if begins and line.startswith("#") and len(row) != width:
            continue  # a remark above a sentence; a word "#" has as many columns as the others
        if width == 0:
            width = len(row)
            if not (-width <= text < width and -width <= label < width) or (must and width == 1):
                raise UserError(f"{place(path, number)}: has {width} columns; there is no column {label} beside {text}")
        if len(row) != width:
            raise UserError(f"{place(path, number)}: has {len(row)} columns where the lines before have {width}")
        if begins:
            first = number
        words.append(row[text])
        tags.append(row[label])
    if words:
        yield Read(path, first, True, words, tags if width > 1 else None)


def _table(path: Path, text: str, label: str | None) -> Iterator[Read]:
    """One sentence a record. The tags may be left out if nobody said where they are, but of all or of none."""
    tagged = None
    name = label or "tags"
    for number, record in records(path):
        where = place(path, number)
        words = texts_field(record, text, where)
        if tagged is None:
            tagged = label is not None or name in record
        tags = texts_field(record, name, where) if tagged or name in record else None
        if tags is not None and not tagged:
            raise UserError(f"{where}: has '{name}' where the records before have none")
        if tags is not None and len(tags) != len(words):
            raise UserError(f"{where}: has {len(words)} words and {len(tags)} tags; one tag a word is needed")
        yield Read(path, number, False, words, tags)
