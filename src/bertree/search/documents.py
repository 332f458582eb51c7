"""Read files, folders and records as documents, each with an id and metadata.

A text or Markdown file is one document, unchanged, so that the positions of its passages are positions in the file. A
row of a table is one document too; every column except the text and the id is its metadata.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.text import sources
from bertree.text.cleaning import replace_surrogates
from bertree.text.memory import Rows, is_table, rows_of
from bertree.text.records import location, read_records

TEXTS = {".md": "text", ".markdown": "text"}  # in addition to the formats of a corpus
LARGEST = 1 << 28  # bytes of one text file, which is held in memory
DEEPEST = 64  # nesting of lists and mappings in metadata
BLOCK = re.compile(r"\n[^\S\n]*\n\s*")


@dataclass(frozen=True)
class Document:
    """A text with the id by which it is added, replaced and removed."""

    id: str
    text: str
    _: KW_ONLY
    source: str = ""  # its file
    metadata: Mapping[str, Any] = field(default_factory=dict)  # JSON values
    path: str = ""  # the path of its file as the user gave it, if `source` is the absolute path

    @property
    def named_by_path(self) -> bool:
        """Whether its id is a path (and a line), which would mean another file in another folder."""
        return bool(self.path) and (self.id == self.path or self.id.startswith(f"{self.path}#"))

    @property
    def digest(self) -> bytes:
        """Hash that tells whether the document has changed; moving its folder changes nothing."""
        content = json.dumps([self.path or self.source, self.text, self.metadata], sort_keys=True, ensure_ascii=True)
        return hashlib.blake2b(content.encode(), digest_size=16).digest()


@dataclass(frozen=True)
class ReadOptions:
    """Columns of the text and the id, and whether an empty line ends a document of a text file."""

    text: str = "text"
    id: str | None = None
    blocks: bool = False


@dataclass(frozen=True)
class SourceFile:
    """A file that was read completely: other documents of it in the index are no longer in the file."""

    path: str  # as the user gave it
    source: str  # absolute
    lines: bytearray = field(default_factory=bytearray)  # 1: a document is at this line; line 0: it is the file

    def mark(self, line: int) -> None:
        """Record that a document is at this line."""
        self.lines.extend(bytes(max(0, line + 1 - len(self.lines))))
        self.lines[line] = 1

    def came_from(self, source: str) -> bool:
        """Return whether a document with that source came from this file, or from where it was before it was moved."""
        moved = os.path.basename(source) == os.path.basename(self.source) and not os.path.isfile(source)
        return source == self.source or moved

    def holds(self, id: str) -> bool:
        """Return whether a document of this file is still in it."""
        number = id[len(self.path) + 1 :]
        line = int(number) if number.isdecimal() and len(number) < 16 else 0
        return line < len(self.lines) and self.lines[line] == 1


@dataclass
class ReadSummary:
    """Counts of what was read and what was left out."""

    documents: int = 0
    empty: int = 0
    replaced_lines: int = 0  # files with bytes that are not UTF-8
    repeated: int = 0  # ids that occurred twice: the last one is used
    example: str = ""  # one of those ids
    skipped: str = ""  # description of the files that are not read
    files: list[SourceFile] = field(default_factory=list)  # files read since the caller last took them

    def lines(self) -> list[str]:
        """Describe what was left out or repaired, one line each."""
        counts = (
            (self.empty, "left out: empty"),
            (self.replaced_lines, "files with bytes that are not UTF-8 (replaced)"),
            (self.repeated, f"occurred twice with one id (the last one is used), such as {self.example!r}"),
        )
        return [*(f"{count:,} {what}" for count, what in counts if count), *([self.skipped] if self.skipped else [])]


DocumentInput = str | Path | Mapping[str, Any] | Document


def read_documents(
    docs: DocumentInput | Iterable[DocumentInput] | Rows, options: ReadOptions, summary: ReadSummary
) -> Iterator[Document]:
    """Yield documents from files, folders and globs (strings and paths), records (mappings), tables or `Document`s.

    A path that does not exist is reported before anything is read.
    """
    if is_table(docs):
        docs = rows_of(docs, "docs")
    items: Iterable[DocumentInput] = [docs] if isinstance(docs, str | Path | Mapping | Document) else docs
    if not isinstance(items, Iterable):
        raise UserError(f"docs: must be paths, records or a table, not {type(docs).__name__} {str(docs)[:40]!r}")
    if isinstance(items, Sequence):
        for item in items:
            if isinstance(item, str | Path):
                _sources(str(item))
        summary.skipped = sources.describe_skipped([str(item) for item in items if isinstance(item, str | Path)], TEXTS)
    return _documents(items, options, summary)


def _documents(items: Iterable[DocumentInput], options: ReadOptions, summary: ReadSummary) -> Iterator[Document]:
    for number, item in enumerate(items, 1):
        for document in _read_item(item, number, options, summary):
            if not document.text.strip():
                summary.empty += 1
                continue
            summary.documents += 1
            yield document


def total_size(docs: DocumentInput | Iterable[DocumentInput]) -> int | None:
    """Return the size in bytes of the files these inputs name; None if it is unknown or compressed."""
    items = [docs] if isinstance(docs, str | Path) else docs
    if not isinstance(items, Sequence) or not all(isinstance(item, str | Path) for item in items):
        return None
    files = [source for item in items for source in _sources(str(item))]
    if any(source.compression or source.format == "parquet" for source in files):
        return None
    return sum(source.size for source in files)


def _read_item(item: DocumentInput, number: int, options: ReadOptions, summary: ReadSummary) -> Iterator[Document]:
    if isinstance(item, Document):
        if not all(isinstance(part, str) for part in (item.id, item.text, item.source)):
            raise UserError(f"document {number}: its id, text and source must be texts, not {item!r}"[:200])
        metadata = {replace_surrogates(str(key)): _to_json_value(value) for key, value in item.metadata.items()}
        id, text, origin = (replace_surrogates(part) for part in (item.id, item.text, item.source))
        yield Document(id, text, source=origin, metadata=metadata)
    elif isinstance(item, Mapping):
        text = str(item.get(options.text, ""))
        name = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        yield _document_from_row(
            dict(item), f"document {number}", f"text-{name}", "", options
        )  # by content, not by number: the next add counts from 1 again
    elif isinstance(item, str | Path):
        for source in _sources(str(item)):
            yield from _read_file(source, options, summary)
    else:
        raise UserError(
            f"document {number}: must be a path, a mapping with '{options.text}' or a Document, not {item!r}"
        )


def _sources(name: str) -> list[sources.Source]:
    if name == sources.STANDARD_INPUT:
        raise UserError("standard input has no name to identify documents by; give files or folders")
    try:
        return sources.find_sources([name], extra=TEXTS)
    except UserError as error:
        hint = "; to add a text itself, give {'text': ...}" if "no such file" in str(error) and " " in name else ""
        raise UserError(f"{error}{hint}") from None


def _read_file(source: sources.Source, options: ReadOptions, summary: ReadSummary) -> Iterator[Document]:
    file = SourceFile(source.path, os.path.abspath(source.path))  # symbolic links are kept: their targets may change
    yield from _read_text_file(source, file, options, summary) if source.format == "text" else _read_rows(file, options)
    summary.files.append(file)


def _read_rows(file: SourceFile, options: ReadOptions) -> Iterator[Document]:
    path = Path(file.path)
    for number, record in read_records(path, "cell"):
        name = f"{file.path}#{number}"
        row = _document_from_row(record, location(path, number), name, file.source, options)
        if row.id == name and row.text.strip():
            file.mark(number)
        yield replace(row, path=file.path)


def _read_text_file(
    source: sources.Source, file: SourceFile, options: ReadOptions, summary: ReadSummary
) -> Iterator[Document]:
    text = _decode_file(source, summary)
    if not options.blocks:
        if text.strip():
            file.mark(0)
        yield Document(file.path, text, source=file.source, path=file.path)
        return
    ends = [match.span() for match in BLOCK.finditer(text)]
    start, line, counted = 0, 1, 0
    for end, following in [*ends, (len(text), len(text))]:
        if block := text[start:end].strip("\r\n"):
            at = text.index(block, start)
            line, counted = line + text.count("\n", counted, at), at
            file.mark(line)
            id = f"{file.path}#{line}"
            yield Document(id, block, source=file.source, metadata={"line": line}, path=file.path)
        start = following


def _decode_file(source: sources.Source, summary: ReadSummary) -> str:
    with sources.open_source(source) as (stream, _):
        data = stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise UserError(f"{source.path}: is larger than {LARGEST >> 20} MB; split it, or convert it to .jsonl")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        summary.replaced_lines += 1
        return data.decode("utf-8-sig", "replace")


def _document_from_row(record: Json, where: str, name: str, source: str, options: ReadOptions) -> Document:
    if options.text not in record:
        near = suggest(options.text, map(str, record))
        raise UserError(f"{where}: has no column '{options.text}'; {near} (choose one with `text`)")
    text = record[options.text]
    if text is None:
        text = ""
    if not isinstance(text, str):
        raise UserError(f"{where}: '{options.text}' must be a text, not {json.dumps(text, default=str)[:40]}")
    column = options.id or ("id" if "id" in record else None)
    if column is not None:
        if column not in record:
            raise UserError(f"{where}: has no column '{column}'; {suggest(column, map(str, record))}")
        if record[column] is None or (name := replace_surrogates(value_text(record[column]))) == "":
            raise UserError(f"{where}: '{column}' is empty; every document needs an id")
    rest = {replace_surrogates(str(key)): value for key, value in record.items() if key not in (options.text, column)}
    try:
        metadata = {key: _to_json_value(value) for key, value in rest.items()}
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return Document(name, replace_surrogates(text), source=source, metadata=metadata)


def _to_json_value(value: Any, depth: int = 0) -> Any:
    """Convert a value to JSON; what JSON lacks (dates, decimals of parquet files) becomes text."""
    if depth > DEEPEST:
        raise UserError(f"its metadata is nested more than {DEEPEST} levels deep")
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return replace_surrogates(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_to_json_value(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {replace_surrogates(str(key)): _to_json_value(item, depth + 1) for key, item in value.items()}
    return value.hex() if isinstance(value, bytes) else str(value)


def value_text(value: Any) -> str:
    """Return a metadata value as filters compare it: 1815 in JSON and "1815" in a table are equal."""
    value = _to_json_value(value)
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")  # SQLite would end the compared text there
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
