"""Compare models: load them, score them if a task is given, and time them.

`bertree.compare` is for any models; `compare_to_teacher` is called at the end of a distillation. measure.py counts and
times the loaded models; report/comparison.py holds the result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bertree.comparison.answers import ModelScores, model_scores
from bertree.comparison.measure import available_devices, compare_all
from bertree.comparison.published import published_of_task
from bertree.comparison.timing import TimedModel
from bertree.config.names import resolve_model_path
from bertree.console import note, renamed, showing, status
from bertree.errors import UserError
from bertree.files.atomic import refuse_other, write_into_folder
from bertree.files.formats import json_text
from bertree.finetuning.evaluate import ScoredSplit, score_examples
from bertree.finetuning.scored import ScoredExamples, read_scored
from bertree.inference.load import choose_device, load, load_or_take
from bertree.inference.model import Model
from bertree.report.comparison import Comparison, Intervals
from bertree.report.comparison_page import comparison_page
from bertree.report.formats import printable
from bertree.run_folder import BEST_MODEL, COMPARISON, METRICS, MODEL, REPORT, SCORES
from bertree.tasks.files import note_all_rows_scored, read_inputs, read_records
from bertree.tasks.metrics import few_line
from bertree.tasks.task import Task
from bertree.text.memory import Rows, pair_fields, takes_rows, task_fields
from bertree.text.records import choose_text_column, text_field
from bertree.text.tokenizer import Tokenizer

MOST_SECONDS = 86_400


@dataclass(frozen=True, kw_only=True)
class ComparisonInputs:
    """What every model is scored and timed on: a task's files, texts of the user, or neither."""

    columns: Mapping[str, str | None]
    task: str | None = None
    data: Path | None = None
    split: str | None = None
    texts: Path | None = None

    def check(self) -> None:
        """Refuse inputs that cannot be used, before models are loaded."""
        of_task = {"task": self.task, "split": self.split, "label": self.columns["label"]}
        if self.data is None and (named := [name for name, value in of_task.items() if value]):
            raise UserError(f"`{named[0]}`: is about a task's files; give them with `data`")
        if self.data is None and self.texts is None and any(self.columns.values()):
            raise UserError("`text` and `pair` name columns of `data` or of `texts`; give one of them")
        for path in (self.data, self.texts):
            if path is not None and not path.exists():
                raise UserError(f"{path}: no such file or folder")


