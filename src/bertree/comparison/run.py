"""The work behind `bertree compare`: load models, score them where a task is given, time them, show what came out."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertree.comparison.measure import compare_all, here
from bertree.comparison.timing import Subject
from bertree.config.default_model import located
from bertree.console import bar, note
from bertree.errors import UserError
from bertree.files import write_into_folder
from bertree.finetuning.prepare import encode_split
from bertree.finetuning.tuner import evaluate_split
from bertree.inference.load import Model, device_of, load
from bertree.report.comparison import Comparison, verdict
from bertree.report.comparison_page import comparison_page
from bertree.report.comparison_rows import comparison_rows, method
from bertree.report.formats import printable
from bertree.run_folder import COMPARISON, METRICS, REPORT, SCORES
from bertree.tasks.files import TaskFiles, note_all_rows_scored, read
from bertree.tasks.logits import effective_max_length, inference_autocast
from bertree.tasks.task import Task
from bertree.text.tokenizer import Tokenizer

MODEL_FOLDERS = ("model", "model-best")  # what the folder of a run calls its model


@dataclass(frozen=True)
class Asked:
    """What is asked of every model: a task's files, texts of one's own, or neither."""

    task: str | None = None
    data: Path | None = None
    columns: Mapping[str, str | None] | None = None
    texts: Path | None = None

    def check(self) -> None:
        """Refused before models are loaded."""
        if (self.task is None) != (self.data is None):
            raise UserError("--task and --data belong together: give both, or neither")
        if self.task is None and self.columns and any(self.columns.values()):
            raise UserError("--text, --pair and --label name columns of a task's data; give --task and --data too")
        for path in (self.data, self.texts):
            if path is not None and not path.exists():
                raise UserError(f"{path}: no such file or folder")


def compare(
    models: Sequence[str],
    asked: Asked,
    *,
    device: str = "auto",
    seconds: float = 20.0,
    out: Path | None = None,
    tokenizer: Path | None = None,
    as_json: bool = False,
) -> None:
    """`bertree compare`: every model against the first."""
    asked.check()
    if not math.isfinite(seconds):
        raise UserError(f"--seconds {seconds}: must be a number of seconds")
    above = next((path for path in (out, *out.parents) if path.exists()), None) if out is not None else None
    if above is not None and not above.is_dir():
        raise UserError(f"{above}: is a file; give the path of a folder to write")
    if out is not None and any((out / name).exists() for name in (METRICS, SCORES)):
        raise UserError(f"{out}: is the folder of a run, whose report would be lost; give another --out")
    devices = _devices(device)
    subjects = [
        _subject(name, given, asked, device, tokenizer) for name, given in zip(_names(models), models, strict=True)
    ]
    texts, words, scores = _inputs(subjects, asked, as_json)
    with _waiting(f"timing {len(subjects)} models for about {seconds:g} s", as_json):
        found = compare_all(subjects, texts, scores=scores, seconds=seconds, devices=devices, measured_on=words)
    if out is not None:
        write_into_folder(
            out / COMPARISON, json.dumps(found.as_json(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        )
        write_into_folder(out / REPORT, comparison_page(found))
    if as_json:
        print(json.dumps(found.as_json(), ensure_ascii=False, indent=2, allow_nan=False))
        return
    show(Console(), found)
    if out is not None:
        print(f"{out}: {COMPARISON}, {REPORT}")


def beside(
    teacher: str,
    out: Path,
    texts: Sequence[Any],
    scores: Mapping[str, Sequence[float | None]],
    seconds: float,
    task: Task[Any] | None = None,
    device: torch.device | None = None,
) -> None:
    """The student in a run's folder beside its teacher: written there for the report, and shown. `device` is the run's:
    a GPU it was not to use is left alone."""
    student = str(out / MODEL_FOLDERS[0])
    subjects = [
        Subject(name, load(given), located(given), task) for name, given in (("teacher", teacher), ("student", student))
    ]
    devices = here() if device is None or device.type == "cuda" else ("cpu",)
    try:
        with _waiting(f"timing teacher and student for about {seconds:g} s", quiet=False):
            found = compare_all(subjects, texts, scores=scores, seconds=seconds, devices=devices)
    except torch.OutOfMemoryError:
        note("the GPU's memory is too small to time both; compare them on the CPU: bertree compare ... --device cpu")
        return
    found.write(out)
    show(Console(), found)
    first, second = found.models
    if second.parameters < first.parameters and second.weight_bytes > first.weight_bytes:
        again = f"bertree convert {student} SMALL --to bertree --dtype int8"
        note(f"the teacher's weights are stored rounded, the student's are not; {again}")


def _devices(name: str) -> tuple[str, ...]:
    if name == "auto":
        return here()
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise UserError(f"--device {name}: must be cpu, cuda, cuda:1 ..., or auto for all there are")
    return (name,)


def _subject(name: str, given: str, asked: Asked, device: str, tokenizer: Path | None) -> Subject:
    model = load(given, device=device_of(device))
    if not model.trained:
        note(f"{given}: a preset has fresh, untrained weights: its speed is real, its scores are not")
    if model.tokenizer is None:
        _lend(given, model, tokenizer)
    if asked.task is None:
        return Subject(name, model, located(given))
    try:
        return Subject(name, model, located(given), model.task_named(asked.task, **(asked.columns or {})))
    except UserError as error:
        raise UserError(f"{given}: {error}") from None


def _lend(given: str, model: Model, path: Path | None) -> None:
    """A tokenizer for a model that has none, to be timed with; its size stays what it is."""
    if path is None:
        raise UserError(f"{given}: has no tokenizer to read texts with; give --tokenizer FOLDER")
    found = Tokenizer.load(path) if path.is_dir() else None
    if found is None:
        raise UserError(f"{path}: holds no tokenizer")
    if found.size > model.architecture.vocab_size:
        raise UserError(f"{path}: has {found.size} tokens, but {given} knows {model.architecture.vocab_size}")
    model.tokenizer = found


def _names(given: Sequence[str]) -> list[str]:
    """Short names: a folder's own, or of a run's model the run's; as given where two would be alike."""
    paths, given = [Path(model) for model in given], [printable(model) for model in given]
    short = [printable(path.parent.name if path.name in MODEL_FOLDERS else path.name) for path in paths]
    if len(set(short)) == len(short) and all(short):
        return short
    return given if len(set(given)) == len(given) else [f"{name} ({n})" for n, name in enumerate(given, 1)]


