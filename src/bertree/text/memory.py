"""Data in memory, where a function takes files: lists of rows or texts, frames, Arrow tables, Datasets.

The rows are written to a temporary file of JSON lines, and the function reads it as any other file: so rows from memory
are checked, hashed for `resume` and trained on exactly as the same rows from a file. Messages name the argument in
place of the file. pandas, Polars, pyarrow and datasets are recognized by what their objects can do, never imported.
"""

import functools
import hashlib
import inspect
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar

from bertree.console import rename_files, renamed
from bertree.errors import UserError
from bertree.text.cleaning import replace_surrogates

Rows: TypeAlias = Any  # whatever `rows_of` takes; libraries that are not imported cannot be named in a type
ACCEPTED = "a list of dicts, tuples or texts, a pandas or Polars frame, an Arrow table or a Dataset"
SPLIT = re.compile(r"(train|dev|validation|valid|val|test)(?![a-z])\w*", re.IGNORECASE)
DEEPEST = 32  # nesting of a value

NameFields = Callable[[Sequence[Any]], Sequence[str]]  # the fields of a tuple -> the columns they stand for
P = ParamSpec("P")
R = TypeVar("R")


def takes_rows(*, several: Sequence[str] = (), **arguments: "NameFields") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let these arguments of a function, which are paths, be rows in memory too.

    Each is given with the function that names the fields of its tuples. Those of `several` take a list of paths, so
    that a list of texts is one of paths, and tables and paths can be mixed.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        optional = [name for name in arguments if signature.parameters[name].default is None]

        def is_rows(name: str, value: object) -> bool:
            if name not in arguments or (value is None and name in optional):
                return False
            return not _is_path(value) and not (name in several and _are_paths(value))

        @functools.wraps(function)
        def run(*args: P.args, **keywords: P.kwargs) -> R:
            bound = signature.bind(*args, **keywords)
            values = {name: value for name, value in bound.arguments.items() if is_rows(name, value)}
            if not values:
                return function(*args, **keywords)
            with _files() as files:
                for name, value in values.items():
                    write = files.write_all if name in several else files.write
                    bound.arguments[name] = write(value, name, arguments[name])
                return function(*bound.args, **bound.kwargs)

        return run

    return decorate


def task_fields(fields: Sequence[Any]) -> Sequence[str]:
    """Name the fields of a tuple of a task: text and label, text, pair and label, or words and tags."""
    if fields and isinstance(fields[0], list):
        return ("words", "tags")[: len(fields)]
    return ("text", "label") if len(fields) == 2 else ("text", "pair", "label")


def pair_fields(fields: Sequence[Any]) -> Sequence[str]:
    """Name the fields of a tuple of texts to compare: two texts, and a number (label or score) or negatives (texts)."""
    answered = len(fields) == 3 and not isinstance(fields[2], str)
    return ("text", "pair", *(("label",) if answered else ("negative", "negative_2", "negative_3")))


def _is_path(value: object) -> bool:
    return isinstance(value, str | os.PathLike)


def _are_paths(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(_is_path, value))


def _is_source(item: object) -> bool:
    return isinstance(item, os.PathLike) or is_table(item)


@contextmanager
def _files() -> Iterator["_RowFiles"]:
    """Yield a writer of temporary files; while the block runs, messages show the names of arguments for them."""
    with tempfile.TemporaryDirectory(prefix="bertree-") as folder, rename_files({}) as names:
        try:
            yield _RowFiles(Path(folder), names)
        except UserError as error:
            error.args = (renamed(str(error)),)
            raise


class _RowFiles:
    """Writes rows as temporary files."""

    def __init__(self, folder: Path, names: dict[str, str]) -> None:
        self._folder, self._names = folder, names

    def write_all(self, value: Rows, name: str, name_fields: NameFields) -> list[Path]:
        """Write rows as one file; of a list of tables and paths, each table as a file of its own."""
        if isinstance(value, Iterator):
            first = list(islice(value, 1))
            value = list(chain(first, value)) if any(map(_is_source, first)) else chain(first, value)
        if isinstance(value, list | tuple) and any(map(_is_source, value)):
            numbered = enumerate(value)
            return [Path(x) if _is_path(x) else self.write(x, f"{name}[{n}]", name_fields) for n, x in numbered]
        return [self.write(value, name, name_fields)]

    def write(self, value: Rows, name: str, name_fields: NameFields) -> Path:
        """Write rows as a file, or splits of rows as a folder; return its path."""
        target = self._folder / re.sub(r"\W+", "-", name).strip("-")
        if not (isinstance(value, Mapping) and any(SPLIT.fullmatch(str(key)) for key in value)):
            return self._write(value, target.with_suffix(".jsonl"), name, name_fields)
        target.mkdir()
        for key, rows in value.items():
            if not SPLIT.fullmatch(str(key)):
                raise UserError(f"{name}: '{key}' is no split; a mapping of splits has train, dev and test")
            self._write(rows, target / f"{key}.jsonl", f"{name}['{key}']", name_fields)
        self._names[str(target)] = name
        return target

    def _write(self, value: Rows, path: Path, name: str, name_fields: NameFields) -> Path:
        self._names[str(path)] = name
        digest = hashlib.sha256()
        with path.open("wb") as file:
            for row in rows_of(value, name, name_fields):
                line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
                digest.update(line)
                file.write(line)
        if not path.stat().st_size:
            raise UserError(f"{name}: is empty; give at least one row")
        # The same rows are the same file, also for what compares the times of files.
        os.utime(path, ns=(0, int(digest.hexdigest()[:14], 16)))
        return path


