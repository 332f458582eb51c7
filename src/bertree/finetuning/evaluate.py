"""Scores on a task: of a model or of an ensemble on its files (`bertree.evaluate`), and of the seeds of a run.

A fine-tuning run scores its dev splits with the functions at the end of this file (execute.py, tuner.py), so that a run
and `bertree.evaluate` compute a score in the same way.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, Generic, NamedTuple

from bertree.console import bar, note, showing
from bertree.errors import UserError
from bertree.files.atomic import refuse_other, write_into_folder, write_json_lines
from bertree.files.formats import Json, json_text
from bertree.finetuning.page import write_page
from bertree.finetuning.scored import ScoredExamples, read_scored
from bertree.finetuning.store_evaluation import OBJECTIVES, evaluate_on_store
from bertree.inference.load import choose_device, load_or_take
from bertree.inference.model import Model
from bertree.inference.zero_shot import CLOZE, QUESTIONS, answer_questions, ask_probes, read_probes
from bertree.model.network import Network
from bertree.result_table import ResultTable, ShownAsTable, figure_rows
from bertree.run_folder import SCORES, predictions_file
from bertree.tasks.batches import Autocast, Member, average, check_ensemble, inference_autocast, logits
from bertree.tasks.files import note_all_rows_scored
from bertree.tasks.metrics import Interval, few_line
from bertree.tasks.registry import with_model_labels, with_model_layout
from bertree.tasks.task import Example, Logits, Task, Truncation, Unit
from bertree.text.memory import Rows, takes_rows, task_fields

NOT_SCORES = ("seed", "best_step", "diverged", "run")  # other keys of a seed's result

Measurement = tuple[list[Json], dict[str, float]]  # predictions and scores


@dataclass(frozen=True)
class EncodedSplit(Generic[Example]):
    """The examples of a split and the units the encoder reads of them."""

    examples: Sequence[Example]
    units: Sequence[Unit]


def encode_split(
    task: Task[Any], examples: Sequence[Any], model: Model, longest: int
) -> tuple[EncodedSplit[Any], Truncation]:
    """Return the examples with their units, and how much was truncated."""
    units, truncation = task.units(examples, model.required_tokenizer, longest)
    return EncodedSplit(examples, units), truncation


@dataclass(frozen=True, repr=False)
class Scores(ShownAsTable):
    """The scores of a model on a task, and its predictions on each split."""

    task: str  # its name
    splits: Sequence[str]  # names of those that were scored
    metrics: Json  # the scores from 0 to 1, with intervals: metrics.json
    predictions: dict[str, list[Json]]  # of each split, an object for each example: predictions.jsonl

    def _result_table(self) -> ResultTable:
        return ResultTable(f"{self.task}: {', '.join(self.splits)}", figure_rows(self.metrics))


@takes_rows(data=task_fields)
def evaluate(
    model: str | Path | Model | Sequence[str | Path | Model],
    *,
    data: str | Path | Rows | None = None,
    task: str | Task[Any] | None = None,
    store: str | Path | None = None,
    split: str | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    out: str | Path | None = None,
    submission: str | Path | None = None,
    max_length: int = 0,
    ensemble: bool = False,
    device: str = "auto",
    tokenizer: str | Path | None = None,
    progress: bool | None = None,
) -> Scores:
    """Score a fine-tuned model on a split of a task's files, as the task's own script does; or a model on raw text.

    `data` is the folder with the task's files, one file (also as the last of `model`), or rows in memory. `task` and
    the columns (`text`, `pair`, `label`) are those the model was fine-tuned with, unless given; `split` is dev, else
    test, else what fine-tuning holds out of the training data. `out` is a folder for metrics.json, predictions.jsonl
    and report.html, `submission` one for the file that the task's server takes. `max_length=0` is the length the model
    was fine-tuned with. The task "questions" asks a language model the questions of a file; "cloze" asks a masked one
    for the word that is left out of a sentence, of the bundled sentences or of a file with `text` (with one ___),
    `word` and `kind`.

    With `ensemble=True`, `model` is a list of models whose predictions are averaged: probabilities of classes, options
    and tags, scores, or the logits of a span's first and last token.

    The tasks "mlm" (masked tokens), "nsp" and "sop" (next and swapped sentences) read a token `store` in place of
    `data`: its held-out documents, or all with `split="all"`, in sequences of 128 tokens unless `max_length` is set.

    >>> bertree.evaluate("sst", data="glue/SST-2").metrics["accuracy"]
    """
    for path in (out, submission):
        if path is not None:
            refuse_other(Path(path))
    with showing(progress):
        members = [model] if isinstance(model, str | Path | Model) else list(model)
        files = [each for each in members[1:] if isinstance(each, str | Path) and Path(each).is_file()]
        if len(files) == 1 and files[0] is members[-1] and data is None and store is None:
            data = str(members.pop())
        elif files:
            raise UserError(f"{files[0]}: is a file, not a model; name one file to score, after the models")
        if len(members) != 1 and not ensemble:
            raise UserError(f"{len(members)} models: average their predictions with `ensemble=True`, or compare them")
        if ensemble and len(members) < 2:
            raise UserError("`ensemble=True`: give two models or more")
        model = members[0]
        if ensemble and (store is not None or task in (*OBJECTIVES, QUESTIONS, CLOZE)):
            raise UserError(f"`ensemble=True`: is for models that were fine-tuned for a task, not for {task}")
        if store is not None or task in OBJECTIVES:
            values = {"data": data, "text": text, "pair": pair, "label": label, "submission": submission}
            others = [key for key, value in values.items() if value is not None]
            objective, store = _check_store_task(task, store, others)
            loaded, name = load_or_take(model, device=choose_device(device), tokenizer=tokenizer)
            metrics = evaluate_on_store(loaded, name, objective, store, split=split, max_length=max_length)
            if out is not None:
                write_into_folder(Path(out) / SCORES, json_text(metrics, 2) + "\n")
            return Scores(objective, [metrics["split"]], metrics, {})
        if task == CLOZE:
            probes = read_probes(*([] if data is None else [Path(data)]))
            loaded, name = load_or_take(model, device=choose_device(device), tokenizer=tokenizer)
            return _answers(CLOZE, name, *ask_probes(loaded, probes), out)
        if data is None:
            raise UserError("give the task's files with `data`; mlm, nsp and sop read a token store, `store`")
        loaded, name = load_or_take(model, device=choose_device(device), tokenizer=tokenizer)
        if task == QUESTIONS:
            return _answers(QUESTIONS, name, *answer_questions(loaded, Path(data)), out)
        columns = {"text": text, "pair": pair, "label": label}
        scored_task = _task_of(loaded, name, task, columns)
        averaged: list[tuple[Task[Any], Model]] = []
        for member in members[1:]:
            other, other_name = load_or_take(member, device=choose_device(device), tokenizer=tokenizer)
            averaged.append((_task_of(other, other_name, task, columns), other))
            name += f", {other_name}"
        if submission is not None:
            scored_task.submission([], [])  # raises before the work, not after it
        figures: Json = {}
        intervals: dict[str, Interval] = {}
        predictions: dict[str, list[Json]] = {}
        sets = read_scored(scored_task, Path(data), split, [loaded.task])
        splits = score_examples(scored_task, loaded, sets, max_length, averaged)
        for part, scored in zip(sets, splits, strict=True):
            predictions[scored.name], examples, cut = scored.predictions, scored.examples, scored.truncation
            cuts = {"cut": cut.examples, "cut_tokens": cut.tokens} if cut.examples else {}
            figures |= {
                scored.prefix + key: value
                for key, value in (scored.scores | {"examples": len(examples)} | cuts).items()
            }
            intervals |= {scored.prefix + key: value for key, value in scored.intervals.items()}
            for line in (*scored.notes, few_line(scored.name, len(examples)) if scored.scores else ""):
                if line:
                    note(line)
            if scored.scores and part.whole_file:
                note_all_rows_scored(Path(data))
            if not scored.scores and out is None and submission is None:
                raise UserError(f"{scored.file}: has no gold answers to score; write the predictions with `out=DIR`")
            if not scored.scores:
                note(f"{scored.name}: has no gold answers, so nothing is scored")
            if submission is not None:
                for file_name, content in scored_task.submission(examples, scored.predictions).items():
                    write_into_folder(Path(submission) / file_name, content)
        chosen = list(predictions)
        figures |= {"intervals": intervals} if intervals else {}
        metrics = figures | {"task": scored_task.name, "split": chosen[0], "model": name}
        if out is not None:
            _write(Path(out), scored_task, metrics, figures | {"model": name}, predictions)
        return Scores(scored_task.name, chosen, metrics, predictions)


def _check_store_task(
    task: str | Task[Any] | None, store: str | Path | None, others: Sequence[str]
) -> tuple[str, str | Path]:
    """Return task and store of an evaluation on a token store; `others` are arguments that it does not take."""
    if task not in OBJECTIVES:
        shown = "" if task is None else f", not {task if isinstance(task, str) else task.name}"
        raise UserError(f"`store={store}`: is for the tasks {', '.join(OBJECTIVES)}{shown}; name one with `task`")
    assert isinstance(task, str)
    if store is None:
        raise UserError(f"`task={task}`: reads a token store; give it with `store` (see `bertree prepare`)")
    if others:
        raise UserError(f"`{others[0]}`: is not for `task={task}`, which reads only the token store")
    return task, store


def _answers(task: str, name: str, figures: Json, lines: list[Json], out: str | Path | None) -> Scores:
    """Return the scores of a model's answers to the questions or probes of a file."""
    metrics = figures | {"examples": len(lines), "task": task, "split": "dev", "model": name}
    if out is not None:
        write_into_folder(Path(out) / SCORES, json_text(metrics, 2) + "\n")
        write_json_lines(Path(out) / predictions_file("dev"), lines)
    return Scores(task, ["dev"], metrics, {"dev": lines})


