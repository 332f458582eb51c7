"""The knowledge behind `bertree advise`, read from knowledge.toml: kinds of tasks, ways, presets, measured rows, rules.
The request to it: a task, examples and limits, with sizes and times as people write them.

The code of this package names no model, way or rule: to add one, edit the file.
"""

import math
import re
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


BYTES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
MILLISECONDS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4}
MEASURED = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+) ?([a-zµ]+)", re.IGNORECASE)
COUNTED = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:\.[0-9]+)?)([kmb]?)", re.IGNORECASE)
MOST = 1e15


def parse_measure(name: str, text: str, units: dict[str, float], example: str) -> float:
    """Read a number with its unit, such as 500MB or 20ms. The unit is required: 20 could be seconds."""
    match = MEASURED.fullmatch(text.strip())
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UserError(f"`{name}={text}`: must be a number with a unit ({', '.join(units)}), such as {example}")
    value = float(match[1]) * factor
    if not 0 < value <= MOST:
        raise UserError(f"`{name}={text}`: must be more than 0" if not value else f"`{name}={text}`: is too much")
    return value


def parse_count(name: str, text: str | int) -> int:
    """Read a whole number: 5000, 5,000, 5k, 1.5m."""
    match = COUNTED.fullmatch(str(text).strip())
    value = float(match[1].replace(",", "")) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9}[match[2].lower()] if match else -1
    if value != int(value) or not 0 <= value <= MOST:
        raise UserError(f"`{name}={text}`: must be a whole number, such as 5000 or 5k")
    return int(value)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A task with its examples and limits. An infinite limit is not set."""

    task: str  # as the user names it
    kind: str
    examples: int
    length: int  # tokens of a text, or of a pair
    pairs: int = 0
    latency_ms: float = math.inf
    memory: float = math.inf  # bytes
    card: float = math.inf  # GiB

    def describe(self) -> str:
        """Return the request as one line."""
        parts = [self.task, f"{self.examples:,} examples", f"{self.length:,} tokens a text"]
        parts += [f"{self.pairs:,} pairs"] if self.pairs else []
        parts += [f"at most {self.latency_ms:g} ms"] if math.isfinite(self.latency_ms) else []
        parts += [f"at most {self.memory / 1e6:,.0f} MB"] if math.isfinite(self.memory) else []
        parts += [f"a card of {self.card:g} GiB"] if math.isfinite(self.card) else []
        return ", ".join(parts)


def read_request(
    facts: Knowledge,
    task: str,
    examples: str | int,
    length: int,
    latency: str | None,
    memory: str | None,
    pairs: str | int | None,
    card: float | None,
) -> Request:
    """Return the request from the arguments of `advise`; refuse contradictions."""
    kind = facts.kind(task)
    entry = facts.tasks[kind]
    request = Request(
        task=task,
        kind=kind,
        examples=parse_count("examples", examples),
        length=length,
        pairs=0 if pairs is None else parse_count("pairs", pairs),
        latency_ms=math.inf if latency is None else parse_measure("latency", latency, MILLISECONDS, "20ms"),
        memory=math.inf if memory is None else parse_measure("memory", memory, BYTES, "500MB"),
        card=math.inf if card is None else card,
    )
    if length < 1 or not request.card > 0:
        raise UserError(f"`length={length}`, `card={card}`: must be more than 0")
    if request.pairs and not entry.compares:
        comparing = ", ".join(name for name, other in facts.tasks.items() if other.compares)
        raise UserError(
            f"`pairs={pairs}`: {task} compares no texts; leave it out, or take a task that does ({comparing})"
        )
    if entry.labeled and not request.examples:
        raise UserError(f"`examples={examples}`: {task} cannot be learned without labeled examples; label some first")
    return request
