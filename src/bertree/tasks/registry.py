"""Tasks by name, and the task of a model that was trained for one."""

import re
from collections.abc import Sequence
from typing import Any

from bertree.errors import UserError, suggest
from bertree.files import Json
from bertree.tasks import glue
from bertree.tasks.choice import ChoiceTask
from bertree.tasks.config import configured, options
from bertree.tasks.squad import SquadTask
from bertree.tasks.tagging import TaggingTask
from bertree.tasks.task import Task
from bertree.tasks.text import text_task

OWN = ("classification", "regression", "tagging", "choice")
LENGTHS = {"race": 512, "tagging": 256, "ner": 256, "choice": 512}


def names() -> list[str]:
    """Every task there is."""
    return [*glue.TEXT_TASKS, "squad", "squad2", "swag", "hellaswag", "race", "ner", *OWN]


def make(name: str, text: str | None = None, pair: str | None = None, label: str | None = None) -> Task[Any]:
    """A task; the columns are those of one's own data."""
    plain = {re.sub(r"[^a-z0-9]", "", known): known for known in names()} | {"conll2003": "ner", "squad11": "squad"}
    found = plain.get(re.sub(r"[^a-z0-9]", "", name.lower()), name.lower())
    longest = {"max_length": LENGTHS[found]} if found in LENGTHS else {}
    if found in ("classification", "regression"):
        return text_task(found, text or "text", pair, label or "label")
    if found in ("ner", "tagging"):
        return TaggingTask(found, text=text, label=label, **longest)
    if given := next((option for option, value in (("--text", text), ("--pair", pair), ("--label", label)) if value), None):
        raise UserError(f"{given}: {name} has its own columns; name yours with the tasks {', '.join(OWN[:3])}")
    if found in ("squad", "squad2"):
        return SquadTask(found)
    if found in ("swag", "hellaswag", "race", "choice"):
        return ChoiceTask(found, **longest)
    if found in glue.TEXT_TASKS:
        return glue.make(found)
    raise UserError(f"{name}: unknown task, {suggest(name, names())}")


def remembered(task: Task[Any], known: Json) -> Task[Any]:
    """The task with what a model folder remembers of it."""
    mine = {key: value for key, value in known.items() if key in options(task) and key != "max_length"}
    return configured(task, mine)


def of_model(heads: Sequence[str], labels: Sequence[str], known: Json, classes: int) -> Task[Any]:
    """The task a model was trained for, by what its folder says or by its head."""
    head = next((head for head in ("sequence", "token", "span", "choice") if head in heads), None)
    if head is None:
        raise UserError("this model has no task head, so it predicts nothing; fine-tune it first (bertree finetune)")
    own = {"token": "tagging", "span": "squad", "choice": "choice"}.get(head, "classification" if classes > 1 else "regression")
    name = str(known.get("name") or own)
    task = make(name) if name in names() else make(own)
    return with_model_labels(remembered(task, known), heads, labels, classes, name)


def with_model_labels(
    task: Task[Any], heads: Sequence[str], labels: Sequence[str], classes: int, model: str
) -> Task[Any]:
    """The task with its classes in the order of the model's; refused where they do not fit."""
    if task.head not in heads:
        there = f"it has {', '.join(heads)}" if heads else "it has none"
        raise UserError(f"{model}: {task.name} needs a model with a '{task.head}' head, but {there}; fine-tune it first")
    if task.head in ("span", "choice"):
        return task
    if task.regression or not task.labels:
        if task.regression and classes != 1:
            raise UserError(f"{model}: {task.name} needs one score, but the model's head has {classes} classes")
        return task if task.regression else task.with_labels(labels)
    if {label.lower() for label in labels} == {label.lower() for label in task.labels}:
        spelled = {label.lower(): label for label in task.labels}
        return task.with_labels([spelled[label.lower()] for label in labels])
    if len(task.labels) != classes:
        raise UserError(
            f"{model}: {task.name} has the {len(task.labels)} labels {', '.join(task.labels)}, but the model's head "
            f"has {classes}: {', '.join(labels)}"
        )
    return task
