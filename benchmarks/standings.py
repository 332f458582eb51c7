"""Rows of scores, made in several runs and on several machines, as one table of models and tasks."""

import contextlib
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.common import spread, table
from bertree.files.formats import Json

KEY = ("task", "model", "seed", "weights", "settings", "train")  # what makes a run that run


def key(row: Json) -> str:
    """Two rows of one key are the same run."""
    return json.dumps([row.get(name) for name in KEY])


def rows_in(paths: Iterable[Path]) -> list[Json]:
    """Read the rows of all files; an incomplete line is left out."""
    rows = []
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            with contextlib.suppress(json.JSONDecodeError):
                rows.append(json.loads(line))
    return rows


def summary(rows: Sequence[Json], tasks: Sequence[str], reference: str | None) -> str:
    """Return the table: one line per model, mean and deviation over seeds, share of the reference's average.

    The last row of a task, model and seed counts: earlier ones have older weights or settings.
    """
    scored = {(row["task"], row["model"], row["seed"]): row for row in rows if "score" in row and row["task"] in tasks}
    metrics = {row["task"]: row["metric"] for row in scored.values()}
    tasks = [task for task in tasks if task in metrics]
    scores: dict[str, dict[str, list[float]]] = {}
    for (task, model, _), row in scored.items():
        scores.setdefault(model, {}).setdefault(task, []).append(100 * row["score"])
    averages = {  # the average of fewer tasks is another figure
        model: statistics.mean(map(statistics.mean, by_task.values()))
        for model, by_task in scores.items()
        if set(by_task) == set(tasks)
    }
    lines = []
    for model, by_task in scores.items():
        line = [model, *(spread(by_task.get(task, []), ".1f") for task in tasks)]
        line.append(f"{averages[model]:.1f}" if model in averages else "")
        if reference:
            complete = model in averages and reference in averages
            line.append(f"{averages[model] / averages[reference]:.1%}" if complete else "")
        lines.append(line)
    head = ["model", *(f"{task} ({metrics[task]})" for task in tasks), "average"]
    return f"{table([*head, f'share of {reference}'] if reference else head, lines)}\n"
