"""Published scores of the family and its rivals, each with paper and table (published.toml)."""

from functools import cache
from pathlib import Path

from bertree.errors import UserError
from bertree.files.formats import read_toml
from bertree.report.comparison import PublishedRow

FILE = Path(__file__).with_suffix(".toml")


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """Return all rows, in the order of the file."""
    content = read_toml(FILE)
    rows = []
    for group in content["groups"]:
        source = f"{content['papers'][group['paper']]}, {group['table']}"
        for row in group["rows"]:
            scores = {name: float(value) for name, value in row.items() if name != "system"}
            about = {"benchmark": group["benchmark"], "split": group["split"], "note": group.get("note", "")}
            rows.append(PublishedRow(system=row["system"], scores=scores, source=source, **about))
    return tuple(rows)


def published_of_benchmark(benchmark: str) -> tuple[PublishedRow, ...]:
    """Return the rows of a benchmark."""
    return tuple(row for row in published_rows() if row.benchmark == benchmark)


def published_of_task(task: str) -> tuple[PublishedRow, ...]:
    """Return every row with scores on a task, such as exact match and F1 of `squad`."""
    rows = []
    for row in published_rows():
        scores = {name: value for name, value in row.scores.items() if name == task or name.startswith(f"{task}-")}
        if scores:
            rows.append(PublishedRow(row.system, scores, row.source, row.benchmark, row.split, row.note))
    if not rows:
        raise UserError(f"`published=True`: there are no published scores on {task}")
    return tuple(rows)
