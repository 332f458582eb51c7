"""Fine-tune a model on a task: `bertree.finetune`. Here arguments become a job (job.py); execute.py runs it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertree.config.model_names import resolve_model_path
from bertree.config.overrides import overrides_of
from bertree.console import note
from bertree.errors import UserError
from bertree.finetuning import config as configs
from bertree.finetuning.execute import execute_job
from bertree.finetuning.job import TaskJob, find_splits, read_examples, with_layout, with_task_tokens
from bertree.inference.load import identify, load, load_or_take, stored_task
from bertree.inference.model import Model
from bertree.inference.trained_run import Run
from bertree.tasks.files import TaskFiles
from bertree.tasks.registry import make_task
from bertree.tasks.task import Task
from bertree.text.identity import tokenizer_hash
from bertree.text.memory import Rows, takes_rows, task_fields
from bertree.train.metrics_log import Callback, calling


@takes_rows(data=task_fields, train=task_fields, dev=task_fields)
def finetune(
    model: str | Path | Model,
    *,
    task: str | Task[Any] | None = None,
    data: str | Path | Rows | None = None,
    out: str | Path = "finetuned",
    train: str | Path | Rows | None = None,
    dev: str | Path | Rows | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    frozen: str | None = None,
    from_task: str | Path | None = None,
    seeds: int = 1,
    resume: bool = False,
    tokenizer: str | Path | None = None,
    overrides: Sequence[str] = (),
    progress: bool | None = None,
    on_step: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_save: Callback | None = None,
    **settings: Any,
) -> Run:
    """Fine-tune a model on a task and keep the best of its evaluations on the dev split.

    `task` is a name (`sst-2`, `squad2`, `ner`, `classification` ...) or a task of your own; a fine-tuned model keeps
    its task unless another is given. `data` is a folder with the task's files, one file, or rows in memory (a list of
    dicts, a frame, a Dataset; `{"train": ..., "dev": ...}`); `train` and `dev` are files or rows in place of those;
    `text`, `pair` and `label` name your columns. `seeds` runs are made and the best one is kept. `frozen` freezes the
    encoder and names the layers that are read. `from_task` is a run on another task that began with the same model: its
    encoder is taken, with a new head. Settings are keywords (`epochs=3, lr=3e-5, batch=32`); `overrides` are the same
    as strings (`"epochs=3"`). With `resume=True` an interrupted run goes on. Nothing is printed unless `progress=True`.
    `on_step`, `on_evaluation` and `on_save` are functions that get a `TrainingEvent` (docs/python.md).

    >>> run = bertree.finetune("my-bert", task="sst-2", data="glue/SST-2", out="sst", epochs=3)
    >>> run.metrics["accuracy"]
    """
    named = make_task(task, text, pair, label) if isinstance(task, str) else task
    named = named or stored_task(model, {"text": text, "pair": pair, "label": label})
    readout = {"readout": {"frozen": frozen}} if frozen else {}
    config = configs.load([*overrides, *overrides_of(settings)], named, readout)
    config, configured = configs.configure(config, named)
    files = TaskFiles.of(data, train, dev)

    def build() -> TaskJob:
        splits = find_splits(files, configured)
        initial, name = load_or_take(model, tokenizer=tokenizer)
        identity, intro = [identify(model)], []
        if from_task is not None:
            initial, folder = _load_from_task(from_task, initial, name, configured.name)
            identity.append(identify(folder))
            intro = [f"the encoder is that of {folder}, which has learned {initial.task['name']}; its head is new"]
            name = str(folder)
        if not initial.trained:
            note(f"{name}: is a preset with random weights, so everything is learned from this task alone")
        initial = with_task_tokens(initial)
        return TaskJob(
            initial=initial,
            initial_name=name,
            identity=identity,
            data=read_examples(with_layout(configured, initial, config.task), splits, config.train.held_out),
            config=config,
            intro=intro,
        )

    with calling(on_step, on_evaluation, on_save):
        return execute_job(build, out=out, run=config.run, seeds=seeds, resume=resume, progress=progress)


def _load_from_task(run: str | Path, base: Model, base_name: str, task: str) -> tuple[Model, Path]:
    """Load the model of a run on another task that was made from `base`; return it and its folder.

    Small tasks gain from a related large one: RTE, MRPC and STS-B are fine-tuned from an MNLI model in most published
    results (Phang et al. 2018; Liu et al. 2019; Lan et al. 2019).
    """
    folder = resolve_model_path(run)
    if not folder.is_dir():
        raise UserError(f"{run}: no such run or model folder (`from_task`)")
    model = load(folder, device=str(base.device))
    learned = str(model.task.get("name", ""))
    if not learned:
        raise UserError(f"{folder}: was not fine-tuned, so there is no task to start from (`from_task`)")
    if learned == task:
        raise UserError(f"{folder}: has learned {task} already; give it in place of {base_name}, without `from_task`")
    shapes, base_shapes = (
        {key: tensor.shape for key, tensor in each.network.encoder.state_dict().items() if key.startswith("stack.")}
        for each in (model, base)
    )
    if shapes != base_shapes:
        raise UserError(f"{folder}: its layers are not those of {base_name}, so it was made from another model")
    if tokenizer_hash(model.required_tokenizer) != tokenizer_hash(base.required_tokenizer):
        raise UserError(f"{folder}: its tokenizer is not that of {base_name}, so it was made from another model")
    return model, folder
