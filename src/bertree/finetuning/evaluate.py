"""Evaluate a model on a task's files: `bertree.evaluate`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertree.console import bar, note, showing
from bertree.errors import UserError
from bertree.files.atomic import write_into_folder, write_json_lines
from bertree.files.formats import Json, json_text, read_json
from bertree.finetuning.page.page import write_page
from bertree.finetuning.prepare import encode_split
from bertree.finetuning.tuner import evaluate_split
from bertree.inference.load import choose_device, load_or_take
from bertree.inference.model import Model
from bertree.run_folder import SCORES, predictions_file
from bertree.tasks.files import TaskFiles, note_all_rows_scored
from bertree.tasks.glue import GLUE_AVERAGES
from bertree.tasks.logits import effective_max_length, inference_autocast
from bertree.tasks.registry import with_model_labels, with_model_layout
from bertree.tasks.task import Task


@dataclass(frozen=True)
class Scores:
    """The scores of a model on a task, and its predictions on each split."""

    task: str
    splits: Sequence[str]
    metrics: Json
    predictions: dict[str, list[Json]]


def evaluate(
    model: str | Path | Model,
    *,
    task: str | Task[Any],
    data: str | Path,
    split: str | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    out: str | Path | None = None,
    submission: str | Path | None = None,
    max_length: int = 0,
    device: str = "auto",
    tokenizer: str | Path | None = None,
    progress: bool | None = None,
) -> Scores:
    """Score a fine-tuned model on a split of a task's files, as the task's own script does.

    `data` is the folder with the task's files or one file; `split` is `dev` unless given; `text`, `pair` and `label`
    name your columns. `out` is a folder for metrics.json, predictions.jsonl and report.html, `submission` one for the
    file that the task's server takes. `max_length=0` is the length the model was fine-tuned with.

    >>> bertree.evaluate("sst/model", task="sst-2", data="glue/SST-2").metrics["accuracy"]
    """
    with showing(progress):
        loaded, name = load_or_take(model, device=choose_device(device), tokenizer=tokenizer)
        known = _task_of(loaded, name, task, {"text": text, "pair": pair, "label": label})
        if submission is not None:
            known.submission([], [])  # raises before the work, not after it
        return _evaluate(loaded, name, known, Path(data), split, out, submission, max_length)


def _task_of(model: Model, name: str, task: str | Task[Any], columns: dict[str, str | None]) -> Task[Any]:
    try:
        return (
            model.find_task(task, **columns)
            if isinstance(task, str)
            else with_model_labels(with_model_layout(task, model.task), model.classes, model.labels)
        )
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def _evaluate(
    model: Model,
    name: str,
    task: Task[Any],
    data: Path,
    split: str | None,
    out: str | Path | None,
    submission: str | Path | None,
    max_length: int,
) -> Scores:
    splits = TaskFiles(data).splits(task, alone=split or "dev")
    wanted = [one for one in splits if one == (split or "dev") or one.startswith(f"{split or 'dev'}-")]
    if not wanted:
        raise UserError(f"{data}: has no split '{split or 'dev'}'; there are: {', '.join(splits)}")
    usual = model.task.get("max_length") or task.max_length
    longest = effective_max_length(max_length, usual, model.architecture.longest_input)
    found: Json = {}
    predictions: dict[str, list[Json]] = {}
    for one in wanted:
        examples = task.read(splits[one])
        part, cut = encode_split(task, examples, model, longest)
        with bar("evaluating", len(part.units)) as shown:
            lines, scores = evaluate_split(
                task, model.network, part, lambda: inference_autocast(model.device), shown.advance
            )
        predictions[one] = lines
        prefix = f"{rest}_" if (rest := one.partition("-")[2]) else ""
        counts = {"examples": len(examples)} | ({"cut": cut.examples, "cut_tokens": cut.tokens} if cut.examples else {})
        found |= {f"{prefix}{key}": value for key, value in (scores | counts).items()}
        if cut.examples:
            note(cut.message(one, len(examples), longest))
        if not scores and out is None and submission is None:
            raise UserError(f"{splits[one][0]}: has no gold answers to score; write the predictions with `out=DIR`")
        if scores and split is None:
            note_all_rows_scored(data)
        if not scores:
            note(f"{one}: has no gold answers, so nothing is scored")
        if submission is not None:
            for file, text in task.submission(examples, lines).items():
                write_into_folder(Path(submission) / file, text)
    metrics = found | {"task": task.name, "split": wanted[0], "model": name}
    if out is not None:
        _write(Path(out), task, metrics, found | {"model": name}, predictions)
    return Scores(task.name, wanted, metrics, predictions)


def _write(out: Path, task: Task[Any], metrics: Json, shown: Json, predictions: dict[str, list[Json]]) -> None:
    for split, lines in predictions.items():
        write_json_lines(out / predictions_file(split), lines)
    write_into_folder(out / SCORES, json_text(metrics, 2) + "\n")
    write_page(out, task, shown, {split: out / predictions_file(split) for split in predictions})


@dataclass(frozen=True)
class GlueSummary:
    """The scores of several GLUE tasks, and the averages that are called the GLUE score."""

    tasks: dict[str, Json]
    averages: dict[str, Json]  # name -> value or None, missing tasks, source


def summarize_glue(runs: Sequence[Path]) -> GlueSummary:
    """Collect the scores of several runs of `finetune` or `evaluate --out`."""
    found: dict[str, Json] = {}
    for run in runs:
        file = run / SCORES if run.is_dir() else run
        if not file.is_file():
            raise UserError(f"{file}: no such file; give folders that finetune or evaluate has written")
        scores = read_json(file)
        if not isinstance(name := scores.get("task"), str):
            raise UserError(f"{run}: does not name the task of its scores; give a folder of finetune or evaluate")
        if name in found:
            raise UserError(f"{run}: is a second run of {name}; name one of each task")
        found[name] = scores
    known = dict(found)
    if mnli := found.get("mnli"):
        other = mnli.get("mismatched_accuracy")
        known |= {"mnli-mm": {"accuracy": other}} if isinstance(other, float) else {}
    averages: dict[str, Json] = {}
    for average in GLUE_AVERAGES.values():
        value, missing = average(known)
        averages[average.name] = {"value": value, "missing": list(missing), "source": average.source}
    return GlueSummary(found, averages)
