"""Tasks by name, and the task of a model that was trained for one."""

import re
from collections.abc import Mapping, Sequence
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


def names() -> list[str]:
    """Every task there is."""
    return [*glue.TEXT_TASKS, "squad", "squad2", "swag", "hellaswag", "race", "ner", *OWN]


def make(name: str, text: str | None = None, pair: str | None = None, label: str | None = None) -> Task[Any]:
    """A task; the columns are those of one's own data."""
    plain = {re.sub(r"[^a-z0-9]", "", known): known for known in names()} | {"conll2003": "ner", "squad11": "squad"}
    found = plain.get(re.sub(r"[^a-z0-9]", "", name.lower()), name.lower())
    if found == "classification" or found == "regression":
        return text_task(found, text or "text", pair, label or "label")
    if found in ("ner", "tagging"):
        return TaggingTask(found, text=text, label=label)
    if given := next(
        (option for option, value in (("--text", text), ("--pair", pair), ("--label", label)) if value), None
    ):
        raise UserError(f"{given}: {name} has its own columns; name yours with the tasks {', '.join(OWN[:3])}")
    if found in ("squad", "squad2"):
        return SquadTask(found)
    if found in ("swag", "hellaswag", "race", "choice"):
        return ChoiceTask(found)
    if found in glue.TEXT_TASKS:
        return glue.make(found)
    raise UserError(f"{name}: unknown task, {suggest(name, names())}")


def remembered(task: Task[Any], known: Json) -> Task[Any]:
    """The task with what a model folder remembers of it."""
    mine = {key: value for key, value in known.items() if key in options(task) and key != "max_length"}
    return configured(task, mine)


def of_model(heads: Mapping[str, int], labels: Sequence[str], known: Json) -> Task[Any]:
    """The task a model was trained for, by what its folder says or by its head. `heads`: their classes."""
    head = next((head for head in ("sequence", "token", "span", "choice") if head in heads), None)
    if head is None:
        raise UserError("this model has no task head, so it predicts nothing; fine-tune it first (bertree finetune)")
    text = "classification" if heads[head] > 1 else "regression"
    name = str(known.get("name") or {"token": "tagging", "span": "squad", "choice": "choice"}.get(head, text))
    if name in OWN:
        columns = {key: str(known[key]) for key in ("text", "pair", "label") if known.get(key) is not None}
        task = make(name, **columns)
    else:
        task = make(name)
    return with_model_labels(remembered(task, known), heads, labels, "this model")


def with_model_labels(task: Task[Any], heads: Mapping[str, int], labels: Sequence[str], model: str) -> Task[Any]:
    """The task with its classes in the order of the model's; refused where they do not fit."""
    if task.head not in heads:
        there = f"its heads: {', '.join(heads)}" if heads else "it has none"
        raise UserError(f"{model}: {task.name} needs a '{task.head}' head, but {there}; fine-tune it first")
    if task.head in ("span", "choice"):
        return task
    classes = heads[task.head]
    if task.regression:
        if classes != 1:
            raise UserError(f"{model}: {task.name} needs one score, but the model's head has {classes} classes")
        return task
    if not task.labels:
        # transformers does not write down the names of two classes that have none.
        named = len(labels) == classes
        return task.with_labels(labels if named else [f"LABEL_{number}" for number in range(classes)])
    spelled = {label.lower(): label for label in task.labels}
    if {label.lower() for label in labels} == set(spelled):
        return task.with_labels([spelled[label.lower()] for label in labels])
    if len(task.labels) != classes:
        raise UserError(
            f"{model}: {task.name} has the {len(task.labels)} labels {', '.join(task.labels)}, but the model's head "
            f"has {classes}{': ' + ', '.join(labels) if labels else ''}"
        )
    return task
