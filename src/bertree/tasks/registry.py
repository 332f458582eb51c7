"""Tasks by name: those of bertree, those that users register, and the task that a model was fine-tuned for.

Importing this module does not import torch, so that the command line's help is fast.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.tasks import glue
from bertree.tasks.choice import ChoiceTask
from bertree.tasks.files import normalize_name
from bertree.tasks.squad.task import SquadTask
from bertree.tasks.tagging.task import TaggingTask
from bertree.tasks.task import Task, configure_task, task_options
from bertree.tasks.text import TextTask, text_task

COLUMNS = ("text", "pair", "label")
DESCRIPTION = "bertree.toml"  # of a model folder, where its task is described
NAMELESS = re.compile(r"(LABEL_)?\d+")  # a label without a name
Registered = TypeVar("Registered", bound="Task[Any] | Callable[..., Task[Any]]")


@dataclass(frozen=True)
class TaskEntry:
    """A known task: how it is made, and its description for help texts."""

    task: Task[Any]  # with the default columns
    make: Callable[..., Task[Any]]
    columns: tuple[str, ...] = ()  # columns that the user may name
    own_data: bool = False  # for the user's own files, not for a published data set
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name on the command line and in model folders."""
        return self.task.name

    @property
    def kind(self) -> str:
        """The kind of problem."""
        return "regression" if self.task.regression else self.task.kind


TASKS: dict[str, TaskEntry] = {}


def register_task(task: Registered, *, own_data: bool = False, aliases: Sequence[str] = ()) -> Registered:
    """Make a task known by its name to `finetune`, `evaluate` and `predict` in this process. Works as a decorator.

    `task` is a task, a subclass of one (its attributes are defaults: `name = "mail"`), or a function that makes one. If
    the function or class has the parameters text, pair or label, users may name these columns."""
    title = getattr(task, "__name__", str(task))
    make: Callable[..., Any] = (lambda: task) if isinstance(task, Task) else task
    if isinstance(task, type) and issubclass(task, Task):
        make = _with_defaults(task)
    try:
        instance = make()
    except TypeError as error:
        raise UserError(f"{title}: cannot be created without arguments ({error})") from None
    if not isinstance(instance, Task) or not normalize_name(instance.name):
        raise UserError(f"{title}: must be, or return, a task with a name")
    if instance.name in TASKS and type(TASKS[instance.name].task).__module__.startswith("bertree."):
        raise UserError(f"{instance.name}: there is such a task already; choose another name")
    parameters = inspect.signature(make).parameters
    columns = tuple(column for column in COLUMNS if column in parameters)
    TASKS[instance.name] = TaskEntry(
        task=instance, make=make, columns=columns, own_data=own_data, aliases=tuple(aliases)
    )
    return task


def _with_defaults(kind: type[Task[Any]]) -> type[Task[Any]]:
    """Turn plain attributes of a class (`name = "mail"`) into defaults of the fields it inherits."""
    if "__dataclass_params__" in vars(kind):
        return kind
    hints = {base.name: base.type for base in fields(kind)}
    for name in [name for name in vars(kind) if name in hints]:
        kind.__annotations__ = {**vars(kind).get("__annotations__", {}), name: hints[name]}
        value = vars(kind)[name]
        if isinstance(value, dict | list | set):
            setattr(kind, name, field(default_factory=value.copy))
    return dataclass(frozen=True)(kind)


def task_names() -> list[str]:
    """Return the name of every known task."""
    return list(TASKS)


def task_help() -> str:
    """Return the names of all tasks and what they predict, for the command line."""
    published, own = (
        "; ".join(f"{entry.name} ({entry.task.about})" if entry.task.about else entry.name for entry in entries)
        for entries in (
            [entry for entry in TASKS.values() if not entry.own_data],
            [entry for entry in TASKS.values() if entry.own_data],
        )
    )
    return f"{published}. For your own data: {own}."


def make_task(name: str, text: str | None = None, pair: str | None = None, label: str | None = None) -> Task[Any]:
    """Return the task of a name; `text`, `pair` and `label` are columns of the user's own data."""
    by_name = {normalize_name(alias): entry for entry in TASKS.values() for alias in (entry.name, *entry.aliases)}
    entry = by_name.get(normalize_name(name))
    if entry is None:
        raise UserError(f"{name}: unknown task, {suggest(name, task_names())}")
    columns = {key: value for key, value in zip(COLUMNS, (text, pair, label), strict=True) if value}
    for column in columns:
        if column not in entry.columns:
            own = ", ".join(e.name for e in TASKS.values() if e.own_data and column in e.columns)
            raise UserError(f"`{column}`: {name} has its own columns; name yours with the tasks {own}")
    return entry.make(**columns)


