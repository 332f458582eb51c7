"""The knowledge behind `bertree advise`, read from knowledge.toml: kinds of tasks, ways, presets, measured rows, rules.

The code of this package names no model, way or rule: to add one, edit the file.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np

from bertree.config.settings import OneOf, read
from bertree.errors import UserError, suggest
from bertree.files.formats import read_toml

FILE = Path(__file__).with_suffix(".toml")
VERDICTS = ("holds", "contradicted", "unresolved", "untested")


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """What a user wants to know of texts, and how the verbs name it."""

    about: str
    verb: str  # the task of `bertree finetune`
    names: tuple[str, ...]  # published tasks of this kind
    metric: str  # of the scores in the rows
    data: str  # name of a file, for commands
    columns: tuple[str, ...]
    labeled: bool  # cannot be done without labeled examples
    compares: bool = False  # texts are compared with each other


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way from a model to answers."""

    name: str
    tasks: tuple[str, ...]
    title: str
    commands: tuple[str, ...]
    student: str = ""  # what is run in the end: half of the model, or a preset; "": the model itself
    least: int = 0  # examples
    most: int = 0  # 0: no limit
    passes: int = 1  # of the model for one answer
    trains: bool = False  # the model itself


@dataclass(frozen=True)
class Scored:
    """What a model scored with a number of examples, in percent."""

    model: str
    examples: int
    score: float


@dataclass(frozen=True, kw_only=True)
class MeasuredRows:
    """Scores of models on the reference task of a kind, in one way, from one source."""

    task: str
    way: str
    source: str
    scores: tuple[Scored, ...]
    published: bool = False


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """When a rule applies. Conditions that are not set hold."""

    tasks: tuple[str, ...] = ()
    ways: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    examples_below: int = 0
    pairs_above: int = 0
    length_above: int = 0
    memory_below_mb: float = 0.0
    latency_below: float = 0.0  # ms


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A piece of advice with its source, and what our own studies say about it."""

    name: str
    text: str
    source: str
    ours: Annotated[str, OneOf(VERDICTS)]
    figures: str
    when: Conditions
    points: float = 0.0
    refuse: bool = False


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """The epochs that commands set, up to a number of examples."""

    most: int
    epochs: int


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """All of knowledge.toml; the file explains the fields."""

    base: str
    tie_points: float
    reach: float
    timed_longest: float
    batch: int
    card_share: float
    epochs: tuple[Epochs, ...]
    tasks: Mapping[str, TaskKind]
    ways: tuple[Way, ...]
    members: Mapping[str, str]
    sizes: Mapping[str, float]
    rows: tuple[MeasuredRows, ...]
    rules: tuple[Rule, ...]

    def kind(self, task: str) -> str:
        """Return the kind of a task: its own name, or that of a task of `bertree finetune`."""
        names = {name: kind for kind, entry in self.tasks.items() for name in (kind, *entry.names)}
        if task not in names:
            raise UserError(f"`task={task}`: {suggest(task, names)}")
        return names[task]

    def scores(self, task: str, way: str, model: str) -> list[tuple[Scored, MeasuredRows]]:
        """Return the rows of a model in a way, by the number of examples; of two with the same number the last."""
        every = {
            row.examples: (row, rows)
            for rows in self.rows
            for row in rows.scores
            if (rows.task, rows.way, row.model) == (task, way, model)
        }
        return [every[examples] for examples in sorted(every)]

    def curve(self, task: str, way: str, examples: int) -> float | None:
        """Return the base model's score in a way with so many examples, between its rows by the logarithm of their
        number and outside of them as in the nearest row; None without rows, and far below the first."""
        rows = [row for row, _ in self.scores(task, way, self.base)]
        if not rows or examples * self.reach < rows[0].examples:
            return None
        sizes = [math.log(max(1, row.examples)) for row in rows]
        return float(np.interp(math.log(max(1, examples)), sizes, [row.score for row in rows]))


@cache
def knowledge() -> Knowledge:
    """Return what knowledge.toml says."""
    return read(Knowledge, read_toml(FILE), FILE.name)
