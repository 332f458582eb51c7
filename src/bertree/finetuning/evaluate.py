"""The work behind `bertree evaluate` and `glue`: files through a head, and what its answers are worth."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bertree.console import bar, note
from bertree.errors import UserError
from bertree.files import Json, json_text, read_json, write_into_folder, write_json_lines
from bertree.finetuning.page.page import write_page
from bertree.finetuning.prepare import encode_split
from bertree.finetuning.tuner import evaluate_split
from bertree.inference.load import device_of, load
from bertree.run_folder import SCORES, predictions_file
from bertree.tasks.files import TaskFiles, note_all_rows_scored
from bertree.tasks.glue import GLUE_AVERAGES
from bertree.tasks.logits import effective_max_length, inference_autocast


def evaluate(
    model: str,
    name: str,
    files: TaskFiles,
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
    longest = effective_max_length(
        max_length, loaded.task.get("max_length") or task.max_length, loaded.architecture.max_positions
    )
    found: Json = {}
    for name in wanted:
        examples = task.read(splits[name])
        part, cut = encode_split(task, examples, loaded, longest)
        with bar("evaluating", len(part.units)) as progress:
            lines, scores = evaluate_split(
                task, loaded.network, part, lambda: inference_autocast(loaded.device), progress.advance
            )
        prefix = f"{rest}_" if (rest := name.partition("-")[2]) else ""
        counts = {"examples": len(examples)} | ({"cut": cut.examples, "cut_tokens": cut.tokens} if cut.examples else {})
        found |= {f"{prefix}{key}": value for key, value in (scores | counts).items()}
        if cut.examples:
            note(cut.message(name, len(examples), longest))
        if not scores and out is None and submission is None:
            raise UserError(
                f"{splits[name][0]}: has no gold answers to score; write what the model says with --out DIR"
            )
        if scores and split is None:
            note_all_rows_scored(files.data)
        if not scores:
            note(f"{name}: has no gold answers, so nothing is scored")
        if out is not None:
            write_json_lines(out / predictions_file(name), lines)
        if submission is not None:
            for file, text in task.submission(examples, lines).items():
                write_into_folder(submission / file, text)
    known = {"task": task.name, "split": wanted[0], "model": model}
    if out is not None:
        write_into_folder(out / SCORES, json_text(found | known, 2) + "\n")
        write_page(out, task, found | {"model": model}, {name: out / predictions_file(name) for name in wanted})
    if as_json:
        print(json_text(found | known, 2))
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