def task_of_model(
    heads: Mapping[str, int],
    labels: Sequence[str],
    stored: Json,
    crf: bool,
    name: str | None = None,
    columns: Mapping[str, str | None] | None = None,
) -> Task[Any]:
    """Return the task of that name, or the one a model was fine-tuned for, with the model's labels.

    `heads` maps the model's heads to their classes, `stored` are the settings of the task in its folder. Columns and
    settings default to those it was trained with. Refuse a task that does not fit the model."""
    from bertree.objectives.supervised import HEAD_KINDS

    head = next((kind for kind in HEAD_KINDS.values() if kind.default_task and kind.name in heads), None)
    if head is None and name is None:
        raise UserError("this model has no task head, so it predicts nothing; fine-tune it first (bertree finetune)")
    default = head.default_task if head else ""
    if default == "classification" and heads["sequence"] == 1:
        default = "regression"
    task = with_model_layout(task_of_settings(stored, columns or {}, name, default), stored)
    if hasattr(task, "crf"):
        task = replace(task, crf=crf)  # type: ignore[call-arg]
    return with_model_labels(task, heads, labels)


def task_of_settings(
    stored: Json, columns: Mapping[str, str | None], name: str | None = None, default: str = ""
) -> Task[Any]:
    """Return the task of that name, or the stored one, with the stored settings and columns unless others are given."""
    remembered = str(stored.get("name") or "")
    if name is None and remembered and remembered not in TASKS:
        nearest = suggest(remembered, task_names())
        raise UserError(f"{remembered}: unknown task, {nearest}; one of your own must be registered (register_task)")
    task = make_task(name or remembered or default)
    own = stored if remembered == task.name else {}
    named = {key: columns.get(key) or _text(own.get(key)) for key in TASKS[task.name].columns}
    named |= {key: value for key, value in columns.items() if value}
    task = make_task(task.name, **named)
    if isinstance(task, TextTask) and not any(columns.values()):  # rows in memory have the names of the roles
        task = replace(task, columns=replace(task.columns, roles=True))
    return configure_task(task, {key: own[key] for key in own if key in task_options(task)}, DESCRIPTION)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def with_model_layout(task: Task[Any], stored: Json) -> Task[Any]:
    """Return the task with the layout of a model, from the settings `stored` in its folder."""
    defaults = {field.name: field.default for field in fields(task) if field.name in task.layout}
    return configure_task(task, {key: stored.get(key, value) for key, value in defaults.items()}, DESCRIPTION)


def with_model_labels(task: Task[Any], heads: Mapping[str, int], labels: Sequence[str]) -> Task[Any]:
    """Return the task with the classes in the order of the model's head; refuse a model that does not fit."""
    from bertree.objectives.supervised import HEAD_KINDS

    task = task.for_heads(heads)
    if task.head not in heads:
        present = f"its heads: {', '.join(heads)}" if heads else "it has none"
        raise UserError(f"{task.name} needs a model with a '{task.head}' head, but {present}; fine-tune it first")
    classes = heads[task.head]
    if not HEAD_KINDS[task.head].named_classes:
        return task
    if task.regression:
        if classes != 1:
            raise UserError(f"{task.name} needs one score, but the model's head has {classes} classes")
        return task
    # transformers writes no names if there are two classes without names.
    named = list(labels) if len(labels) == classes else [f"LABEL_{number}" for number in range(classes)]
    if not task.labels:
        return task.with_labels(named)
    aliases = {alias.lower(): label for alias, label in getattr(task, "aliases", {}).items()}
    aliases |= {label.lower(): label for label in task.labels}
    own = [aliases.get(label.lower()) for label in named]
    if set(own) == set(task.labels):
        return task.with_labels([label for label in own if label is not None])
    nameless = all(NAMELESS.fullmatch(label) for label in named) or all(label.isdecimal() for label in task.labels)
    if nameless and classes == len(task.labels):
        return task
    raise UserError(
        f"{task.name} has the labels {', '.join(task.labels)}, but the model's head has {', '.join(named[:20])}"
    )


for glue_task in glue.TASKS:
    register_task(glue_task)
register_task(SquadTask("squad", about="an answer as a span of a passage"), aliases=["squad1.1"])
register_task(SquadTask("squad2", about="the same, or no answer"), aliases=["squad2.0"])
register_task(ChoiceTask("swag", about="how a scene goes on"))
register_task(ChoiceTask("hellaswag", about="how a text goes on"))
register_task(ChoiceTask("race", about="questions on a passage"))
register_task(partial(TaggingTask, "ner", about="named entities, CoNLL-2003"), aliases=["conll2003"])
register_task(partial(text_task, "classification"), own_data=True)
register_task(partial(text_task, "regression"), own_data=True)
register_task(partial(TaggingTask, "tagging", about="a tag for each word"), own_data=True)
register_task(ChoiceTask("choice", about="one of several options"), own_data=True)
