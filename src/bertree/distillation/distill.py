"""Distill a smaller model from a larger one: `bertree.distill`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertree.config.overrides import Override, overrides_of
from bertree.distillation.task import distill_on_task
from bertree.distillation.text import distill_on_text
from bertree.errors import UserError
from bertree.inference.load import Run, stored_task
from bertree.tasks.files import TaskFiles
from bertree.tasks.registry import make_task
from bertree.tasks.task import Task
from bertree.text.memory import Rows, takes_rows, task_fields
from bertree.train.metrics_log import Callback, calling


@takes_rows(data=task_fields, train=task_fields, dev=task_fields)
def distill(
    teacher: str | Path,
    *,
    student: str | Path = "half",
    store: str | Path | None = None,
    task: str | Task[Any] | None = None,
    data: str | Path | Rows | None = None,
    out: str | Path = "distilled",
    layers: str = "",
    epochs: float = 0.0,
    cache: str | Path = "",
    seeds: int = 1,
    train: str | Path | Rows | None = None,
    dev: str | Path | Rows | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    resume: bool = False,
    tokenizer: str | Path | None = None,
    seconds: float = 10.0,
    overrides: Sequence[str] = (),
    progress: bool | None = None,
    on_step: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_save: Callback | None = None,
    **settings: Any,
) -> Run:
    """Train a smaller student with a larger teacher: on a token store (`store`) or on a task's files (`data`; `task`
    is the one the teacher was fine-tuned for, unless given).

    `student` is `half` (every other layer of the teacher) or a preset; on text also a recipe, on a task a model folder
    or `bilstm`. `layers` are the teacher's layers to start from (`"1,3,5"`). On text, `epochs` is how often the text is
    read and `cache` a folder for the teacher's likeliest tokens. `seconds` is the time for timing teacher and student
    at the end; 0: they are not compared. Settings are keywords (`alpha=0.3`, `distill={"cos": 0}`); `overrides` are the
    same as strings. Nothing is printed unless `progress=True`.
    `on_step`, `on_evaluation` and `on_save` are functions that get a `TrainingEvent` (docs/python.md).

    >>> run = bertree.distill("my-bert", store="my-store", out="small")
    >>> run = bertree.distill("sst/model", student="bilstm", task="sst-2", data="glue/SST-2", out="tiny", copies=20)
    """
    files = TaskFiles.of(data, train, dev)
    if store is None and task is None and (files.data or files.train):
        task = stored_task(teacher, {"text": text, "pair": pair, "label": label})
    if (store is None) == (task is None):
        raise UserError("distill: give either a token store to learn from (`store`) or a task's files (`data`)")
    all_overrides: list[str | Override] = [*overrides, *overrides_of(settings)]
    if store is not None:
        task_only = {"data": data, "train": train, "dev": dev, "tokenizer": tokenizer}
        task_only |= {"text": text, "pair": pair, "label": label, "seeds": None if seeds == 1 else str(seeds)}
        for name, value in task_only.items():
            if value is not None:
                raise UserError(f"`{name}`: is for `task`, not for `store`")
        with calling(on_step, on_evaluation, on_save):
            return distill_on_text(
                str(teacher),
                str(student),
                all_overrides,
                out=Path(out),
                store=str(store),
                layers=layers,
                cache=str(cache),
                epochs=epochs,
                resume=resume,
                seconds=seconds,
                progress=progress,
            )
    if cache:
        raise UserError("`cache`: is for `store`; the teacher's scores of a task are kept in the run's folder")
    assert task is not None
    with calling(on_step, on_evaluation, on_save):
        return distill_on_task(
            str(teacher),
            make_task(task, text, pair, label) if isinstance(task, str) else task,
            files,
            student=str(student),
            out=Path(out),
            overrides=[*all_overrides, *overrides_of({"epochs": epochs} if epochs else {})],
            seeds=seeds,
            resume=resume,
            layers=layers,
            tokenizer=None if tokenizer is None else Path(tokenizer),
            seconds=seconds,
            progress=progress,
        )
