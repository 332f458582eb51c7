"""A corpus: any number of files as one stream of clean documents. `bertree prepare` writes a token store from it.

The stream is a pure function of the files and the options, and it can be resumed at any position it has been at, with
its counts: that is how an interrupted preparation resumes. Resuming reads the current file from its start (there is no
index of it) but skips every file before it.

A document may have a control code, a text that says what kind of text it is (CTRL). The code comes from the folder or
file name, or from a column of the table: `source`, `url`, `date`. It can be the host of a URL or the year of a date:
`url:host`, `date:year`. Behind the code another text may stand that is not predicted either, such as the URL of the
document: the given text.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.text import cleaning, readers, sources

FOLDER, FILE = "folder", "file"
YEAR = re.compile(r"(?<!\d)(1\d{3}|20\d{2})(?!\d)")
MAX_CODE = 200  # characters
MAX_GIVEN = 2000


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """How to read a corpus and what to leave out."""

    field: str = "text"  # of JSON, CSV and parquet records
    format: str | None = None  # None: by the suffix
    whole_files: bool = False  # a text file is one document; otherwise an empty line ends a document
    wrapped: bool = False  # a line break within a paragraph is a space, not the end of a sentence
    deduplicate: bool = False
    min_characters: int = 1
    control: str = ""  # where the control codes come from (ControlRule); "": documents have none
    control_default: str = ""  # code of documents without one; "": they are refused
    given: str = ""  # column of the text that follows the code and is not predicted; "": none


@dataclass(frozen=True)
class Position:
    """A position between two documents of the corpus."""

    file: int = 0
    documents: int = 0  # raw documents of that file already read
    check: int = 0  # CRC over those, to detect a file that has changed


@dataclass(frozen=True)
class ControlRule:
    """Where the control codes of documents come from."""

    source: str  # "folder", "file" or "": a column
    column: str = ""
    part: str = ""  # "host" of a URL, "year" of a date; "": as it is
    default: str = ""  # code of documents without one; "": they are refused

    @classmethod
    def parse(cls, text: str, default: str = "") -> "ControlRule":
        """Parse `folder`, `file`, or the name of a column, which may end in `:host` or `:year`."""
        if text in (FOLDER, FILE):
            return cls(text, default=default)
        column, colon, part = text.rpartition(":")
        column, part = (column, part) if colon and part in PARTS else (text, "")
        if not column.strip():
            raise UserError(f"control '{text}': is no column; give folder, file, or a column such as url:host")
        return cls("", column, part, default)

    def code(self, path: str, value: Any, where: str) -> str:
        """Return the code of a document of this file, whose column has this value; `where` names it in messages."""
        if self.source and path == sources.STANDARD_INPUT:
            raise UserError(f"control '{self.source}': standard input has none; give files")
        if self.source:
            name = Path(path).absolute().parent.name if self.source == FOLDER else _file_name(path)
        elif isinstance(value, str | int) and not isinstance(value, bool):
            name = PARTS[self.part](str(value))
        elif value is None:
            name = ""
        else:
            raise UserError(f"{where}: '{self.column}' is {type(value).__name__}, not a text or a whole number")
        code = " ".join(name.split()) or self.default
        if not code:
            missing = f"no {self.part} in '{self.column}'" if self.part and value else f"no '{self.column}'"
            raise UserError(f"{where}: has {missing}, so it has no control code; give `control_default=CODE`")
        if len(code) > MAX_CODE:
            raise UserError(f"{where}: its control code has {len(code)} characters; the most is {MAX_CODE}")
        return code


def _file_name(path: str) -> str:
    """Return the name of a file without its suffix and that of its compression."""
    name = Path(path)
    return (Path(name.stem) if name.suffix.lower() in sources.COMPRESSED else name).stem


def _host(url: str) -> str:
    try:
        return (urlsplit(url if "//" in url else f"//{url}").hostname or "").removeprefix("www.")
    except ValueError:
        return ""


def _year(date: str) -> str:
    match = YEAR.search(date)
    return match[0] if match else ""


PARTS: dict[str, Callable[[str], str]] = {"": str, "host": _host, "year": _year}


class Corpus:
    """The documents of one or more files. Iterate over `documents`; `counts` and `position` report the progress."""

    def __init__(self, names: Sequence[str], options: CorpusOptions | None = None) -> None:
        self.options = options or CorpusOptions()
        self.sources = sources.find_sources(names, self.options.format)
        self.counts = readers.CorpusCounts()
        self.position = Position()
        self.seen = cleaning.DigestSet()
        self.digests: list[bytes] = []  # of documents kept since the caller last emptied it, if de-duplicating
        self.code = ""  # control code of the document that `documents` yielded last
        self.given = ""  # its given text
        self._rule = (
            ControlRule.parse(self.options.control, self.options.control_default) if self.options.control else None
        )
        columns = {"control": self._rule.column if self._rule else "", "given": self.options.given}
        self._columns = {setting: column for setting, column in columns.items() if column}
        self._tell: Callable[[], int] = lambda: 0  # bytes of the current file that have been read

    @property
    def size(self) -> int:
        """Size in bytes on the disk; 0 if unknown (standard input)."""
        return sum(source.size for source in self.sources)

    @property
    def consumed(self) -> int:
        """Bytes read so far."""
        return sum(source.size for source in self.sources[: self.position.file]) + self._tell()

    def resume(self, position: Position, counts: Json, seen: Iterable[bytes]) -> None:
        """Start `documents` from an earlier position, with the counts and digests of that position."""
        self.position, self.counts = position, readers.CorpusCounts(**counts)
        for key in seen:
            self.seen.add(key)

    def documents(self) -> Iterator[str]:
        """Yield clean documents in order, from the current position."""
        for number in range(self.position.file, len(self.sources)):
            if number != self.position.file:
                self.position = Position(number)
            with sources.open_source(self.sources[number]) as (stream, beneath):
                self._tell = beneath.tell if self.sources[number].path != sources.STANDARD_INPUT else lambda: 0
                for raw in self._read_raw(self.sources[number], stream):
                    if (document := self._clean(raw.text)) is not None:
                        self.code, self.given = self._code(self.sources[number].path, raw)
                        yield document
            self._tell = lambda: 0
        self.position = Position(len(self.sources))

    def _code(self, path: str, raw: readers.RawDocument) -> tuple[str, str]:
        """Return the control code of a document and its given text."""
        if not self._rule:
            return "", ""
        where = f"{path}: {'row' if path.endswith('parquet') else 'line'} {raw.row}" if raw.row else path
        values = dict(zip(self._columns, raw.values, strict=True)) if raw.values else {}
        code, given = self._rule.code(path, values.get("control"), where), values.get("given", "")
        if not isinstance(given, str | int | None) or isinstance(given, bool):
            raise UserError(f"{where}: '{self.options.given}' is {type(given).__name__}, not a text or a whole number")
        given = cleaning.replace_surrogates(" ".join(str("" if given is None else given).split()))
        if len(given) > MAX_GIVEN:
            raise UserError(f"{where}: its given text has {len(given):,} characters; the most is {MAX_GIVEN:,}")
        return code, given

    def _read_raw(self, source: sources.Source, stream: IO[bytes]) -> Iterator[readers.RawDocument]:
        """Yield the raw documents of a file that come after the current position."""
        reached, counts = self.position, asdict(self.counts)  # what was read before, if this is a resumed run
        check = number = 0
        options = self.options
        documents = readers.read_documents(
            source, stream, options.field, options.whole_files, self.counts, self._columns
        )
        for raw in documents:
            number += 1
            check = zlib.crc32(raw.text.encode("utf-8", "surrogatepass"), check)
            if number > reached.documents:
                self.position = Position(reached.file, number, check)
                self.counts.documents += 1
                yield raw
            elif number == reached.documents:
                if check != reached.check:
                    break
                for name, count in counts.items():  # undo the counts of documents that were read a second time
                    setattr(self.counts, name, count)
        if number < reached.documents or (number == reached.documents and check != reached.check):
            raise UserError(f"{source.path}: has changed since the run began; start again in a new folder")

    def _clean(self, text: str) -> str | None:
        """Return the cleaned document, or None if it is left out; count the reason."""
        options, counts = self.options, self.counts
        document = cleaning.clean(text, options.wrapped)
        if not document:
            counts.empty += 1
            return None
        if len(document) < options.min_characters:
            counts.short += 1
            return None
        if options.deduplicate:
            key = cleaning.digest(document)
            if not self.seen.add(key):
                counts.duplicate += 1
                return None
            self.digests.append(key)
        counts.kept += 1
        counts.characters += len(document)
        return document


def describe_counts(counts: Mapping[str, int]) -> list[str]:
    """Describe what was left out or repaired, one line per reason."""
    reasons = {
        "empty": "left out: empty",
        "short": "left out: too short",
        "duplicate": "left out: exact duplicates",
        "broken": "left out: records that are broken or too long",
        "missing": "left out: records without text in the field",
        "tokenless": "left out: not a single token",
        "invalid_lines": "lines with bytes that are not UTF-8 (replaced)",
        "cut": "cuts in documents that were too long",
    }
    return [f"{counts[name]:,} {what}" for name, what in reasons.items() if counts.get(name)]