def _task_of(model: Model, name: str, task: str | Task[Any] | None, columns: dict[str, str | None]) -> Task[Any]:
    try:
        if task is None or isinstance(task, str):
            return model.find_task(task, **columns)
        return with_model_labels(with_model_layout(task, model.task), model.classes, model.labels)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


class ScoredSplit(NamedTuple):
    """A model's predictions on a split and their scores; there are none without gold labels."""

    name: str
    file: Path
    examples: Sequence[Any]
    predictions: list[Json]
    scores: dict[str, float]
    intervals: dict[str, Interval]  # of the scores
    truncation: Truncation
    notes: list[str]  # on truncation
    prefix: str  # of the scores' names: "mismatched_" for dev-mismatched


def score_examples(
    task: Task[Any],
    model: Model,
    sets: Sequence[ScoredExamples],
    max_length: int = 0,
    others: Sequence[tuple[Task[Any], Model]] = (),
) -> Iterator[ScoredSplit]:
    """Score a model on each set of examples; with `others`, the mean of its predictions and theirs."""
    check_ensemble([task, *(own for own, _ in others)])
    for part in sets:
        members, cuts, notes = list[Member](), list[Truncation](), list[str]()
        for own, member in ((task, model), *others):
            longest = member.sequence_length(max_length, member.task_length or own.max_length)
            encoded, cut = encode_split(own, part.examples, member, longest)
            with bar("evaluating", len(encoded.units)) as progress:
                autocast = partial(inference_autocast, member.device)
                scores = logits(member.network, own.scored_head, encoded.units, autocast, progress.advance)
            members.append(Member(own, encoded.units, scores))
            cuts.append(cut)
            notes += [cut.message(part.split, len(part.examples), longest)] if cut.examples else []
        lines, figures = _predictions(task, part.examples, members[0].units, average(members))
        intervals = task.intervals(part.examples, lines) if figures else {}
        yield ScoredSplit(part.split, part.file, part.examples, lines, figures, intervals, cuts[0], notes, part.prefix)