@takes_rows(data=task_fields, texts=pair_fields)
def compare(
    models: Sequence[str | Path | Model],
    *,
    task: str | None = None,
    data: str | Path | Rows | None = None,
    split: str | None = None,
    texts: str | Path | Rows | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    seconds: float = 20.0,
    training: bool = False,
    published: bool = False,
    device: str = "auto",
    out: str | Path | None = None,
    tokenizer: str | Path | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Measure models against the first: parameters, bytes, latency, throughput and, with a task's files, score.

    With `data`, a folder with a task's files or one file, each model is scored on the split that `evaluate` would take.
    `task` is the one the models were fine-tuned for, unless given. `texts` is a file of texts to time them on; `text`,
    `pair` and `label` name columns. `seconds` is the time for timing, all models together; `training=True` times
    training steps of the encoders too, as long again. `published=True` adds what papers report on the task. `out` is
    a folder for comparison.json and report.html.

    >>> table = bertree.compare(["my-bert", "small/model"], texts="mail.txt")
    >>> table.models[1].parameters
    """
    data, texts, folder, tokenizer = (None if path is None else Path(path) for path in (data, texts, out, tokenizer))
    columns = {"text": text, "pair": pair, "label": label}
    inputs = ComparisonInputs(columns=columns, task=task, data=data, split=split, texts=texts)
    with showing(progress):
        inputs.check()
        if len(models) < 2:
            raise UserError("compare: give at least two models")
        if not 0 <= seconds <= MOST_SECONDS:
            raise UserError(f"`seconds={seconds}`: must be from 0 to {MOST_SECONDS:,} seconds")
        _check_folder(folder)
        devices = _devices(device)
        timed = [
            _timed_model(name, model, inputs, device, tokenizer)
            for name, model in zip(_short_names([_name(model) for model in models]), models, strict=True)
        ]
        _check_tasks(timed)
        if published and timed[0].task is None:
            raise UserError("`published=True`: is about a task; give its files with `data`")
        others = published_of_task(timed[0].task.name) if published and timed[0].task is not None else ()
        samples, measured_on, scores = _samples_and_scores(timed, inputs)
        with status(f"timing {len(timed)} models for about {seconds:g} s"):
            comparison = compare_all(
                timed,
                samples,
                scores=scores.values,
                intervals=scores.intervals,
                seconds=seconds,
                devices=devices,
                measured_on=measured_on,
                training=training,
            )
        comparison = replace(
            comparison,
            published=others,
            calibration=scores.calibration,
            differences=scores.differences,
            disagreements=scores.disagreements,
        )
        if folder is not None:
            write_into_folder(folder / COMPARISON, json_text(comparison.as_json(), 2) + "\n")
            write_into_folder(folder / REPORT, comparison_page(comparison))
        return comparison


def _check_folder(out: Path | None) -> None:
    if out is None:
        return
    existing = next((path for path in (out, *out.parents) if path.exists()), None)
    if existing is not None and not existing.is_dir():
        raise UserError(f"{existing}: is a file; give the path of a folder to write")
    refuse_other(out)
    if any((out / name).exists() for name in (METRICS, SCORES)):
        raise UserError(f"{out}: is the folder of a run, whose report would be lost; give another `out`")


def compare_to_teacher(
    teacher: str,
    out: Path,
    texts: Sequence[Any],
    scores: Mapping[str, Sequence[float | None]],
    seconds: float,
    task: Task[Any] | None = None,
    device: torch.device | None = None,
    intervals: Intervals | None = None,
) -> None:
    """Measure the student in a run's folder against its teacher and write comparison.json there for the report.

    `device` is the run's: a GPU that the run was not to use is not used.
    """
    student = str(out / MODEL)
    models = [
        TimedModel(name, load(path), resolve_model_path(path), task)
        for name, path in (("teacher", teacher), ("student", student))
    ]
    devices = available_devices() if device is None or device.type == "cuda" else ("cpu",)
    try:
        with status(f"timing teacher and student for about {seconds:g} s"):
            comparison = compare_all(
                models, texts, scores=scores, intervals=intervals, seconds=seconds, devices=devices
            )
    except torch.OutOfMemoryError:
        note("the GPU's memory is too small to time both; compare them on the CPU (bertree compare, `device=cpu`)")
        return
    comparison.write(out)
    first, second = comparison.models
    if second.parameters < first.parameters and second.weight_bytes > first.weight_bytes:
        note("the teacher's weights are stored as int8, the student's are not; bertree convert stores them so too")


def _devices(name: str) -> tuple[str, ...]:
    if name == "auto":
        return available_devices()
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise UserError(f"`device={name}`: must be cpu, cuda, cuda:1 ..., or auto for all there are")
    return (name,)


def _timed_model(
    name: str, model: str | Path | Model, inputs: ComparisonInputs, device: str, tokenizer: Path | None
) -> TimedModel:
    path = _name(model)
    model, _ = load_or_take(model, device=choose_device(device))
    if not model.trained:
        note(f"{path}: a preset has random weights: its speed is real, its scores are not")
    if model.tokenizer is None:
        _set_tokenizer(path, model, tokenizer)
    if inputs.data is None:
        return TimedModel(name, model, resolve_model_path(path))
    try:
        return TimedModel(name, model, resolve_model_path(path), model.find_task(inputs.task, **inputs.columns))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _check_tasks(models: Sequence[TimedModel]) -> None:
    """Refuse models of different tasks: one set of examples cannot score them."""
    tasks = {timed.task.name: timed.name for timed in models if timed.task is not None}
    if len(tasks) > 1:
        learned = ", ".join(f"{model} {task}" for task, model in tasks.items())
        raise UserError(f"the models have learned different tasks ({learned}); name one with `task`")


def _set_tokenizer(name: str, model: Model, path: Path | None) -> None:
    """Give a model without a tokenizer one to be timed with; its vocabulary size stays as it is."""
    if path is None:
        raise UserError(f"{name}: has no tokenizer to read texts with; give `tokenizer=FOLDER`")
    tokenizer = Tokenizer.load(path) if path.is_dir() else None
    if tokenizer is None:
        raise UserError(f"{path}: holds no tokenizer")
    if tokenizer.size > model.architecture.vocab_size:
        raise UserError(f"{path}: has {tokenizer.size} tokens, but {name} knows {model.architecture.vocab_size}")
    model.tokenizer = tokenizer


def _short_names(models: Sequence[str]) -> list[str]:
    """Return short names: the folder's, or the run's for RUN/model; the full names if two would be equal."""
    paths, names = [Path(model) for model in models], [printable(model) for model in models]
    short = [printable(path.parent.name if path.name in (MODEL, BEST_MODEL) else path.name) for path in paths]
    if len(set(short)) == len(short) and all(short):
        return short
    return names if len(set(names)) == len(names) else [f"{name} ({n})" for n, name in enumerate(names, 1)]


def _samples_and_scores(models: Sequence[TimedModel], inputs: ComparisonInputs) -> tuple[list[Any], str, ModelScores]:
    """Return the samples to time, a description of them, and the scores."""
    task, examples, scores = models[0].task, list[Any](), ModelScores()
    if inputs.data is not None:
        assert task is not None
        sets = read_scored(task, inputs.data, inputs.split, [timed.model.task for timed in models])
        examples = [example for group in sets for example in group.examples]
        scores = model_scores([timed.task for timed in models if timed.task], [_score(timed, sets) for timed in models])
        if sets[0].whole_file:
            note_all_rows_scored(inputs.data)
        for group in sets:
            if line := few_line(group.split, len(group.examples)):
                note(line)
    if inputs.texts is not None:
        texts, path = _texts(inputs.texts, task, inputs.columns), str(inputs.texts)
        place = f"of {inputs.texts.name}" if renamed(path) == path else "in memory"
        return texts, f"{len(texts):,} texts {place}", scores
    return examples, f"{len(examples):,} examples of {task.name}" if task else "", scores


def _score(timed: TimedModel, sets: Sequence[ScoredExamples]) -> list[ScoredSplit]:
    """Return a model's predictions on examples, with scores."""
    assert timed.task is not None
    splits = list(score_examples(timed.task, timed.model, sets))
    for scored in splits:
        for line in scored.notes:
            note(f"{timed.name}: {line}")
        if not scored.scores:
            raise UserError(f"{scored.file}: has no gold answers to score")
    return splits


def _texts(path: Path, task: Task[Any] | None, columns: Mapping[str, str | None]) -> list[Any]:
    """Return a file's texts and pairs; with a task, its examples."""
    texts: list[Any] = list(read_inputs(task, path)) if task is not None else []
    for where, record in read_records(path) if task is None else ():
        if isinstance(record, str):
            texts += [record] if record.strip() else []
            continue
        names = [choose_text_column(list(record), columns["text"], where)]
        if (pair := columns["pair"] or "pair") in record or columns["pair"]:
            names.append(pair)
        parts = [text_field(record, name, where) for name in names]
        texts.append(parts[0] if len(parts) == 1 else tuple(parts))
    if not texts:
        raise UserError(f"{path}: holds no text")
    return texts


def _name(model: str | Path | Model) -> str:
    return model.name if isinstance(model, Model) else str(model)
