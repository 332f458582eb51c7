"""Lines and records of task files, plain or compressed, with their line numbers.

A task's file is small compared with a corpus and every row counts, so nothing is skipped or repaired here: what cannot
be read stops the work with its file and line.

Files of examples use every style of quoting, and a wrong guess silently moves text into the wrong column. So the style
can be given; if it is not, the complete file is read before it is decided.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from bertree.errors import UserError, suggest
from bertree.files.formats import Json, parse_json
from bertree.text.cleaning import replace_surrogates
from bertree.text.readers import MAX_RECORD, delimiter_of, open_parquet
from bertree.text.sources import COMPRESSED, Source, open_source

# none: a quote is a character. standard: RFC 4180. cell: only a cell that is quoted as a whole loses its quotes
# (released files that mix both). auto: standard if the whole file can be read so, else none.
Quoting = Literal["none", "standard", "cell", "auto"]
Line = tuple[int, str]  # line number, text without the line end
Row = tuple[int, list[str]]  # line it starts on, cells
NOT_UTF8 = "is not UTF-8 text; convert the file first, for example with iconv -f LATIN1 -t UTF-8"
USUAL_COLUMNS = ("text", "sentence", "content", "body", "sentence1")  # of texts


def suffix_of(path: Path) -> str:
    """Return the lower-case suffix of a file's name without the one of its compression: ".jsonl"."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def location(path: Path, number: int) -> str:
    """Return the start of an error message: the file and the line or row."""
    return f"{path}: {'row' if suffix_of(path) in ('.parquet', '.json') else 'line'} {number}"