def _write(out: Path, task: Task[Any], metrics: Json, shown: Json, predictions: dict[str, list[Json]]) -> None:
    for split, lines in predictions.items():
        write_json_lines(out / predictions_file(split), lines)
    write_into_folder(out / SCORES, json_text(metrics, 2) + "\n")
    write_page(out, task, shown, {split: out / predictions_file(split) for split in predictions})


def evaluate_split(
    task: Task[Example], network: Network, split: EncodedSplit[Example], autocast: Autocast
) -> tuple[list[Json], dict[str, float]]:
    """Return the predictions on a split, and their scores if it has gold answers."""
    scores = logits(network, task.scored_head, split.units, autocast)
    return _predictions(task, split.examples, split.units, scores)


def _predictions(task: Task[Any], examples: Sequence[Any], units: Sequence[Unit], scores: list[Logits]) -> Measurement:
    predictions = task.predict(examples, units, scores)
    labeled = any(unit.answer is not None for unit in units)
    return predictions, task.score(examples, predictions) if labeled else {}


def evaluate_dev(
    task: Task[Any], splits: Mapping[str, EncodedSplit[Any]], measure: Callable[[str], Measurement]
) -> tuple[Task[Any], Json, dict[str, list[Json]]]:
    """Score every dev split, with the scores' `intervals`. Settings of the task that are tuned on data (a threshold)
    are tuned on the first."""
    scores, lines = dict[str, Any](), dict[str, list[Json]]()
    intervals: dict[str, Interval] = {}
    for name in sorted(name for name in splits if name != "train"):
        lines[name], figures = measure(name)
        if name == "dev":
            task = task.tune(splits[name].examples, lines[name])
            lines[name] = task.apply_tuning(lines[name])
            figures = task.score(splits[name].examples, lines[name])
        prefix = "" if name == "dev" else f"{name.partition('-')[2]}_"
        scores |= {f"{prefix}{key}": value for key, value in figures.items()}
        of_split = task.intervals(splits[name].examples, lines[name]) if figures else {}
        intervals |= {f"{prefix}{key}": value for key, value in of_split.items()}
    return task, scores | {"intervals": intervals}, lines


