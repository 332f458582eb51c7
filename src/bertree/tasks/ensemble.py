"""The mean of several models' predictions on one task.

Averaged are probabilities of classes, options and tags, the numbers of a regression, and the logits of a span's first
and last token. A CRF has no probability for a word: each model has one vote. The models read the same examples, each
with its own tokenizer; only spans need the same tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.tasks.metrics import softmax
from bertree.tasks.task import Logits, Task, Unit

Rows = NDArray[np.float64]
LEAST = 1e-30  # probability whose logarithm is taken at least
AVERAGED = ("sequence", "token", "choice", "span")  # heads


class Member(NamedTuple):
    """A model's task with its own labels, the units that it has read, and its logits of each."""

    task: Task[Any]
    units: Sequence[Unit]
    logits: Sequence[Logits]


def check_ensemble(tasks: Sequence[Task[Any]]) -> None:
    """Refuse models whose predictions cannot be averaged. One model is always right."""
    first = tasks[0]
    for task in tasks[1:]:
        if (task.name, task.head, task.regression) != (first.name, first.head, first.regression):
            names = f"{first.name} ({first.head}) and {task.name} ({task.head})"
            raise UserError(f"`ensemble=True`: the models have learned different tasks: {names}")
        if task.head not in AVERAGED:
            raise UserError(f"`ensemble=True`: predictions of the head {task.head} cannot be averaged")
        if sorted(task.labels) != sorted(first.labels):
            names = " and ".join(", ".join(labels[:6]) for labels in (first.labels, task.labels))
            raise UserError(f"`ensemble=True`: the models have different labels: {names}")


def average(members: Sequence[Member]) -> list[Logits]:
    """Return logits for the units of the first member, from which its task makes the ensemble's predictions."""
    first = members[0]
    if len(members) == 1:
        return list(first.logits)
    if first.task.head == "span":
        return _mean_logits(members)
    rows = [_by_example(member) for member in members]
    means = [np.mean(of_example, 0) for of_example in zip(*rows, strict=True)]
    if not first.task.regression and not _has_votes(first):
        means = [np.log(np.maximum(mean, LEAST)) for mean in means]
    return _by_unit(means, first)


def _by_example(member: Member) -> list[Rows]:
    """Return what is averaged, a row for each row of an example, with the classes in the order of their names."""
    rows: dict[int, list[Rows]] = {}
    order = np.argsort(np.array(member.task.labels)) if member.task.labels else slice(None)
    for unit, logits in zip(member.units, member.logits, strict=True):
        rows.setdefault(unit.example, []).append(np.asarray(logits, np.float64))
    values = [np.concatenate(rows[number]) for number in sorted(rows)]
    if not member.task.regression and not _has_votes(member):
        values = [softmax(value.T).T if member.task.head == "choice" else softmax(value) for value in values]
    return [value[:, order] for value in values]


def _by_unit(means: Sequence[Rows], member: Member) -> list[Logits]:
    """Split the rows of examples into those of a member's units, with the classes in its order."""
    order = np.argsort(np.argsort(np.array(member.task.labels))) if member.task.labels else slice(None)
    taken = dict[int, int]()
    numbers = {example: place for place, example in enumerate(sorted({unit.example for unit in member.units}))}
    pieces = []
    for unit, logits in zip(member.units, member.logits, strict=True):
        start = taken.get(unit.example, 0)
        taken[unit.example] = start + len(logits)
        piece = means[numbers[unit.example]][start : start + len(logits)]
        pieces.append(piece[:, order].astype(np.float32))
    return pieces


def _mean_logits(members: Sequence[Member]) -> list[Logits]:
    """Return the mean of what models with the same tokens say of each."""
    for member in members[1:]:
        same = len(member.units) == len(members[0].units) and all(
            one.sequences[0].ids == other.sequences[0].ids and one.chosen == other.chosen
            for one, other in zip(members[0].units, member.units, strict=True)
        )
        if not same:
            raise UserError(
                "`ensemble=True`: spans are averaged by tokens, so the models need one tokenizer, stride and max_length"
            )
    return [np.mean(of_unit, 0) for of_unit in zip(*(member.logits for member in members), strict=True)]


def _has_votes(member: Member) -> bool:
    return bool(getattr(member.task, "crf", False))
