"""The settings of a task: which of its fields the user may set (`stride=64`), and how they are checked."""

from dataclasses import fields, replace
from typing import Any, get_type_hints

from bertree.config import settings
from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.tasks.task import Task

NOT_SETTINGS = (  # fields that are not settings
    *("name", "max_length", "about", "regression", "numbered", "label_folders", "server", "symmetric"),
    *("loss", "dev_kind", "low", "high", "prompt"),
)


def task_options(task: Task[Any]) -> list[str]:
    """Return the settings of a task: its fields that are plain values."""
    hints = get_type_hints(type(task))
    plain = (int, float, bool, str)
    return [option.name for option in fields(task) if hints[option.name] in plain and option.name not in NOT_SETTINGS]


def configure_task(task: Task[Any], given: Json, where: str = "settings") -> Task[Any]:
    """Return the task with these settings; `where` they come from is what messages name."""
    hints = get_type_hints(type(task))
    for key, value in given.items():
        if key not in task_options(task):
            raise UserError(f"{where}: task.{key}: is not a setting of {task.name}, {suggest(key, task_options(task))}")
        figures = getattr(task, "figures", ())
        if key == "metric" and value not in figures:
            raise UserError(
                f"{where}: metric '{value}': is not a figure of {task.name}, {suggest(str(value), figures)}"
            )
        read = settings.read(hints[key], value, where, f"task.{key}")
        try:
            task = replace(task, **{key: read})
        except UserError as error:  # what the task itself checks
            raise UserError(f"{where}: {error}") from None
    return task
