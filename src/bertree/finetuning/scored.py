"""Which examples are scored: a split of the task's files, or those that fine-tuning holds out of the training data.

The held-out examples are the same for every seed and every verb: a hash of their position chooses them. So a model that
was fine-tuned on one file can be scored on the rows of it that it has not seen; its folder stores which file that was.
"""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertree import keyed_random
from bertree.console import note, notes_shown
from bertree.errors import UserError, counted
from bertree.files.formats import Json, file_hash
from bertree.finetuning.config import TrainSettings
from bertree.tasks.files import TaskFiles
from bertree.tasks.task import Example, Task
from bertree.text.sources import walk

DEFAULT_SPLITS = ("dev", "test")  # scored if no split is named, in this order


@dataclass(frozen=True)
class ScoredExamples:
    """The examples of a split that a model is scored on."""

    split: str
    file: Path
    examples: Sequence[Any]
    whole_file: bool = False  # all rows of a file without splits

    @property
    def prefix(self) -> str:
        """Before the names of its scores: "mismatched_" for dev-mismatched."""
        variant = self.split.partition("-")[2]
        return f"{variant}_" if variant else ""


def read_scored(task: Task[Any], data: Path, split: str | None, trained: Sequence[Json]) -> list[ScoredExamples]:
    """Read a split of a task's files and its variants, such as dev and dev-mismatched.

    Without `split`: dev, else test, else the examples that fine-tuning holds out of the training split. A single file
    is a dev split, unless one of the models was fine-tuned on it; `trained` are the task settings in their folders.
    """
    share = min((share for settings in trained if (share := _held_out_of(settings, data))), default=None)
    files = TaskFiles(data).splits(task, alone=split or ("dev" if share is None else "train"))
    names = (split,) if split else DEFAULT_SPLITS
    chosen = next((name for name in names if any(_is_of(each, name) for each in files)), None)
    if chosen is None and split is None and "train" in files:
        return [_read_held_out(task, data, files["train"], share)]
    if chosen is None:
        raise UserError(f"{data}: has no split '{split or 'dev'}'; there are: {', '.join(files)}")
    if split is None and chosen != DEFAULT_SPLITS[0]:
        note(f"{data}: has no dev split, so the {chosen} split is scored")
    whole = split is None and data.is_file()
    sets = [ScoredExamples(n, files[n][0], task.read(files[n]), whole) for n in files if _is_of(n, chosen)]
    for scored in sets:
        if line := empty_line(task, scored.split, scored.examples):
            note(line)
    if "train" in files and chosen != "train":
        _note_trained_on(task, files["train"], sets)
    return sets


def _is_of(name: str, split: str) -> bool:
    return name == split or name.startswith(f"{split}-")


def _held_out_of(settings: Json, data: Path) -> float | None:
    """Return the share of a file that was held out when a model was fine-tuned on it."""
    share = settings.get("held_out")
    same = isinstance(share, float) and data.is_file() and settings.get("trained_on") == training_digest([data])
    return share if same and isinstance(share, float) else None


def _read_held_out(task: Task[Any], data: Path, files: Sequence[Path], share: float | None) -> ScoredExamples:
    why = "has neither a dev nor a test split" if share is None else "is the file that was trained on"
    dev = hold_out(task.read(files), TrainSettings.held_out if share is None else share, task.group, files[0])["dev"]
    note(f"{data}: {why}, so the {len(dev):,} examples are scored that fine-tuning holds out of it")
    return ScoredExamples("dev", files[0], dev)


def _note_trained_on(task: Task[Any], files: Sequence[Path], sets: Sequence[ScoredExamples]) -> None:
    """Note how many of the scored examples are in the training split too. A training file that is broken is no reason
    to refuse the score."""
    try:
        with notes_shown(False):
            train = task.read(files)
    except UserError:
        return
    for scored in sets:
        if line := overlap_line(scored.split, count_overlap(task, train, scored.examples), len(scored.examples)):
            note(line)


def count_overlap(task: Task[Any], train: Sequence[Any], scored: Sequence[Any]) -> int:
    """Return how many scored examples have the very input of a training example."""
    inputs: set[Hashable] = {task.input_of(example) for example in train}
    return sum(input_ is not None and input_ in inputs for input_ in map(task.input_of, scored))


def overlap_line(split: str, overlap: int, count: int) -> str:
    """Return a line about examples that are trained on and scored; nothing if there are none."""
    if not overlap:
        return ""
    return f"{split}: {overlap:,} of {count:,} examples are in the training split too, word for word"


def empty_line(task: Task[Any], split: str, examples: Sequence[Any]) -> str:
    """Return a line about examples of which a text is empty; nothing if there are none."""
    texts = (inputs if isinstance(inputs := task.input_of(example), tuple) else () for example in examples)
    count = sum(any(isinstance(text, str) and not text.strip() for text in each) for each in texts)
    if not count:
        return ""
    return f"{split}: {count:,} of {counted(len(examples), 'example')} {'has' if count == 1 else 'have'} an empty text"


def hold_out(
    examples: Sequence[Example],
    share: float,
    group: Callable[[Example], str | None] = lambda example: None,
    source: object = "training data",
) -> dict[str, list[Example]]:
    """Split off a share of the training examples as the dev split, the same for every seed.

    Examples of one group (the questions on one passage) stay together, or the dev split would be about text that was
    trained on. `source` is the file that messages name."""
    keys = [group(example) or number for number, example in enumerate(examples)]
    groups = list(dict.fromkeys(keys))
    order = np.argsort(keyed_random.bits(keyed_random.key(0, "held out"), np.arange(len(groups))), kind="stable")
    held = {groups[index] for index in order[: max(1, round(share * len(groups)))].tolist()}
    if len(held) >= len(groups):
        few = f"has only {len(examples)} {'example' if len(examples) == 1 else 'examples'}"
        few += f" in {len(groups)} groups" if len(groups) < len(examples) else ""
        raise UserError(f"{source}: {few}, too few to hold some out; give a dev split with `dev=FILE`")
    splits: dict[str, list[Example]] = {"train": [], "dev": []}
    for key, example in zip(keys, examples, strict=True):
        splits["dev" if key in held else "train"].append(example)
    return splits


def training_digest(files: Sequence[Path]) -> str:
    """Return a hash of the training files, by which a model's folder names them."""
    return hashlib.sha256("\n".join(map(data_digest, files)).encode()).hexdigest()[:16]


def data_digest(path: Path) -> str:
    """Return a hash of a data file; of a folder, of the names and sizes of its files."""
    if path.is_file():
        return file_hash(path)
    below = sorted(file for root, names in walk(str(path)) for name in names if (file := Path(root, name)).is_file())
    names = "\n".join(f"{file.relative_to(path)} {file.stat().st_size}" for file in below)
    return hashlib.sha256(names.encode()).hexdigest()
