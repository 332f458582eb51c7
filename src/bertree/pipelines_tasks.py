"""The work behind `bertree evaluate` and `glue`: files through a head, and what its answers are worth."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bertree.api import Model, load
from bertree.errors import UserError
from bertree.files import Json, read_json, write_atomically
from bertree.tasks import page
from bertree.tasks.answering import fitting, half
from bertree.tasks.glue import GLUE_AVERAGES
from bertree.tasks.task import Cut, Task
from bertree.tasks.tune import Split, measured

SCORES, PREDICTIONS = "metrics.json", "predictions.jsonl"


@dataclass(frozen=True)
class Files:
    """Where the examples are: a folder or a file, and files that stand in for a split."""

    data: Path | None
    train: Path | None = None
    dev: Path | None = None

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


def whole_file(data: Path | None) -> None:
    """Say that a file without splits is scored whole."""
    if data is not None and data.is_file():
        note(f"{data}: is one file, so all of its rows are scored, also any the model has learned from")


def _named(file: Path, split: str) -> str:
    """MNLI has a second half of its dev and test splits, told by the name alone."""
    return f"{split}-mismatched" if "mismatched" in file.name and split != "train" else split


def device_of(name: str) -> str:
    """The device asked for, or the best there is."""
    return name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def encoded(task: Task[Any], examples: Sequence[Any], model: Model, longest: int) -> tuple[Split[Any], Cut]:
    """What the encoder reads of examples."""
    units, cut = task.units(examples, model.needed_tokenizer, longest)
    return Split(examples, units), cut


def evaluate(
    model: str,
    name: str,
    files: Files,
    split: str | None,
    *,
    columns: Mapping[str, str | None] | None = None,
    as_json: bool = False,
    out: Path | None = None,
    submission: Path | None = None,
    max_length: int = 0,
    device: str = "auto",
    tokenizer: Path | None = None,
) -> None:
    """`bertree evaluate`: the scores of a model on a task's files."""
    loaded = load(model, device=device_of(device), tokenizer=tokenizer)
    try:
        task = loaded.task_named(name, **(columns or {}))
    except UserError as error:
        raise UserError(f"{model}: {error}") from None
    if submission is not None:
        task.submission([], [])  # refused before the work, not after it
    splits = files.splits(task, alone=split or "dev")
    wanted = [name for name in splits if name == (split or "dev") or name.startswith(f"{split or 'dev'}-")]
    if not wanted:
        raise UserError(f"{files.data}: has no split '{split or 'dev'}'; there are: {', '.join(splits)}")
    longest = fitting(max_length, loaded.task.get("max_length") or task.max_length, loaded.architecture.max_positions)
    found: Json = {}
    for name in wanted:
        examples = task.read(splits[name])
        part, cut = encoded(task, examples, loaded, longest)
        with bar(len(part.units), as_json) as advance:
            lines, scores = measured(task, loaded.network, part, lambda: half(loaded.device), advance)
        prefix = f"{rest}_" if (rest := name.partition("-")[2]) else ""
        counts = {"examples": len(examples)} | ({"cut": cut.examples, "cut_tokens": cut.tokens} if cut.examples else {})
        found |= {f"{prefix}{key}": value for key, value in (scores | counts).items()}
        if cut.examples:
            note(cut.line(name, len(examples), longest))
        if not scores and out is None and submission is None:
            raise UserError(
                f"{splits[name][0]}: has no gold answers to score; write what the model says with --out DIR"
            )
        if scores and split is None:
            whole_file(files.data)
        if not scores:
            note(f"{name}: has no gold answers, so nothing is scored")
        if out is not None:
            write_lines(out / file_of(name), lines)
        if submission is not None:
            for file, text in task.submission(examples, lines).items():
                write(submission / file, text)
    known = {"task": task.name, "split": wanted[0], "model": model}
    if out is not None:
        write(out / SCORES, as_text(found | known, 2) + "\n")
        page.write(out, task, found | {"model": model}, {name: out / file_of(name) for name in wanted}, note)
    if as_json:
        print(as_text(found | known, 2))
    else:
        print_scores(task.name, ", ".join(wanted), found)


def print_scores(task: str, split: str, found: Json) -> None:
    """Scores times 100, and counts as they are."""
    table = Table(task, split, box=None, pad_edge=False)
    for key, value in found.items():
        table.add_row(escape(key.replace("_", " ")), shown(key, value))
    Console().print(table)


def shown(key: str, value: Any) -> str:
    """A score times 100; a count or a threshold as it is."""
    if isinstance(value, float):
        return f"{value:.3f}" if key.endswith("threshold") else f"{100 * value:.2f}"
    return "-" if value is None else f"{value:,}"


def glue(runs: Sequence[Path]) -> None:
    """`bertree glue`: scores of several runs in one table, and the averages people mean by "the" GLUE score."""
    found: dict[str, Json] = {}
    for run in runs:
        file = run / SCORES if run.is_dir() else run
        if not file.is_file():
            raise UserError(f"{file}: no such file; give folders that finetune or evaluate --out has written")
        scores = read_json(file)
        if not isinstance(name := scores.get("task"), str):
            raise UserError(f"{run}: does not say of which task its scores are; give a folder of finetune or evaluate")
        if name in found:
            raise UserError(f"{run}: is a second run of {name}; name one of each task")
        found[name] = scores
    table = Table("task", "", box=None, pad_edge=False)
    for name, scores in found.items():
        shown = {k: v for k, v in scores.items() if isinstance(v, float) and k not in ("mean", "std", "best")}
        figures = ", ".join(f"{key.replace('_', ' ')} {100 * value:.1f}" for key, value in shown.items())
        table.add_row(escape(name), escape(figures))
    table.add_row("", "")
    if mnli := found.get("mnli"):
        other = mnli.get("mismatched_accuracy")
        found |= {"mnli-mm": {"accuracy": other}} if isinstance(other, float) else {}
    for average in GLUE_AVERAGES.values():
        value, missing = average(found)
        table.add_row(average.name, f"{100 * value:.1f}" if value is not None else f"needs {', '.join(missing)}")
        table.add_row("", f"[dim]{average.source}[/dim]")
    Console().print(table)


@contextmanager
def bar(total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, where that is a terminal."""
    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = sys.stderr.isatty() and not quiet
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)


def file_of(split: str) -> str:
    """Where the predictions on a split go."""
    return PREDICTIONS if split in ("dev", "test") else f"predictions-{split.partition('-')[2]}.jsonl"


def write_lines(path: Path, lines: Iterable[Json]) -> None:
    """One object a line."""
    write(path, "".join(as_text(line) + "\n" for line in lines))


def as_text(value: Json, indent: int | None = None) -> str:
    """JSON; a number that is not finite, which a model that has diverged may say, is null."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(path: Path, text: str) -> None:
    """A whole file, and its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def note(line: str) -> None:
    """Something to know, on standard error."""
    print(f"bertree: note: {line}", file=sys.stderr)
