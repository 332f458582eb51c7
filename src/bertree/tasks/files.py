"""The files of a task: which of them is which split (to train and evaluate), and the inputs in a file to predict.

Splits are found by name, as in all releases: `train.tsv`, `dev_matched.tsv`, `validation_10k.tsv`, `train.half.tsv.xz`,
`eng.testa`, `squad-v1.1-dev.json`. A wrong guess would go unnoticed and spoil every score, so if two files fit equally
well, an error is raised.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertree.console import note
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.tasks.task import Example, Splits, Task
from bertree.text import records
from bertree.text.records import json_object, location, read_lines, suffix_of
from bertree.text.sources import COMPRESSED, FORMATS, format_of

OBJECT = re.compile(r"\s*\{\s*[\"}]")  # the beginning of a JSON object
RECORD_SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json")
WORDS = {"train": "train", "dev": "dev", "validation": "dev", "valid": "dev", "val": "dev", "test": "test"}
BEHIND_PREFIX = 3  # rank of a file whose name has a prefix before the split's word
SHARD = re.compile(r"-\d+-of-0*([1-9]\d*)")  # train-00000-of-00003.parquet: one file in three pieces
ORDER = ("train", "dev", "dev-mismatched", "test", "test-mismatched")


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


class _Fit(NamedTuple):
    path: Path
    split: str
    rank: int  # how well the name fits, 0 best
    rest: str  # what follows the split's word in the name


def normalize_name(name: str) -> str:
    """Return a name as it is compared: SST-2, sst_2 and sst2 are the same."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def find_splits(
    folder: Path,
    names: Sequence[str] = (),
    prefixes: Sequence[str] = (),
    words: Mapping[str, str] = WORDS,
    kinds: Sequence[str] = tuple(FORMATS),
    parts: Sequence[str] = (),
    versions: Sequence[str] = (),
) -> Splits:
    """Return the files of each split, in the sub-folder that is named like the task (`names`) or in the folder itself.

    A file belongs to a split if its name begins with one of `words`, followed by '_', '-', '.' or nothing; with
    "mismatched" after it, it is a split of its own (`dev-mismatched`). `train.tsv` is preferred to `train_10k.tsv`.
    `prefixes` are beginnings of released file names before that word (`snli_1.0_`); such files come last, and if there
    are two formats of the same split, JSON is taken. `kinds` are endings; the empty ending admits files that are named
    like a split and nothing else. Files that differ only in one of `parts` after the word form one split. With
    `versions` the word may be anywhere in the name; the first version is preferred, and files of the others are
    ignored if there is any of it."""
    for candidate in _candidate_folders(folder, names):
        matches = [_fit(path, prefixes, words, kinds, versions) for path in _visible(candidate) if path.is_file()]
        fits = [fit for fit in matches if fit is not None]
        if any(fit.rank == 0 for fit in fits) and versions:
            fits = [fit for fit in fits if not any(_names_version(fit.path, version) for version in versions[1:])]
        if fits:
            present = [split for split in ORDER if any(fit.split == split for fit in fits)]
            return {split: _best(candidate, [fit for fit in fits if fit.split == split], parts) for split in present}
    names_present = ", ".join(path.name for path in _visible(folder)[:8]) or "nothing"
    how = "has a word of" if versions else "begins with"
    wanted = f"none whose name {how} {', '.join(list(words)[:8])} and ends with {' '.join(kinds).strip()}"
    raise UserError(f"{folder}: holds no train, dev or test file, {wanted}; there is: {names_present}")


def split_folders(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return the folders of splits, for releases with a file for each example in folders named like splits."""
    for candidate in _candidate_folders(folder, names):
        below = {path.name.casefold(): path for path in _visible(candidate) if path.is_dir()}
        if by_split := {WORDS[word]: below[word] for word in reversed(WORDS) if word in below}:
            return {split: by_split[split] for split in ORDER if split in by_split}
    return {}


def split_of_folder(folder: Path) -> str:
    """Return the split that a folder is named after; dev if none, since a single folder is most often evaluated."""
    return split_in_name(folder.resolve().name) or "dev"


def _candidate_folders(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return sub-folders with these names, in this order, and then the folder itself.

    All of them, since a folder named like the task may be a model that was trained for it."""
    below = [path for path in _visible(folder) if path.is_dir()]
    candidates: list[Path] = []
    for wanted in dict.fromkeys(map(normalize_name, names)):
        same = [path for path in below if normalize_name(path.name) == wanted]
        if len(same) > 1:
            raise UserError(f"{folder}: holds {' and '.join(path.name for path in same)}; give one of them")
        candidates += same
    return [*candidates, folder]


def split_in_name(name: str, words: Mapping[str, str] = WORDS) -> str | None:
    """Return the split whose word is anywhere in a name."""
    return next((words[word] for word in re.findall("[a-z]+", name.casefold()) if word in words), None)


def _visible(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder}: {'is a file, not a folder' if folder.exists() else 'no such folder'}")
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror})") from None


def _fit(
    path: Path, prefixes: Sequence[str], words: Mapping[str, str], kinds: Sequence[str], versions: Sequence[str]
) -> _Fit | None:
    stem = path.name.casefold()
    for suffix in COMPRESSED:
        stem = stem.removesuffix(suffix)
    ending = next((kind for kind in kinds if kind and stem.endswith(kind)), "")
    if not ending:
        return _Fit(path, words[stem], 0, "") if "" in kinds and stem in words else None
    stem = stem.removesuffix(ending)
    if versions:
        split = split_in_name(stem, words)
        return _Fit(path, split, 0 if _names_version(path, versions[0]) else 1, "") if split else None
    prefix = next((prefix for prefix in prefixes if stem.startswith(prefix.casefold())), "")
    alternatives = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    if not (match := re.match(rf"({alternatives})(?=$|[_.-])(.*)", stem[len(prefix) :])):
        return None
    rest = match[2]
    split = words[match[1]] + ("-mismatched" if "mismatched" in rest else "")
    if prefix:
        return _Fit(path, split, BEHIND_PREFIX, rest)
    complete = not rest or SHARD.fullmatch(rest)
    return _Fit(path, split, 0 if complete else 1 if rest[1:] in ("matched", "mismatched") else 2, rest)


def _names_version(path: Path, version: str) -> bool:
    return re.search(rf"(?<![0-9.]){re.escape(version)}(?![0-9])", path.name) is not None


def _best(folder: Path, fits: Sequence[_Fit], parts: Sequence[str]) -> tuple[Path, ...]:
    rank = min(fit.rank for fit in fits)
    equals = [fit for fit in fits if fit.rank == rank]
    if rank == BEHIND_PREFIX and len(equals) > 1:
        equals = [fit for fit in equals if format_of(fit.path.name) == "jsonl"] or equals
    rests = {fit.rest for fit in equals}
    shards = {match[1] if (match := SHARD.fullmatch(rest)) else "" for rest in rests}
    together = shards == {str(len(equals))} or all(rest[1:] in parts for rest in rests)
    if len(equals) > 1 and not (together and len(rests) == len(equals)):
        names = ", ".join(fit.path.name for fit in equals)
        raise UserError(f"{folder}: several files could be {equals[0].split}: {names}; give the file itself")
    return tuple(fit.path for fit in equals)
