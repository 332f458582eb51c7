"""Fine-tune a model on a task: `bertree.finetune`.

OUT/model/                  the best model of the best seed, with its labels and settings
OUT/metrics.json            its scores on the dev split, and those of every seed
OUT/predictions.jsonl       its predictions on the dev split
OUT/report.html             scores and predictions to look at
OUT/seed-N/                 each run: metrics.jsonl, report.html, recipe.toml
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertree.config.overrides import overrides_of
from bertree.console import note, notes_shown, showing
from bertree.finetuning import config as configs
from bertree.finetuning.from_task import load_from_task
from bertree.finetuning.left_to_right import with_layout, with_task_tokens
from bertree.finetuning.prepare import FineTuningJob, prepare_run, read_examples, training_splits
from bertree.finetuning.seeds import check_run_folder, run_seeds
from bertree.inference.load import identify, load_or_take
from bertree.inference.model import Model
from bertree.inference.run import Run
from bertree.scale.launch import launched
from bertree.scale.world import World, join
from bertree.tasks.files import TaskFiles
from bertree.tasks.options import configure_task
from bertree.tasks.registry import make_task
from bertree.tasks.task import Task
from bertree.train.device import Placement, set_deterministic, uses_gpu


def finetune(
    model: str | Path | Model,
    *,
    task: str | Task[Any],
    data: str | Path | None = None,
    out: str | Path = "finetuned",
    train: str | Path | None = None,
    dev: str | Path | None = None,
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
    **settings: Any,
) -> Run:
    """Fine-tune a model on a task and keep the best of its evaluations on the dev split.

    `task` is a name (`sst-2`, `squad2`, `ner`, `classification` ...) or a task of your own; `data` a folder with the
    task's files or one file; `train` and `dev` are files in place of the folder's; `text`, `pair` and `label` name
    your columns. `seeds` runs are made and the best one is kept. `frozen` freezes the encoder and reads these layers.
    `from_task` is a run on another task that began with the same model: its encoder is taken, with a new head.
    Settings are keywords (`epochs=3, lr=3e-5, batch=32`); `overrides` are the same as strings (`"epochs=3"`).
    With `resume=True` an interrupted run goes on. Nothing is printed unless `progress=True`.

    >>> run = bertree.finetune("my-bert", task="sst-2", data="glue/SST-2", out="sst", epochs=3)
    >>> run.metrics["accuracy"]
    """
    launch = launched()
    resume = resume or launch.restarts > 0
    with showing(progress if launch.rank == 0 else False), notes_shown(launch.rank == 0):
        out, known = Path(out), make_task(task, text, pair, label) if isinstance(task, str) else task
        top = {"top": {"layers": frozen, "frozen": True}} if frozen else {}
        config = configs.load([*overrides, *overrides_of(settings)], known, top)
        known = configure_task(known, config.task)
        config, known = configs.with_crf(config, known)
        files = TaskFiles.of(data, train, dev)

        def prepare(world: World) -> FineTuningJob:
            set_deterministic(config.run.deterministic)
            machine = Placement.from_settings(config.run)
            splits = training_splits(files, known)
            check_run_folder(out, resume)
            start, name, identity, origin = _load_start(model, tokenizer, from_task, known.name)
            start = with_task_tokens(start)
            chosen = with_layout(known, start, config.task)
            if not start.trained:
                note(f"{name}: is a preset with random weights, so everything is learned from this task alone")
            examples = read_examples(chosen, splits, config.train.held_out)
            job = prepare_run(start, name, examples, out, config, machine, identity=identity, world=world)
            return replace(job, intro=[*job.intro, *origin])

        with join(launch, cuda=uses_gpu(config.run)) as world:
            job = world.check_together(lambda: prepare(world))
            world.check_same("model, data or settings", job.tuner.run_identity(config.run.seed))
            return run_seeds(job, seeds, resume)


def _load_start(
    model: str | Path | Model, tokenizer: str | Path | None, from_task: str | Path | None, task: str
) -> tuple[Model, str, list[str], list[str]]:
    """Load the initial model; return it with its name, what identifies it, and a line on the task it comes from."""
    start, name = load_or_take(model, tokenizer=tokenizer)
    identity = [identify(model)]
    if from_task is None:
        return start, name, identity, []
    start, folder = load_from_task(from_task, start, name, task)
    line = f"the encoder is that of {folder}, which has learned {start.task['name']}; its head is new"
    return start, str(folder), [*identity, identify(folder)], [line]
