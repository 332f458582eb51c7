"""Read the metrics a run wrote (`metrics.jsonl`) as rows and columns; and, for the playground, the runs and studies
below a folder, while they may still be written.

An incomplete line is left out: a killed run ends in one. Where a run went back to a checkpoint and wrote a step
again, the later line counts.

Below a folder only files with known names are read, and no symbolic link is followed. A client names a run as
`find_runs` lists it; no part of a request is ever opened as a path. What the files hold is untrusted: it is limited in
size, and checked.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.files.formats import Json, read_json, read_text, read_toml
from bertree.run_folder import BEST_MODEL, CHECKPOINTS, ENVIRONMENT, METRICS, MODEL, RECIPE, TENSORBOARD

Floats = NDArray[np.float64]
# Fields of "train" and "eval" lines that are not metrics; every other number of a "train" line is a term of its loss.
BOOKKEEPING = frozenset(("kind", "step", "seconds", "tokens", "epoch", "phase", "parameters"))
NOT_TERMS = BOOKKEEPING | {"loss", "lr", "norm", "tokens_per_s", "waited", "skipped", "mfu", "batch_tokens"}


@dataclass
class History:
    """The lines of a run by kind, in the order of their steps."""

    train: list[Json] = field(default_factory=list)
    evaluations: list[Json] = field(default_factory=list)
    samples: list[Json] = field(default_factory=list)
    events: list[Json] = field(default_factory=list)
    end: Json | None = None

    @cached_property
    def terms(self) -> list[str]:
        """Return the names of the loss terms."""
        return _numeric(self.train, NOT_TERMS)

    @cached_property
    def scores(self) -> list[str]:
        """Return the names of the metrics of evaluations that are not losses."""
        return _numeric(self.evaluations, {*NOT_TERMS, *self.terms, "perplexity"})

    def last(self, name: str) -> float:
        """Return the newest value of a field in any line; NaN where there is none."""
        ends = [self.end] if self.end else []
        rows = [row for row in (*ends, *self.train[-1:], *self.evaluations[-1:]) if name in row]
        newest = max(rows, key=lambda row: number(row.get("step", 0)), default=None)
        return math.nan if newest is None else number(newest[name])


def read_history(path: Path) -> History:
    """Read a file of metrics."""
    history = History()
    lists = {"train": history.train, "eval": history.evaluations, "sample": history.samples, "event": history.events}
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                row = parse_row(line)
                if row is None:
                    continue
                kind, step = str(row.get("kind")), row["step"]
                if kind == "end":
                    history.end = row
                elif kind in lists:
                    _drop_repeated(lists[kind], kind, row)
                    lists[kind].append(row)
                    if history.end and step > history.end["step"]:
                        history.end = None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give the folder of a run") from None
    return history


def number(value: Any) -> float:
    """Return a value as a number; NaN for anything else."""
    if isinstance(value, float):
        return value
    try:
        return float(value) if isinstance(value, int) else math.nan
    except OverflowError:
        return math.inf


def column(rows: Sequence[Mapping[str, Any]], name: str) -> Floats:
    """Return one field of many rows; NaN where it is missing or not a finite number."""
    cells = [row.get(name) for row in rows]
    try:
        values = np.array(cells, dtype=np.float64).reshape(len(rows))
    except (TypeError, ValueError, OverflowError):  # something that is not a number
        values = np.array([number(value) for value in cells], dtype=np.float64)
    values[~np.isfinite(values)] = np.nan
    return values


def parse_row(line: str) -> Json | None:
    """Return the object of one line, if it has a step."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not math.isfinite(number(row.get("step"))):
        return None
    return row


def _drop_repeated(rows: list[Json], kind: str, row: Json) -> None:
    """Remove what a run wrote beyond the checkpoint it went back to; events happened and stay."""
    if kind == "event":
        return
    again = row["step"] if kind == "sample" else row["step"] - 0.5  # a step has many samples and one of the others
    while rows and rows[-1]["step"] > again:
        rows.pop()
    if kind == "sample":
        same = [old for old in rows[-100:] if old["step"] == row["step"] and old.get("text") == row.get("text")]
        for old in same:
            rows.remove(old)


def _numeric(rows: Sequence[Mapping[str, Any]], but: frozenset[str] | set[str]) -> list[str]:
    """Return the names of the fields that hold numbers (null: not finite), in the order in which they appear."""
    names: dict[str, None] = {}
    seen = set(but)
    for row in rows:
        if not row.keys() <= seen:
            for name, value in row.items():
                if name not in seen and (value is None or type(value) in (int, float)):
                    names[name] = None
                    seen.add(name)
    return list(names)


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
