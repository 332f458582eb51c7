"""Runs and studies below a folder, read for the playground while they may still be written.

Only files with known names are read, and no symbolic link is followed. A client names a run as `find_runs` lists it;
no part of a request is ever opened as a path. What the files hold is untrusted: it is limited in size, and checked.
"""

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bertree.errors import UserError
from bertree.files.formats import Json, read_json, read_text, read_toml
from bertree.report.history import column, number, parse_row, read_history
from bertree.run_folder import BEST_MODEL, CHECKPOINTS, ENVIRONMENT, METRICS, MODEL, RECIPE, TENSORBOARD

PLAN, TABLE, RESULT = "plan.json", "table.md", "result.json"  # of a study
STEP_FOLDER = re.compile(r"steps/\w[\w.-]*")
SKIPPED = (MODEL, BEST_MODEL, CHECKPOINTS, TENSORBOARD)
DEEPEST, MOST_FOLDERS, MOST_RUNS = 6, 10_000, 1000
MOST_BYTES = 1 << 28  # of a file
POINTS = 400  # of a curve
TAIL = 1 << 14  # bytes at the end of a file of metrics that are read for a list


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run or of a study, and the name by which a client asks for it."""

    name: str
    path: Path
    kind: str  # run or study


def find_runs(name: str, root: Path) -> list[RunFolder]:
    """Return the runs and studies in a folder and below it, sorted by name."""
    folders = []
    for path in _folders(root):
        kind = "run" if _is_file(path / METRICS) else "study" if _is_file(path / PLAN) else ""
        if kind:
            folders.append(RunFolder("/".join((name, *path.relative_to(root).parts)), path, kind))
        if len(folders) == MOST_RUNS:
            break
    return sorted(folders, key=lambda run: run.name)


def _folders(root: Path) -> Iterator[Path]:
    """Yield a folder and those below it, nearest first."""
    waiting = [root]
    for count, folder in enumerate(waiting):
        yield folder
        if len(folder.parts) - len(root.parts) == DEEPEST or count == MOST_FOLDERS:
            continue
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        waiting += [folder / name for name in sorted(names) if name not in SKIPPED and not name.startswith(".")]


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _check_size(path: Path) -> os.stat_result:
    state = path.stat()
    if path.is_symlink() or state.st_size > MOST_BYTES:
        raise UserError(f"{path}: is a link, or larger than {MOST_BYTES:,} bytes")
    return state


def describe(run: RunFolder) -> Json:
    """Return a line of the list: when a run was last written (seconds since 1970), its step, how many are planned, its
    loss, whether it has ended; of a study, how many of its steps are done."""
    line: Json = {"name": run.name, "kind": run.kind}
    if run.kind == "study":
        done = [step["done"] for step in study_steps(run.path)]
        changed = (run.path / PLAN).stat().st_mtime
        return line | {"changed": changed, "ended": all(done), "step": sum(done), "steps": len(done), "loss": None}
    with (run.path / METRICS).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        lines = file.read().decode("utf-8", "replace").splitlines()
        changed = os.fstat(file.fileno()).st_mtime
    rows = [row for text in lines if (row := parse_row(text)) is not None]
    training = [row.get("loss") for row in rows if row.get("kind") == "train"]
    losses = [value for loss in training if math.isfinite(value := number(loss))]
    ended = any(row.get("kind") == "end" for row in rows[-3:])
    step = max((int(row["step"]) for row in rows), default=0)
    last = losses[-1] if losses else None
    return line | {"changed": changed, "ended": ended, "step": step, "steps": _planned(run.path), "loss": last}


def _planned(path: Path) -> int | None:
    """Return the steps that a run's recipe plans, if it says so."""
    try:
        phases = read_toml(path / RECIPE).get("phases", [])
        return sum(phase["steps"] for phase in phases) or None
    except (UserError, OSError, TypeError, KeyError):
        return None


def read_run(path: Path) -> Json:
    """Return the curves of a run, thinned, and what it says about itself."""
    state = _check_size(path / METRICS)
    return _read_run(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=16)
def _read_run(path: Path, changed: int, size: int) -> Json:
    history = read_history(path / METRICS)
    training = ["loss", *(term for term in history.terms if len(history.terms) > 1), "norm", "lr", "tokens_per_s"]
    scores = list(dict.fromkeys(["loss", *history.terms, "perplexity", *history.scores]))
    curves = [_curve("training", name, history.train) for name in training]
    curves += [_curve("evaluation", name, history.evaluations) for name in scores]
    try:
        environment = read_json(path / ENVIRONMENT)
    except (UserError, OSError):
        environment = {}
    return {
        "curves": [curve for curve in curves if curve["values"]],
        "events": [{"step": int(row["step"]), "text": str(row.get("text", ""))[:200]} for row in history.events[-50:]],
        "facts": {name: environment[name] for name in ("command", "device", "torch") if name in environment},
    }


def _curve(kind: str, name: str, rows: Sequence[Json]) -> Json:
    steps, values = column(rows, "step"), column(rows, name)
    finite = values == values  # not NaN
    steps, values = steps[finite], values[finite]
    stride = max(1, math.ceil(len(values) / POINTS))
    first = (len(values) - 1) % stride if len(values) else 0  # so that the newest is there
    return {
        "kind": kind,
        "name": name,
        "steps": steps[first::stride].tolist(),
        "values": [float(f"{value:.6g}") for value in values[first::stride]],
    }


def study_steps(path: Path) -> list[dict[str, Any]]:
    """Return the steps of a study by its plan, each with whether it is done."""
    _check_size(path / PLAN)
    steps = read_json(path / PLAN).get("steps")
    names = ("cell", "seed", "step", "do", "folder")
    if not isinstance(steps, list) or not all(isinstance(step, dict) and set(names) <= step.keys() for step in steps):
        raise UserError(f"{path / PLAN}: has no list of steps")
    copied = not (path / "steps").is_dir()  # a copy without the runs: everything that it has was computed
    shown = []
    for step in steps[:MOST_FOLDERS]:
        folder = str(step["folder"])
        done = copied or (STEP_FOLDER.fullmatch(folder) is not None and _is_file(path / folder / RESULT))
        shown.append({name: str(step[name])[:200] for name in names[:4]} | {"done": done})
    return shown


def read_study(path: Path) -> Json:
    """Return the table of a study (Markdown; empty while there is none yet) and its steps."""
    table = ""
    if _is_file(path / TABLE):
        _check_size(path / TABLE)
        table = read_text(path / TABLE)
    plan = read_json(path / PLAN)
    return {
        "study": str(plan.get("study", "")),
        "size": str(plan.get("size", "")),
        "table": table,
        "steps": study_steps(path),
    }