def _inputs(
    subjects: Sequence[Subject], asked: Asked, quiet: bool
) -> tuple[list[Any], str, dict[str, list[float | None]]]:
    """What is timed, that in words, and the scores."""
    examples: list[Any] = []
    scores: dict[str, list[float | None]] = {}
    if asked.data is not None:
        note_all_rows_scored(asked.data)
        every = [_scored(subject, asked.data, quiet) for subject in subjects]
        examples = every[0][0]
        names = dict.fromkeys(name for _, found in every for name in found if not name.endswith("threshold"))
        task = subjects[0].task
        assert task is not None
        ordered = sorted(names, key=lambda name: name != task.metric)
        scores = {name: [found.get(name) for _, found in every] for name in ordered}
    if asked.texts is not None:
        texts = _texts(asked.texts, subjects[0].task)
        return texts, f"{len(texts):,} texts of {asked.texts.name}", scores
    return examples, f"{len(examples):,} examples of {asked.task}" if examples else "", scores


def _scored(subject: Subject, data: Path, quiet: bool) -> tuple[list[Any], dict[str, float]]:
    """The examples of the dev split, and what the model is worth on them."""
    task, model = subject.task, subject.model
    assert task is not None
    splits = TaskFiles(data).splits(task, alone="dev")
    wanted = [name for name in splits if name == "dev" or name.startswith("dev-")]
    if not wanted:
        raise UserError(f"{data}: has no split 'dev'; there are: {', '.join(splits)}")
    longest = effective_max_length(0, model.task.get("max_length") or task.max_length, model.architecture.max_positions)
    every: list[Any] = []
    found: dict[str, float] = {}
    for name in wanted:
        examples = task.read(splits[name])
        part, cut = encode_split(task, examples, model, longest)
        if cut.examples:
            note(f"{subject.name}: {cut.message(name, len(examples), longest)}")
        with bar("evaluating", len(part.units)) as progress:
            _, scores = evaluate_split(
                task, model.network, part, lambda: inference_autocast(model.device), progress.advance
            )
        if not scores:
            raise UserError(f"{splits[name][0]}: has no gold answers to score")
        prefix = f"{rest}_" if (rest := name.partition("-")[2]) else ""
        found |= {f"{prefix}{key}": value for key, value in scores.items()}
        every += examples
    return every, found


def _texts(path: Path, task: Task[Any] | None) -> list[Any]:
    """A file's texts and pairs; with a task, the examples it makes of them."""
    found: list[Any] = []
    for number, record in enumerate(read(path), 1):
        if isinstance(record, str) and not record.strip():
            continue
        if task is not None:
            try:
                found += task.parse_all(record)
            except UserError as error:
                raise UserError(f"{path}: record {number}: {error}") from None
            continue
        given = [record] if isinstance(record, str) else [record[key] for key in ("text", "pair") if key in record]
        if not given or not all(isinstance(text, str) for text in given):
            raise UserError(
                f"{path}: record {number}: has no 'text'; give a text a line, or objects with text and pair"
            )
        found.append(given[0] if len(given) == 1 else tuple(given))
    if not found:
        raise UserError(f"{path}: holds no text")
    return found


def _waiting(line: str, quiet: bool) -> AbstractContextManager[object]:
    """A sign of life on standard error, where that is a terminal."""
    return Console(stderr=True).status(line) if sys.stderr.isatty() and not quiet else nullcontext()


def show(console: Console, found: Comparison) -> None:
    """The table, and in one line for each model what it says."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for place, model in enumerate(found.models):
        table.add_column(Text(model.name), justify="right", overflow="fold")
        if place:
            table.add_column("", overflow="fold")
    for row in comparison_rows(found):
        cells = [Text(row.name), Text(row.values[0])]
        for value, against in zip(row.values[1:], row.against, strict=True):
            worse = against.endswith(("larger", "slower", "fewer"))
            cells += [Text(value), Text(against, "red" if worse else "green")]
        table.add_row(*cells)
    console.print(table)
    console.print(Text(method(found), "dim"))
    console.print()
    for place in range(1, len(found.models)):
        console.print(Text(f"{found.models[place].name}: {verdict(found, place)}", "bold"))
