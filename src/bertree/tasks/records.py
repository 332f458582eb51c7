"""Lines and records of task files with their places, and which file of a folder is which split.

A task's file is small beside a corpus and every row of it counts, so nothing is skipped or repaired here: what
cannot be read stops the work with its file and line.
"""

import csv
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from bertree.errors import UserError
from bertree.files import Json
from bertree.tasks.task import Splits

PACKED = (".gz", ".xz")
_SPLIT = re.compile(
    r"(?:[a-z]{2,3}\.|(?:hella)?swag[-_])?"  # eng.train, hellaswag_val: the names the files come with
    r"(?:(?P<train>train)|(?P<dev>dev|valid|validation|val|testa)|(?P<test>test|testb))"
    r"(?P<part>-\d+-of-\d+|[-_.](?:middle|high))?"  # parts of one split: the shards of a table, RACE's levels
)


def kind_of(path: Path) -> str:
    """What a file's name says it is, packed or not: ".jsonl"."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def place(path: Path, line: int) -> str:
    """How an error line begins."""
    return f"{path}: line {line}"


def find_splits(data: Path, kinds: Sequence[str]) -> Splits:
    """The files directly in a folder whose names are those of splits."""
    if not data.is_dir():
        raise UserError(f"{data}: no such folder; give the folder that holds the train, dev and test files")
    found: dict[str, list[tuple[Path, bool]]] = {}
    try:
        names = sorted(path for path in data.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{data}: cannot be read ({error.strerror})") from None
    for path in names:
        stem = path.name.lower()
        for ending in (*PACKED, *kinds):
            stem = stem.removesuffix(ending)
        kind = kind_of(path)
        known = kind in kinds or kind in (".train", ".testa", ".testb", "")
        if known and (match := _SPLIT.fullmatch(stem)):
            split = next(name for name in ("train", "dev", "test") if match[name])
            found.setdefault(split, []).append((path, match["part"] is not None))
    for split, files in found.items():
        if len(files) > 1 and not all(part for _, part in files):
            raise UserError(f"{data}: {files[0][0].name} and {files[1][0].name} both look like {split}; keep one")
    return {split: tuple(path for path, _ in found[split]) for split in ("train", "dev", "test") if split in found}


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a text file, without their ends."""
    number = 0
    try:
        with _opened(path) as file:
            for number, data in enumerate(file, 1):
                text = data.decode("utf-8")
                yield number, (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")
    except UnicodeDecodeError:
        raise UserError(f"{place(path, number)}: is not UTF-8 text; convert the file first") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise UserError(f"{path}: is damaged or cut off ({error}); fetch or pack it again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def _opened(path: Path) -> IO[bytes] | gzip.GzipFile | lzma.LZMAFile:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.open(path, "rb")
    return lzma.open(path, "rb") if suffix == ".xz" else path.open("rb")


def records(path: Path) -> Iterator[tuple[int, Json]]:
    """The numbered records of a JSONL, CSV or Parquet file; one of Parquet by its row."""
    kind = kind_of(path)
    if kind == ".csv":
        return _csv(path)
    if kind == ".parquet":
        return _parquet(path)
    return ((number, json_object(text, place(path, number))) for number, text in lines(path) if text.strip())


def json_object(text: str, where: str) -> Json:
    """The object a line holds."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: must hold a JSON object")
    return value


def whole(text: str) -> str:
    """Lone surrogates, which JSON can spell and nothing can write, become the replacement character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _csv(path: Path) -> Iterator[tuple[int, Json]]:
    csv.field_size_limit(1 << 25)
    rows = csv.reader((f"{text}\n" for _, text in lines(path)), strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise UserError(f"{place(path, rows.line_num)}: has {len(row)} columns, the header {len(header)}")
            yield rows.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise UserError(f"{place(path, rows.line_num)}: is not valid CSV ({error})") from None


def _parquet(path: Path) -> Iterator[tuple[int, Json]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{path}: reading .parquet needs pyarrow; pip install 'bertree[parquet]'") from None
    number = 0
    try:
        table: Any = pyarrow.parquet.ParquetFile(path)
        for batch in table.iter_batches(batch_size=1024, use_threads=False):
            for record in batch.to_pylist():
                number += 1
                yield number, record
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is not a readable parquet file ({' '.join(str(error).split())})") from None
