"""The files of a task: which file is which split, and the records of a file whose answers are to be predicted."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertree.console import note
from bertree.errors import UserError
from bertree.files import Json
from bertree.tasks.task import Task
from bertree.text.records import json_object, read_lines, suffix_of
from bertree.text.records import read_records as rows_of


@dataclass(frozen=True)
class TaskFiles:
    """Where the examples are: a folder or a file, and files that stand in for a split."""

    data: Path | None
    train: Path | None = None
    dev: Path | None = None

    @staticmethod
    def of(data: str | Path | None, train: str | Path | None = None, dev: str | Path | None = None) -> "TaskFiles":
        """Return the files that these paths name."""
        return TaskFiles(*(None if path is None else Path(path) for path in (data, train, dev)))

    def splits(self, task: Task[Any], alone: str = "train") -> dict[str, tuple[Path, ...]]:
        """The files of each split; `alone` is what a single file is."""
        for path in (self.data, self.train, self.dev):
            if path is not None and not path.exists():
                raise UserError(f"{path}: no such file or folder")
        found: dict[str, tuple[Path, ...]] = {}
        if self.data is not None:
            found = dict(task.splits(self.data)) if self.data.is_dir() else {_named(self.data, alone): (self.data,)}
        if self.train is not None:
            found["train"] = (self.train,)
        if self.dev is not None:
            found = {name: paths for name, paths in found.items() if not name.startswith("dev")}
            found["dev"] = (self.dev,)
        if not found:
            raise UserError("no data given: --data DIR, or --train FILE and --dev FILE")
        return found


def note_all_rows_scored(data: Path | None) -> None:
    """Say that a file without splits is scored whole."""
    if data is not None and data.is_file():
        note(f"{data}: is one file, so all of its rows are scored, also any the model has learned from")


def _named(file: Path, split: str) -> str:
    """MNLI has a second half of its dev and test splits, told by the name alone."""
    return f"{split}-mismatched" if "mismatched" in file.name and split != "train" else split


OBJECT = re.compile(r"\s*\{\s*[\"}]")


TABLES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json")


def read(path: Path) -> Iterator[str | Json]:
    """A file's records, or its lines."""
    if suffix_of(path) in TABLES:
        yield from (row for _, row in rows_of(path))
    else:
        yield from (parse_line(text, f"{path}: line {number}") for number, text in read_lines(path))


def parse_line(text: str, where: str) -> str | Json:
    """Return a line as it is, or as a JSON object if it begins like one."""
    return json_object(text, where) if OBJECT.match(text) else text
