"""Average the predictions of several models on one task, for `evaluate(ensemble=True)`.

The mean is taken over the probabilities of classes, options and tags, the numbers of a regression, and the logits of a
span's first and last token. A CRF gives no probabilities, so each of its models has one vote for each word. All models
read the same examples, each with its own tokenizer; only spans need the same tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.tasks.metrics import softmax
from bertree.tasks.task import Logits, Task, Unit

Rows = NDArray[np.float64]
SMALLEST = 1e-30  # replaces smaller probabilities, so that the logarithm is finite
AVERAGED = ("sequence", "token", "choice", "span")  # heads whose predictions can be averaged


class Member(NamedTuple):
    """A model of the ensemble: the task with its labels, the units it reads, and its logits for each of them."""

    task: Task[Any]
    units: Sequence[Unit]
    logits: Sequence[Logits]


def check_ensemble(tasks: Sequence[Task[Any]]) -> None:
    """Refuse models whose predictions cannot be averaged."""
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
        means = [np.log(np.maximum(mean, SMALLEST)) for mean in means]
    return _by_unit(means, first)


def _by_example(member: Member) -> list[Rows]:
    """Return the rows of each example to average: probabilities, numbers or votes, with classes sorted by name."""
    rows: dict[int, list[Rows]] = {}
    order = np.argsort(np.array(member.task.labels)) if member.task.labels else slice(None)
    for unit, logits in zip(member.units, member.logits, strict=True):
        rows.setdefault(unit.example, []).append(np.asarray(logits, np.float64))
    values = [np.concatenate(rows[number]) for number in sorted(rows)]
    if not member.task.regression and not _has_votes(member):
        values = [softmax(value.T).T if member.task.head == "choice" else softmax(value) for value in values]
    return [value[:, order] for value in values]


def _by_unit(means: Sequence[Rows], member: Member) -> list[Logits]:
    """Split the rows of each example by the member's units, and put the classes into the member's order."""
    order = np.argsort(np.argsort(np.array(member.task.labels))) if member.task.labels else slice(None)
    used_rows = dict[int, int]()
    numbers = {example: place for place, example in enumerate(sorted({unit.example for unit in member.units}))}
    pieces = []
    for unit, logits in zip(member.units, member.logits, strict=True):
        start = used_rows.get(unit.example, 0)
        used_rows[unit.example] = start + len(logits)
        piece = means[numbers[unit.example]][start : start + len(logits)]
        pieces.append(piece[:, order].astype(np.float32))
    return pieces


def _mean_logits(members: Sequence[Member]) -> list[Logits]:
    """Average the logits of models whose units have the same tokens."""
    for member in members[1:]:
        same_tokens = len(member.units) == len(members[0].units) and all(
            first.sequences[0].ids == unit.sequences[0].ids and first.chosen == unit.chosen
            for first, unit in zip(members[0].units, member.units, strict=True)
        )
        if not same_tokens:
            raise UserError(
                "`ensemble=True`: spans are averaged by tokens, so the models need one tokenizer, stride and max_length"
            )
    return [np.mean(of_unit, 0) for of_unit in zip(*(member.logits for member in members), strict=True)]


def _has_votes(member: Member) -> bool:
    return bool(getattr(member.task, "crf", False))
