"""Files -> raw documents, one at a time, in constant memory.

No document is longer than `MAX_DOCUMENT` characters: longer ones, even a single line of any length, are cut at white
space into several documents. A record of JSON or CSV must be read as a whole, so one beyond `MAX_RECORD` bytes is left
out (JSON) or refused (CSV, where a lost quote can swallow the file). The first record of a file must be valid; broken
ones after it are counted and left out.
"""

import csv
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import IO, Any, NamedTuple

from bertree.errors import UserError, install_hint
from bertree.text.sources import Source

MAX_DOCUMENT = 1 << 20
MAX_RECORD = 1 << 25


@dataclass
class CorpusCounts:
    """Counts of what was read, kept, left out and repaired."""

    documents: int = 0  # read
    kept: int = 0
    characters: int = 0  # of the kept documents
    empty: int = 0
    short: int = 0
    duplicate: int = 0
    broken: int = 0  # records that are not JSON objects, rows that are too short, records too long
    missing: int = 0  # records without the field, or with a value that is not text
    invalid_lines: int = 0  # lines with bytes that are not UTF-8, which were replaced
    cut: int = 0  # documents cut because they were too long


class RawDocument(NamedTuple):
    """A document as it stands in its file."""

    text: str
    row: int = 0  # its line or row in the file; 0: of a text file
    values: tuple[Any, ...] = ()  # of the additional columns


def read_documents(
    source: Source,
    stream: IO[bytes],
    field: str,
    whole_files: bool,
    counts: CorpusCounts,
    columns: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[RawDocument]:
    """Yield the raw documents of an opened source. `whole_files`: a text file is one document; `columns`: other fields
    of the records to read, by the settings that name them."""
    if source.format == "text":
        for setting, column in columns.items():
            hint = "; use `control=folder` (or file)" if setting == "control" else ", so leave out `given`"
            raise UserError(f"{source.path}: a text file has no column '{column}'{hint}")
        return map(RawDocument, _read_text(stream, whole_files, counts))
    fields = {"text": field, **columns}
    if source.format == "jsonl":
        records = _read_jsonl(source.path, stream, fields, counts)
    elif source.format == "parquet":
        records = _read_parquet(source, stream, fields, counts)
    else:
        records = _read_csv(source, stream, fields, counts)
    return (record._replace(text=piece) for record in records for piece in split_long(record.text, counts))


def split_long(text: str, counts: CorpusCounts) -> Iterator[str]:
    """Cut a text into documents of at most `MAX_DOCUMENT` characters, at white space where possible."""
    start = 0
    while len(text) - start > MAX_DOCUMENT:
        end = start + MAX_DOCUMENT
        space = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
        end = space + 1 if space > start else end
        counts.cut += 1
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def _read_text(stream: IO[bytes], whole_files: bool, counts: CorpusCounts) -> Iterator[str]:
    lines: list[str] = []
    size = 0
    for line in _decode_lines(stream, counts):
        if not whole_files and not line.strip():
            if lines:
                yield "".join(lines)
            lines, size = [], 0
            continue
        if size + len(line) > MAX_DOCUMENT and lines:
            counts.cut += 1
            yield "".join(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    if lines:
        yield "".join(lines)


def _decode_lines(stream: IO[bytes], counts: CorpusCounts) -> Iterator[str]:
    """Yield decoded lines with their ends; one beyond `MAX_DOCUMENT` bytes in pieces, never within a character."""
    rest = b""
    first = True
    while data := stream.readline(MAX_DOCUMENT):
        if first:
            data, first = data.removeprefix(b"\xef\xbb\xbf"), False
        data, rest = rest + data, b""
        if len(data) >= MAX_DOCUMENT and not data.endswith(b"\n"):
            cut = data.rfind(b" ") + 1 or last_character_end(data)
            data, rest = data[:cut], data[cut:]
        if data:
            yield _decode(data, counts)
    if rest:
        yield _decode(rest, counts)


def last_character_end(data: bytes) -> int:
    """Return where the last complete UTF-8 character of some bytes ends."""
    for back in range(1, 4):
        if data[-back] & 0xC0 == 0xC0:
            return len(data) - back
        if data[-back] < 0x80:
            break
    return len(data)


def _decode(data: bytes, counts: CorpusCounts) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        counts.invalid_lines += 1
        return data.decode("utf-8", "replace")


def _record_lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers; one that is too long comes as b"", a broken record."""
    row = 0
    while data := stream.readline(MAX_RECORD):
        row += 1
        if len(data) == MAX_RECORD and not data.endswith(b"\n"):
            while (data := stream.readline(MAX_DOCUMENT)) and not data.endswith(b"\n"):
                pass
            yield row, b""
        elif data.strip():
            yield row, data


def _read_jsonl(path: str, stream: IO[bytes], fields: Mapping[str, str], counts: CorpusCounts) -> Iterator[RawDocument]:
    field, *columns = fields.values()
    for number, (row, data) in enumerate(_record_lines(stream)):
        try:
            record = json.loads(_decode(data.removeprefix(b"\xef\xbb\xbf"), counts))
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            if number == 0 and data:
                raise UserError(f"{path}: its first line is not a JSON object; expected one object per line")
            counts.broken += 1
        elif not isinstance(text := record.get(field), str):
            if number == 0 and field not in record:
                raise UserError(f"{path}: {_no_field(field, list(record))}")
            counts.missing += 1
        else:
            if number == 0 and (given := fields.get("given", field)) not in record:
                raise UserError(f"{path}: {_no_field(given, list(record), 'given')}")
            yield RawDocument(text, row, tuple(map(record.get, columns)))


def delimiter_of(header: str) -> str:
    """Return what separates the columns of a CSV file: semicolons, as some spreadsheets write, if its header has them
    and no comma."""
    return ";" if ";" in header and "," not in header else ","


def _read_csv(
    source: Source, stream: IO[bytes], fields: Mapping[str, str], counts: CorpusCounts
) -> Iterator[RawDocument]:
    csv.field_size_limit(MAX_RECORD)
    lines = (_decode(data, counts) for data in iter(lambda: stream.readline(MAX_RECORD), b""))
    first = next(lines, "")
    rows = csv.reader(chain([first], lines), delimiter="\t" if source.format == "tsv" else delimiter_of(first))
    try:
        header = [name.strip().removeprefix("\ufeff") for name in next(rows, [])]
        if header:
            _check_fields(source, fields, header)
        text_column, *columns = (header.index(field) if header else 0 for field in fields.values())
        for row in rows:
            if len(row) > text_column:
                values = tuple(row[column] if len(row) > column else None for column in columns)
                yield RawDocument(row[text_column], rows.line_num, values)
            elif row:
                counts.broken += 1
    except csv.Error as error:
        where = f"line {rows.line_num}"
        raise UserError(f"{source.path}: {where}: is not valid CSV ({error}); look for an unclosed quote") from None


@contextmanager
def open_parquet(source: Source, stream: IO[bytes]) -> Iterator[Any]:
    """Open a source as a parquet file; errors, then or later, become one line."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{source.path}: reading .parquet needs pyarrow; {install_hint('parquet')}") from None
    with tempfile.TemporaryFile() as copy:
        file: Any = stream
        if source.compression or not stream.seekable():  # parquet files are read from their end
            shutil.copyfileobj(stream, copy, 1 << 20)
            file = copy
        try:
            yield pyarrow.parquet.ParquetFile(file)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split()) or "damaged"
            raise UserError(f"{source.path}: is not a readable parquet file ({reason})") from None


