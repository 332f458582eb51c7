"""The files of a task: which file is which split, and the inputs in a file to predict."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertree.console import note
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.tasks.task import Example, Task
from bertree.text import records
from bertree.text.records import json_object, location, read_lines, suffix_of

OBJECT = re.compile(r"\s*\{\s*[\"}]")  # the beginning of a JSON object
TABLES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class TaskFiles:
    """A folder or a file of examples, and files that take the place of a split."""

    data: Path | None
    train: Path | None = None
    dev: Path | None = None

    @staticmethod
    def of(data: str | Path | None, train: str | Path | None = None, dev: str | Path | None = None) -> "TaskFiles":
        """Return the files that these paths name."""
        return TaskFiles(*(None if path is None else Path(path) for path in (data, train, dev)))

    def splits(self, task: Task[Any], alone: str = "train") -> dict[str, tuple[Path, ...]]:
        """Return the files of each split; a single file is the split `alone`."""
        for path in (self.data, self.train, self.dev):
            if path is not None and not path.exists():
                raise UserError(f"{path}: no such file or folder")
        found: dict[str, tuple[Path, ...]] = {}
        if self.data is not None:
            found = dict(task.splits(self.data)) if self.data.is_dir() else {_split_of(self.data, alone): (self.data,)}
        if self.train is not None:
            found["train"] = (self.train,)
        if self.dev is not None:
            found = {name: paths for name, paths in found.items() if not name.startswith("dev")}
            found["dev"] = (self.dev,)
        if not found:
            raise UserError("no data given: `data=DIR`, or `train=FILE` and `dev=FILE`")
        return found


def note_all_rows_scored(data: Path | None) -> None:
    """Note that all rows of a file are scored, since it has no splits."""
    if data is not None and data.is_file():
        note(f"{data}: is one file, so all of its rows are scored, also any that the model was trained on")


def _split_of(file: Path, split: str) -> str:
    """MNLI has a second dev and test split, which only the file name shows."""
    return f"{split}-mismatched" if "mismatched" in file.name and split != "train" else split


def read_inputs(
    task: Task[Example], path: Path, question: str | None = None, keep_blank: bool = False
) -> Iterator[Example]:
    """Yield the examples of a file to predict: whatever `task.read` reads, or a table, JSON lines, or plain lines."""
    found = task.read_unlabelled(path) if question is None else None
    yield from parse_inputs(task, read_records(path), str(path), question, keep_blank) if found is None else found


def parse_inputs(
    task: Task[Example],
    given: Iterable[tuple[str, str | Json]],
    source: str,
    question: str | None = None,
    keep_blank: bool = False,
) -> Iterator[Example]:
    """Yield the examples of records, each given with its place for messages.

    Empty lines are skipped with a note, unless `keep_blank`. `question` is added to every record."""
    blank = 0
    for where, record in given:
        if isinstance(record, str) and not (record.strip() or keep_blank):
            blank += 1
            continue
        if question is not None:
            record = {"question": question} | ({"context": record} if isinstance(record, str) else record)
        yield from task.parse_all(record, where)
    if blank:
        note(f"{source}: {blank:,} empty lines were skipped")


def read_records(path: Path) -> Iterator[tuple[str, str | Json]]:
    """Yield a file's records, or its lines, each with its place."""
    if suffix_of(path) in TABLES:
        yield from ((location(path, number), row) for number, row in records.read_records(path))
    else:
        places = ((location(path, number), text) for number, text in read_lines(path))
        yield from ((where, parse_line(text, where)) for where, text in places)


def parse_line(text: str, where: str) -> str | Json:
    """Return a line as it is, or as a JSON object if it begins like one."""
    return json_object(text, where) if OBJECT.match(text) else text
