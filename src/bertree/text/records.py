"""Lines and records of task files, plain or compressed, with their places.

A task's file is small beside a corpus and every row of it counts, so nothing is skipped or repaired here: what
cannot be read stops the work with its file and line.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertree.errors import UserError, suggest
from bertree.files import Json
from bertree.text import delimited
from bertree.text.cleaning import whole
from bertree.text.delimited import Quoting
from bertree.text.readers import RECORD, parquet
from bertree.text.sources import PACKED, Source, opened


def kind_of(path: Path) -> str:
    """What a file's name says it is, packed or not: ".jsonl"."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def place(path: Path, number: int) -> str:
    """How an error line begins."""
    return f"{path}: {'row' if kind_of(path) in ('.parquet', '.json') else 'line'} {number}"


def content(path: Path) -> str:
    """All of a text file, for what cannot be read line by line."""
    with opened(_source(path)) as (stream, _):
        data = stream.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text; convert the file first") from None


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a text file. Only \\n and \\r\\n end one: reviews hold \\x85 as a character."""
    number = 0
    try:
        with opened(_source(path)) as (stream, _):
            while data := stream.readline(RECORD):
                number += 1
                if len(data) == RECORD:
                    raise UserError(f"{place(path, number)}: is longer than {RECORD >> 20} MB")
                text = data.decode("utf-8")
                yield number, (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")
    except UnicodeDecodeError:
        raise UserError(f"{place(path, number)}: is not UTF-8 text; convert the file first") from None


def records(path: Path, quoting: Quoting = "auto") -> Iterator[tuple[int, Json]]:
    """The numbered records of a table with a header (.csv, .tsv), of a parquet file, of a JSON list or object (.json),
    or else of JSON lines, which some call .json too. `quoting`: of a .tsv; "auto" reads all of it first."""
    kind = kind_of(path)
    if kind in (".csv", ".tsv"):
        return _delimited(path, quoting)
    if kind == ".parquet":
        return _parquet(path)
    if kind == ".json" and (values := _whole(path)) is not None:
        return ((number, _object(value, place(path, number))) for number, value in enumerate(values, 1))
    return ((number, json_object(text, place(path, number))) for number, text in lines(path) if text.strip())


def json_object(text: str, where: str) -> Json:
    """The object a text spells."""
    return _object(_json(text, where), where)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not valid JSON ({error})") from None


def _object(value: Any, where: str) -> Json:
    if not isinstance(value, dict):
        raise UserError(f"{where}: must hold a JSON object")
    return value


def field(record: Json, name: str, where: str) -> Any:
    """What a record has under a name."""
    if name not in record:
        raise UserError(f"{where}: has no field '{name}'; {suggest(name, map(str, record))}")
    return record[name]


def text_field(record: Json, name: str, where: str) -> str:
    """A field that holds a text."""
    if not isinstance(value := field(record, name, where), str):
        raise UserError(f"{where}: '{name}' must be a text")
    return whole(value)


def list_field(record: Json, name: str, where: str) -> list[Any]:
    """A field that holds a list."""
    if not isinstance(value := field(record, name, where), list):
        raise UserError(f"{where}: '{name}' must be a list")
    return value


def texts_field(record: Json, name: str, where: str) -> list[str]:
    """A field that holds a list of texts."""
    found = field(record, name, where)
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise UserError(f"{where}: '{name}' must be a list of texts")
    return [whole(item) for item in found]


def _source(path: Path) -> Source:
    return Source(str(path), kind_of(path), 0, 0)


def _delimited(path: Path, quoting: Quoting) -> Iterator[tuple[int, Json]]:
    rows = delimited.rows(path, lines(path), kind_of(path) == ".csv", quoting)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    for number, cells in rows:
        if len(cells) != len(header):
            raise UserError(f"{place(path, number)}: has {len(cells)} columns, the header {len(header)}")
        yield number, dict(zip(header, cells, strict=True))


def _whole(path: Path) -> list[Any] | None:
    """What a JSON file lists, or the one value it is; None: it is JSON lines."""
    text = content(path).strip()
    several = text.startswith("{") and "\n" in text
    try:
        value = _json(text, str(path))
    except UserError:
        if several:
            return None
        raise
    return value if isinstance(value, list) else [value]


def _parquet(path: Path) -> Iterator[tuple[int, Json]]:
    number = 0
    with opened(source := _source(path)) as (stream, _), parquet(source, stream) as file:
        for batch in file.iter_batches(batch_size=1024, use_threads=False):
            batch.validate(full=True)  # text that is not UTF-8 would fail far from here
            for record in batch.to_pylist():
                number += 1
                yield number, record