def _read_parquet(
    source: Source, stream: IO[bytes], fields: Mapping[str, str], counts: CorpusCounts
) -> Iterator[RawDocument]:
    field, *columns = fields.values()
    with open_parquet(source, stream) as table:
        import pyarrow

        names = table.schema_arrow.names
        _check_fields(source, fields, names)
        kind = table.schema_arrow.field(field).type
        if pyarrow.types.is_dictionary(kind):
            kind = kind.value_type
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
            raise UserError(f"{source.path}: column '{field}' holds {kind}, not text")
        row = 0
        for batch in table.iter_batches(batch_size=64, columns=[*dict.fromkeys(fields.values())], use_threads=False):
            texts = batch.column(field).cast(pyarrow.large_string()).cast(pyarrow.large_binary())
            # As bytes: parquet does not guarantee valid UTF-8.
            for data, *values in zip(texts.to_pylist(), *(batch.column(c).to_pylist() for c in columns), strict=True):
                row += 1
                if data is None:
                    counts.missing += 1
                else:
                    yield RawDocument(_decode(data, counts), row, tuple(values))


def _check_fields(source: Source, fields: Mapping[str, str], names: list[str]) -> None:
    for setting, field in fields.items():
        if field not in names:
            raise UserError(f"{source.path}: {_no_field(field, names, setting)}")


def _no_field(field: str, names: list[str], setting: str = "text") -> str:
    return f"has no field '{field}'; there are: {', '.join(map(str, names))} (choose one with `{setting}`)"
