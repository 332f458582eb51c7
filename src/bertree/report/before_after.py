"""Figures of a model before and after adaptation, as rows for the terminal and a table of the report."""

from pathlib import Path

from bertree.errors import UserError
from bertree.files.formats import Json, read_json
from bertree.report.formats import format_metric
from bertree.report.tables import PageTable
from bertree.run_folder import SCORES

HEAD = ("", "before", "after", "change")


def before_after_rows(metrics: Json) -> list[tuple[str, str, str, str]]:
    """Return name, before, after and change of every figure in the metrics of an adaptation."""
    before, after = metrics.get("before"), metrics.get("after")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return []
    rows = [
        (f"held-out {name}", _shown(name, before[name]), _shown(name, after[name]), _change(name, before, after))
        for name in before
        if name in after
    ]
    task = metrics.get("task")
    if isinstance(task, dict) and task.get("difference") is not None:
        uncertainty = task["uncertainty"]
        spread = f" ± {100 * uncertainty:.2f}" if uncertainty is not None else ""
        seeds = len(task["before"]["seeds"])
        title = f"{task['name']} {task['metric']}, seeds {seeds}, examples {task['examples']:,}"
        means = [f"{100 * task[name]['mean']:.2f}" for name in ("before", "after")]
        rows.append((title, means[0], means[1], f"{100 * task['difference']:+.2f}{spread}"))
    return rows


def before_after_table(out: Path) -> PageTable:
    """Return the table of a run's page; no rows if the run is no adaptation."""
    try:
        metrics = read_json(out / SCORES) if (out / SCORES).is_file() else {}
        rows = [list(row) for row in before_after_rows(metrics)]
    except (UserError, KeyError, TypeError, ValueError):  # a report does not fail because of another file
        rows = []
    under = "± is half of the 95 % interval of the mean difference over seeds, each taken with both models"
    return PageTable(list(HEAD), rows, numbers=range(1, 4), under=under if any("±" in row[3] for row in rows) else "")


def _shown(name: str, value: float) -> str:
    return f"{value:.4f}" if name == "loss" else format_metric(name, value)


def _change(name: str, before: Json, after: Json) -> str:
    difference = after[name] - before[name]
    return f"{100 * difference:+.2f}" if name == "accuracy" else f"{difference:+.4g}"
