"""Tasks by name, and the task of a model that was trained for one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bertree.errors import UserError, suggest
from bertree.files import Json
from bertree.tasks import glue
from bertree.tasks.choice.task import ChoiceTask
from bertree.tasks.options import configure_task, task_options
from bertree.tasks.squad.task import SquadTask
from bertree.tasks.tagging.task import TaggingTask
from bertree.tasks.task import Task
from bertree.tasks.text import text_task

OWN_DATA = ("classification", "regression", "tagging", "choice")
COLUMNS = ("text", "pair", "label")
NAMELESS = re.compile(r"(LABEL_)?\d+")  # what stands for a label that has no name


def task_names() -> list[str]:
    """Every task there is."""
    return [*glue.TEXT_TASKS, "squad", "squad2", "swag", "hellaswag", "race", "ner", *OWN_DATA]


def make_task(name: str, text: str | None = None, pair: str | None = None, label: str | None = None) -> Task[Any]:
    """A task; the columns are those of one's own data."""
    plain = {re.sub(r"[^a-z0-9]", "", known): known for known in task_names()} | {
        "conll2003": "ner",
        "squad11": "squad",
    }
    found = plain.get(re.sub(r"[^a-z0-9]", "", name.lower()), name.lower())
    if found == "classification" or found == "regression":
        return text_task(found, text or "text", pair, label or "label")
    if found in ("ner", "tagging"):
        return TaggingTask(found, text=text, label=label)
    if given := next(
        (option for option, value in (("--text", text), ("--pair", pair), ("--label", label)) if value), None
    ):
        raise UserError(f"{given}: {name} has its own columns; name yours with the tasks {', '.join(OWN_DATA[:3])}")
    if found in ("squad", "squad2"):
        return SquadTask(found)
    if found in ("swag", "hellaswag", "race", "choice"):
        return ChoiceTask(found)
    if found in glue.TEXT_TASKS:
        return glue.glue_task(found)
    raise UserError(f"{name}: unknown task, {suggest(name, task_names())}")


def task_of_model(
    heads: Mapping[str, int],
    labels: Sequence[str],
    known: Json,
    crf: bool,
    name: str | None = None,
    columns: Mapping[str, str | None] | None = None,
) -> Task[Any]:
    """The task a model answers: the one of that name, or the one its folder or its head says.

    `heads` holds their classes, `known` what the folder remembers. Columns and settings that are not given are those
    it was trained with; its classes are in the model's order. Refused where the two do not fit."""
    head = next((head for head in ("sequence", "token", "span", "choice") if head in heads), None)
    if head is None and name is None:
        raise UserError("this model has no task head, so it predicts nothing; fine-tune it first (bertree finetune)")
    text = "classification" if heads.get("sequence") != 1 else "regression"
    usual = {"token": "tagging", "span": "squad", "choice": "choice"}.get(head or "", text)
    task = make_task(name or str(known.get("name") or usual))
    mine = known if known.get("name") == task.name else {}
    if task.name in OWN_DATA:
        task = make_task(task.name, **{key: (columns or {}).get(key) or _text(mine.get(key)) for key in COLUMNS})
    elif columns and any(columns.values()):
        task = make_task(task.name, **columns)
    task = configure_task(task, {key: value for key, value in mine.items() if key in task_options(task)})
    if hasattr(task, "crf"):
        task = replace(task, crf=crf)  # type: ignore[call-arg]
    return with_model_labels(task, heads, labels)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def with_model_labels(task: Task[Any], heads: Mapping[str, int], labels: Sequence[str]) -> Task[Any]:
    """Return the task with the classes in the order of the model's head; refuse a model that does not fit."""
    if task.head not in heads:
        there = f"its heads: {', '.join(heads)}" if heads else "it has none"
        raise UserError(f"{task.name} needs a model with a '{task.head}' head, but {there}; fine-tune it first")
    classes = heads[task.head]
    if task.head in ("span", "choice"):
        return task
    if task.regression:
        if classes != 1:
            raise UserError(f"{task.name} needs one score, but the model's head has {classes} classes")
        return task
    # transformers does not write down the names of two classes that have none.
    named = list(labels) if len(labels) == classes else [f"LABEL_{number}" for number in range(classes)]
    if not task.labels:
        return task.with_labels(named)
    aliases = {other.lower(): label for other, label in getattr(task, "aliases", {}).items()}
    aliases |= {label.lower(): label for label in task.labels}
    meant = [aliases.get(label.lower()) for label in named]
    if set(meant) == set(task.labels):
        return task.with_labels([label for label in meant if label is not None])
    nameless = all(NAMELESS.fullmatch(label) for label in named) or all(label.isdecimal() for label in task.labels)
    if nameless and classes == len(task.labels):
        return task
    raise UserError(
        f"{task.name} has the labels {', '.join(task.labels)}, but the model's head has {', '.join(named[:20])}"
    )