def is_table(value: object) -> bool:
    """Whether this is a frame, an Arrow table or a Dataset: rows with named columns."""
    return not isinstance(value, type) and any(
        hasattr(value, method) for method in ("itertuples", "iter_rows", "to_batches", "column_names", "collect_schema")
    )


def rows_of(value: Rows, name: str, name_fields: NameFields = task_fields) -> Iterator[dict[str, Any]]:
    """Yield rows as a file of JSON lines holds them: plain values by the name of their column.

    A text is a row with the column text. `name` is the argument's, for messages.
    """
    if isinstance(value, str | bytes | os.PathLike) or not (isinstance(value, Iterable) or is_table(value)):
        raise UserError(f"{name}: must be a path, or rows in memory ({ACCEPTED}), not {_describe(value)}")
    for number, row in enumerate(_raw_rows(value, name), 1):
        yield _named(row, f"{name}: row {number}", name_fields)


def _is_column(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


def _raw_rows(value: Any, name: str) -> Iterable[Any]:
    """Return the rows of a table, of a mapping of columns, or of a list."""
    if isinstance(value, Mapping):
        columns = {str(key): list(column) for key, column in value.items() if _is_column(column)}
        lengths = {len(column) for column in columns.values()}
        if len(columns) < len(value) or len(lengths) > 1:
            raise UserError(f"{name}: a mapping must hold splits (train, dev, test), or columns of one length")
        return ({key: column[n] for key, column in columns.items()} for n in range(max(lengths, default=0)))
    if hasattr(value, "collect_schema") and not hasattr(value, "iter_rows"):  # a lazy frame of Polars
        value = value.collect()
    if hasattr(value, "iter_rows"):
        return iter(value.iter_rows(named=True))
    if hasattr(value, "itertuples"):
        names = [str(column) for column in value.columns]
        return (dict(zip(names, row, strict=True)) for row in value.itertuples(index=False, name=None))
    if hasattr(value, "to_batches"):
        return (row for batch in value.to_batches() for row in batch.to_pylist())
    if hasattr(value, "to_pylist"):  # a record batch or an array of Arrow
        return iter(value.to_pylist())
    return _dataset_rows(value) if hasattr(value, "column_names") else iter(value)


def _dataset_rows(dataset: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Dataset; numbers of classes become the names of the classes."""
    features = getattr(dataset, "features", None) or {}
    names = {key: names for key, feature in features.items() if (names := _class_names(feature))}
    for row in dataset.with_format(None) if hasattr(dataset, "with_format") else dataset:
        yield {key: _class_name(value, names[key]) if key in names else value for key, value in row.items()}


def _class_names(feature: Any) -> list[str]:
    """Return the names of a ClassLabel, or of a list of them."""
    feature = getattr(feature, "feature", feature)
    names = getattr(feature, "names", None)
    return list(names) if names and hasattr(feature, "int2str") else []


def _class_name(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_class_name(item, names) for item in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None  # -1: no label


def _named(row: Any, where: str, name_fields: NameFields) -> dict[str, Any]:
    if isinstance(row, Mapping):
        return {str(key): _plain(value, f"{where}: '{key}'") for key, value in row.items()}
    if isinstance(row, str):
        return {"text": replace_surrogates(str(row))}
    values = row.tolist() if hasattr(row, "tolist") else row
    if not isinstance(values, list | tuple):
        raise UserError(f"{where}: must be a dict, a tuple or a text, not {_describe(row)}")
    fields = [_plain(value, f"{where}: field {number}") for number, value in enumerate(values, 1)]
    columns = name_fields(fields)
    if not 0 < len(fields) <= len(columns):
        raise UserError(f"{where}: is a tuple of {len(fields)}, at most {', '.join(columns)} are read; give a dict")
    return dict(zip(columns, fields, strict=False))


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """Return a value as JSON has it; what is missing (None, NaN, NA, NaT) is None."""
    if isinstance(value, str):
        return replace_surrogates(str(value))
    if value is None or isinstance(value, bool | int):
        return value
    if hasattr(value, "tolist"):  # a number or an array of numpy or torch
        value = value.tolist()
        return value if isinstance(value, int) else _plain(value, where, depth + 1)
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else str(value)
    if depth < DEEPEST and isinstance(value, Mapping):
        return {str(key): _plain(item, where, depth + 1) for key, item in value.items()}
    if depth < DEEPEST and isinstance(value, list | tuple):
        return [_plain(item, where, depth + 1) for item in value]
    if hasattr(value, "isoformat"):  # a date; NaT says so of itself
        return None if str(value) == "NaT" else value.isoformat()
    if type(value).__name__ in ("NAType", "Decimal", "UUID"):
        return None if type(value).__name__ == "NAType" else str(value)
    raise UserError(f"{where} holds {_describe(value)}, which is no text, number or list")


def _describe(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:40]!r}"