def read_content(path: Path) -> str:
    """Return the text of a whole file, for formats that cannot be read line by line."""
    with open_source(_source(path)) as (stream, _):
        data = stream.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: {NOT_UTF8}") from None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a text file. Only \\n and \\r\\n end one: reviews hold \\x85 as a character."""
    number = 0
    try:
        with open_source(_source(path)) as (stream, _):
            while data := stream.readline(MAX_RECORD):
                number += 1
                if len(data) == MAX_RECORD:
                    raise UserError(f"{location(path, number)}: is longer than {MAX_RECORD >> 20} MB")
                text = data.decode("utf-8")
                yield number, (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")
    except UnicodeDecodeError:
        raise UserError(f"{location(path, number)}: {NOT_UTF8}") from None


def read_records(path: Path, quoting: Quoting = "auto") -> Iterator[tuple[int, Json]]:
    """Yield the numbered records of a table with a header (.csv, .tsv), a parquet file, a JSON list or object (.json),
    or JSON lines, which may be named .json too. `quoting`: of a .tsv; "auto" reads the whole file first."""
    kind = suffix_of(path)
    if kind in (".csv", ".tsv"):
        return _read_delimited(path, quoting)
    if kind == ".parquet":
        return _read_parquet(path)
    if kind == ".json" and (values := _read_json_values(path)) is not None:
        return ((number, _check_object(value, location(path, number))) for number, value in enumerate(values, 1))
    return ((number, json_object(text, location(path, number))) for number, text in read_lines(path) if text.strip())


def json_object(text: str, where: str) -> Json:
    """Parse a JSON object."""
    return _check_object(parse_json(text, where), where)


def _check_object(value: Any, where: str) -> Json:
    if not isinstance(value, dict):
        raise UserError(f"{where}: must hold a JSON object")
    return value


def field(record: Json, name: str, where: str) -> Any:
    """Return a field of a record."""
    if name not in record:
        raise UserError(f"{where}: has no field '{name}'; {suggest(name, map(str, record))}")
    return record[name]


def text_field(record: Json, name: str, where: str) -> str:
    """Return a field that holds a text."""
    if not isinstance(value := field(record, name, where), str):
        raise UserError(f"{where}: '{name}' must be a text")
    return replace_surrogates(value)


def choose_text_column(names: Sequence[str], chosen: str | None, where: str) -> str:
    """Return the column that was chosen, else the first with a usual name, else the only one."""
    if chosen is not None:
        if chosen not in names:
            raise UserError(f"{where}: has no column '{chosen}'; there are: {', '.join(map(str, names))}")
        return chosen
    usual = [name for name in USUAL_COLUMNS if name in names]
    if not usual and len(names) != 1:
        raise UserError(f"{where}: which column is the text? Give `text=NAME`; there are: {', '.join(names)}")
    return usual[0] if usual else names[0]


def list_field(record: Json, name: str, where: str) -> list[Any]:
    """Return a field that holds a list."""
    if not isinstance(value := field(record, name, where), list):
        raise UserError(f"{where}: '{name}' must be a list")
    return value


def texts_field(record: Json, name: str, where: str) -> list[str]:
    """Return a field that holds a list of texts."""
    texts = field(record, name, where)
    if not isinstance(texts, list) or not all(isinstance(item, str) for item in texts):
        raise UserError(f"{where}: '{name}' must be a list of texts")
    return [replace_surrogates(item) for item in texts]


def _source(path: Path) -> Source:
    return Source(str(path), suffix_of(path), 0, 0)


def _read_delimited(path: Path, quoting: Quoting) -> Iterator[tuple[int, Json]]:
    rows = read_rows(path, read_lines(path), suffix_of(path) == ".csv", quoting)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    for number, cells in rows:
        if len(cells) != len(header):
            raise UserError(f"{location(path, number)}: has {len(cells)} columns, the header {len(header)}")
        yield number, dict(zip(header, cells, strict=True))


def _read_json_values(path: Path) -> list[Any] | None:
    """Return the values of a JSON list, or a single value as a list; None if the file is JSON lines."""
    text = read_content(path).strip()
    several = text.startswith("{") and "\n" in text
    try:
        value = parse_json(text, str(path))
    except UserError:
        if several:
            return None
        raise
    return value if isinstance(value, list) else [value]


def _read_parquet(path: Path) -> Iterator[tuple[int, Json]]:
    number = 0
    with open_source(source := _source(path)) as (stream, _), open_parquet(source, stream) as file:
        for batch in file.iter_batches(batch_size=1024, use_threads=False):
            batch.validate(full=True)  # invalid UTF-8 would fail far from here
            for record in batch.to_pylist():
                number += 1
                yield number, record


def read_rows(path: Path, lines: Iterator[Line], comma: bool, quoting: Quoting = "auto") -> Iterator[Row]:
    """Return the rows of a file. `quoting` is that of tab-separated files; commas always follow the standard."""
    first = next(lines, None)
    if first is None:
        return iter(())
    lines = chain([first], lines)
    if comma and "\t" not in first[1]:  # STS benchmark files are named .csv and are separated by tabs
        return _read_csv(path, lines, delimiter_of(first[1]))
    if quoting == "standard":
        return _read_csv(path, lines, "\t")
    if quoting != "auto":
        return _split_tabs(lines, quoting == "cell")
    everything = list(lines)
    if any('"' in line for _, line in everything):
        try:
            rows = list(_read_csv(path, everything, "\t"))
        except UserError:
            rows = []
        if len({len(cells) for _, cells in rows}) == 1:
            return iter(rows)
    return _split_tabs(everything, unquote=False)


def first_cells(path: Path) -> list[str]:
    """Return the cells of a text file's first line that is not empty; by them a reader tells what the file holds."""
    lines = ((number, line) for number, line in read_lines(path) if line.strip())
    return next(read_rows(path, lines, suffix_of(path) == ".csv", "none"), (1, []))[1]


def _split_tabs(lines: Iterable[Line], unquote: bool) -> Iterator[Row]:
    for number, line in lines:
        if line:
            cells = line.split("\t")
            yield number, [_unquote(cell) for cell in cells] if unquote and '"' in line else cells


def _unquote(cell: str) -> str:
    """Undo the quoting of a cell that is quoted as a whole."""
    if len(cell) < 2 or cell[0] != '"' or cell[-1] != '"' or '"' in (inner := cell[1:-1]).replace('""', ""):
        return cell
    return inner.replace('""', '"')


def _read_csv(path: Path, lines: Iterable[Line], delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(MAX_RECORD)
    reader = csv.reader((f"{line}\n" for _, line in lines), delimiter=delimiter, strict=True)
    start = 1
    try:
        for cells in reader:
            if cells:
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}: line {start}: is not valid CSV ({error}); look for an unclosed quote") from None
