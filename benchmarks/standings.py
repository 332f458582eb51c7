"""Rows of scores, made in several runs and on several machines, as one table: models, tasks, averages, shares."""

import contextlib
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.common import table
from bertree.files.formats import Json

KEY = ("task", "model", "seed", "weights", "settings", "train")  # what makes a run that run


def key(row: Json) -> str:
    """Two rows of one key are the same run."""
    return json.dumps([row.get(name) for name in KEY])


def _run(row: Json) -> tuple[str, str, int]:
    return row["task"], row["model"], row["seed"]


def rows_in(paths: Iterable[Path]) -> list[Json]:
    """What was done before; a line that was cut off is left out."""
    found = []
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
    return found


def summary(rows: Sequence[Json], tasks: Sequence[str], reference: str | None) -> str:
    """The table: a model a row, mean and deviation over seeds, and what each keeps of the reference's average.

    Of several rows for one task, model and seed the last counts: others are of older weights or settings.
    """
    done = list({_run(row): row for row in rows if "score" in row}.values())
    tasks = [task for task in tasks if any(row["task"] == task for row in done)]
    metrics = {row["task"]: row["metric"] for row in done}
    averages, lines = dict[str, float](), list[list[object]]()
    for model in dict.fromkeys(row["model"] for row in done):
        mine = [row for row in done if row["model"] == model]
        means, cells = list[float](), list[str]()
        for task in tasks:
            some = [row for row in mine if row["task"] == task]
            means += [statistics.mean(100 * row["score"] for row in some)] if some else []
            cells.append(_cell(some))
        if len(means) == len(tasks):  # the average of fewer tasks is another figure
            averages[model] = statistics.mean(means)
        lines.append([model, f"{max(row['parameters'] for row in mine) / 1e6:.1f} M", *cells])
    for line in lines:
        value = averages.get(str(line[0]))
        line.append("-" if value is None else f"{value:.1f}")
        if reference:
            whole = averages.get(reference)
            line.append(f"{value / whole:.1%}" if value is not None and whole else "-")
    head = ["model", "parameters", *(f"{task} ({metrics[task]})" for task in tasks), "average"]
    head += [f"of {reference}'s"] if reference else []
    remarks = [*_sizes(done, tasks), *_settings(done), *_failures(rows, done)]
    return f"{table(head, lines)}\n\n" + "\n".join(f"- {line}" for line in remarks) + "\n"


def _cell(some: Sequence[Json]) -> str:
    if not some:
        return "-"
    values = [100 * row["score"] for row in some]
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}{'†' if any('degenerate' in row for row in some) else ''}"


def _sizes(done: Sequence[Json], tasks: Sequence[str]) -> list[str]:
    """How many examples, and where they are not what one would expect."""
    lines = []
    for task in tasks:
        some = [row for row in done if row["task"] == task]
        sizes = " or ".join(sorted({f"{row['train']:,} to learn from, {row['dev']:,} to measure on" for row in some}))
        notes = sorted({f" ({row['note']})" for row in some if "note" in row})
        lines.append(f"{task}: {sizes}{''.join(notes)}")
    return lines


def _settings(done: Sequence[Json]) -> list[str]:
    """How each model was trained, how often and where."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in done):
        some = [row for row in done if row["model"] == model]
        tuned = [row for row in some if "lr" in row]
        how = {f"{row['epochs']:g} epochs, batch {row['batch']}, rate {row['lr']:g}" for row in tuned}
        seeds = len({row["seed"] for row in some})
        where = sorted({row["where"] for row in some if "where" in row})
        count = f"{seeds} seed{'s' if seeds > 1 else ''}"
        lines.append("; ".join([f"{model}: {count}", *(sorted(how) or ["the best of its heads on dev"]), *where]))
    if any("degenerate" in row for row in done):
        lines.append("† a seed says the same for every example")
    return lines


def _failures(rows: Sequence[Json], done: Sequence[Json]) -> list[str]:
    """Runs that never came to their end."""
    finished = set(map(_run, done))
    failed = {_run(row): row["error"] for row in rows if "error" in row and _run(row) not in finished}
    return [f"failed: {task}, {model}, seed {seed}: {reason}" for (task, model, seed), reason in failed.items()]
