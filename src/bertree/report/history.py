"""Read the metrics a run wrote (`metrics.jsonl`) as rows and columns.

An incomplete line is left out: a killed run ends in one. Where a run went back to a checkpoint and wrote a step
again, the later line counts.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.files.formats import Json

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
