"""The files of a task: which file is which split (to train and evaluate), and the inputs in a file to predict."""

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
RECORD_SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class TaskFiles:
    """A folder or a file of examples, and files that replace a split."""

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
        splits: dict[str, tuple[Path, ...]] = {}
        if self.data is not None:
            splits = {_split_of(self.data, alone): (self.data,)}
            if self.data.is_dir():
                splits = dict(task.splits(self.data))
        if self.train is not None:
            splits["train"] = (self.train,)
        if self.dev is not None:
            splits = {name: paths for name, paths in splits.items() if not name.startswith("dev")}
            splits["dev"] = (self.dev,)
        if not splits:
            raise UserError("no data given: `data=DIR`, or `train=FILE` and `dev=FILE`")
        return splits


def note_all_rows_scored(data: Path | None) -> None:
    """Note that all rows of a file are scored, since it has no splits."""
    if data is not None and data.is_file():
        note(f"{data}: has no splits, so all of its rows are scored, also any that the model was trained on")


def _split_of(file: Path, split: str) -> str:
    """Return the split of a single file: MNLI has a second dev and test split, which only the file name shows."""
    return f"{split}-mismatched" if "mismatched" in file.name and split != "train" else split


def read_inputs(
    task: Task[Example], path: Path, question: str | None = None, keep_blank: bool = False
) -> Iterator[Example]:
    """Yield the examples of a file to predict: whatever `task.read` reads, or a table, JSON lines, or plain lines."""
    examples = task.read_unlabeled(path) if question is None else None
    if examples is None:
        examples = parse_inputs(task, read_records(path), str(path), question, keep_blank)
    yield from examples


def parse_inputs(
    task: Task[Example],
    inputs: Iterable[tuple[str, str | Json]],
    source: str,
    question: str | None = None,
    keep_blank: bool = False,
) -> Iterator[Example]:
    """Yield the examples of records, each with its location for messages.

    Empty lines are skipped with a note, unless `keep_blank`. `question` is added to every record."""
    blank = 0
    for where, record in inputs:
        if isinstance(record, str) and not (record.strip() or keep_blank):
            blank += 1
            continue
        if question is not None:
            record = {"question": question} | ({"context": record} if isinstance(record, str) else record)
        yield from task.parse_all(record, where)
    if blank:
        note(f"{source}: {blank:,} empty lines were skipped")


def read_records(path: Path) -> Iterator[tuple[str, str | Json]]:
    """Yield a file's records, or its lines, each with its location."""
    if suffix_of(path) in RECORD_SUFFIXES:
        yield from ((location(path, number), row) for number, row in records.read_records(path))
    else:
        lines = ((location(path, number), text) for number, text in read_lines(path))
        yield from ((where, parse_line(text, where)) for where, text in lines)


def parse_line(text: str, where: str) -> str | Json:
    """Return a line as it is, or as a JSON object if it begins like one."""
    return json_object(text, where) if OBJECT.match(text) else text