def _value(result: Json, metric: str) -> float:
    value = result.get(metric)
    return float(value) if isinstance(value, int | float) else -math.inf


def rank(result: Json, metric: str) -> tuple[bool, float]:
    """Return a sort key: seeds that learned nothing rank below all others."""
    return not result["diverged"], _value(result, metric)


def summary(results: Sequence[Json], metric: str) -> Json:
    """Return the best seed's scores and, for several seeds, mean, deviation and median of those that have not
    diverged."""
    best = max(results, key=lambda result: rank(result, metric))
    values = [_value(result, metric) for result in results if not result["diverged"]]
    metrics: Json = {key: value for key, value in best.items() if key not in NOT_SCORES}
    metrics |= {"metric": metric, "best_seed": best["seed"]}
    if len(results) > 1:
        metrics |= {"mean": mean(values) if values else None, "std": stdev(values) if len(values) > 1 else None}
        metrics |= {"median": median(values) if values else None}
        metrics |= {"best": best.get(metric), "diverged": [r["seed"] for r in results if r["diverged"]]}
    return metrics | {"seeds": [{key: value for key, value in r.items() if key != "run"} for r in results]}


def compare_to_teacher(metrics: Json, teacher: Json, metric: str) -> Json:
    """Return the scores of student and teacher, and the share of the teacher's that is kept (None if undefined)."""
    reference = _value(teacher, metric)
    shares = {"kept": metrics.get(metric)} | ({"kept_mean": metrics["mean"]} if "mean" in metrics else {})
    defined = reference > 0 and math.isfinite(reference)
    kept = {name: value / reference if defined and value is not None else None for name, value in shares.items()}
    return {"teacher": teacher, "student": metrics.get(metric), **kept}


def teacher_line(comparison: Json, metric: str) -> str:
    """Return the result of `compare_to_teacher` as one line."""
    scores = {"teacher": comparison["teacher"].get(metric), "student": comparison["student"]}
    shown = ", ".join(f"{name} {'-' if value is None else f'{100 * value:.2f}'}" for name, value in scores.items())
    kept = "" if comparison["kept"] is None else f", {100 * comparison['kept']:.1f} % of it kept"
    return f"{metric.replace('_', ' ')}: {shown}{kept}"
