"""Fine-tune a model on a task: `bertree.finetune`. Here arguments become a job (job.py); execute.py runs it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bertree.config.names import resolve_model_path
from bertree.config.overrides import overrides_of
from bertree.console import note
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.finetuning import config as configs
from bertree.finetuning.config import FineTuneConfig
from bertree.finetuning.execute import execute_job
from bertree.finetuning.job import TaskJob, draw_examples, find_splits, read_examples, with_layout, with_task_tokens
from bertree.finetuning.solved_head import FewShot, HeadSolving
from bertree.inference.load import Run, identify, load, load_or_take, stored_task
from bertree.inference.model import Model
from bertree.model.architecture import Transformer
from bertree.objectives.embedding import CLASS_CONTRAST
from bertree.tasks.files import TaskFiles
from bertree.tasks.registry import make_task
from bertree.tasks.task import Task
from bertree.text.identity import tokenizer_hash
from bertree.text.memory import Rows, takes_rows, task_fields
from bertree.train.metrics_log import Callback, calling

LAST = "last"  # the hidden states that are read of a frozen encoder, if none are named
FEW_SHOT_STEPS, FEW_SHOT_RATE, FEW_SHOT_LENGTH = 20, 2e-5, 256  # unless set; the length is that of a text in tokens
FEW_SHOT_TEXTS = 3  # of each class in a step, on average; with fewer, steps have made the vectors worse
STEP_SETTINGS = tuple(f"train.{key}" for key in ("epochs", "batch", "warmup", "shape", "evaluations", "patience"))


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
    frozen: str | Literal[True] | None = None,
    few_shot: bool = False,
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
    `text`, `pair` and `label` name your columns. `seeds` runs are made and the best one is kept. `frozen=True` keeps
    the encoder as it is and solves a linear head on its vectors; a name says which layers are read
    (`frozen="sum-last-four"`). `few_shot=True` is for 8 to 64 examples of a class: the encoder learns to tell the
    classes apart, then the head is solved. `from_task` is a run on another task that began with the same model: its
    encoder is taken, with a new head. Settings are keywords (`epochs=3, lr=3e-5, batch=32`); `overrides` are the same
    as strings (`"epochs=3"`). `resume=True` continues an interrupted run. Nothing is printed unless `progress=True`.
    `on_step`, `on_evaluation` and `on_save` are functions that get a `TrainingEvent` (docs/python.md).

    >>> run = bertree.finetune("my-bert", task="sst-2", data="glue/SST-2", out="sst", epochs=3)
    >>> run.metrics["accuracy"]
    """
    named = make_task(task, text, pair, label) if isinstance(task, str) else task
    named = named or stored_task(model, {"text": text, "pair": pair, "label": label})
    base: Json = {"readout": {"frozen": LAST if frozen is True else frozen}} if frozen else {}
    base |= {"train": {"few_shot": True}} if few_shot else {}
    config = configs.load([*overrides, *overrides_of(settings)], named, base)
    config, configured = configs.configure(config, named)
    _check_few_shot(config, configured)
    files = TaskFiles.of(data, train, dev)

    def build() -> TaskJob:
        splits = find_splits(files, configured, config.train.ignore_dev)
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
        data = read_examples(with_layout(configured, initial, config.task), splits, config.train.held_out)
        data = draw_examples(data, config.train, config.run.seed)
        job = TaskJob(initial=initial, initial_name=name, identity=identity, data=data, config=config, intro=intro)
        return _with_vectors(job, seeds)

    with calling(on_step, on_evaluation, on_save):
        return execute_job(build, out=out, run=config.run, seeds=seeds, resume=resume, progress=progress)


def _check_few_shot(config: FineTuneConfig, task: Task[Any]) -> None:
    if config.train.few_shot:
        if task.head != "sequence" or task.regression:
            raise UserError(f"`few_shot`: is for classes of texts, and {task.name} has none; leave it out")
        if config.readout.frozen or config.readout.lstm:
            raise UserError("`few_shot`: trains the encoder and reads its vectors; leave out `frozen` and lstm")


def _with_vectors(job: TaskJob, seeds: int) -> TaskJob:
    """Let heads on whole texts read the vectors of the model where the encoder is frozen or learns from few examples,
    and solve the head of a task with one class or score for each text."""
    config, few_shot, task = job.config, bool(job.config.train.few_shot), job.data.task
    reads_vectors = task.head in ("sequence", "choice") and not config.readout.lstm
    if not (few_shot or (config.readout.frozen and reads_vectors)):
        return job
    readout, train = config.readout, config.train
    if readout.pooled is None:
        readout = replace(readout, pooled=isinstance(job.initial.architecture, Transformer) or None)
    if not train.max_length:
        longest = job.initial.max_length
        train = replace(train, max_length=min(longest, task.max_length, FEW_SHOT_LENGTH) if few_shot else longest)
    tunes = "train.epochs" in config.overridden or train.batch >= FEW_SHOT_TEXTS * task.classes
    if few_shot and "train.epochs" not in config.overridden:
        train = replace(train, epochs=max(1.0, FEW_SHOT_STEPS * train.batch / len(job.data.examples["train"])))
    optim = replace(config.optim, lr=config.optim.lr or FEW_SHOT_RATE) if few_shot else config.optim
    job = replace(job, config=replace(config, readout=readout, train=train, optim=optim))
    refits = bool(job.data.held_out) and not job.data.drawn
    if few_shot:
        return replace(job, objective=CLASS_CONTRAST, tuner_type=partial(FewShot, refits=refits, tunes=tunes))
    if task.head != "sequence":
        return job
    unused = sorted(key.rpartition(".")[2] for key in config.overridden if key in STEP_SETTINGS or "optim." in key)
    unused += ["seeds"] if seeds > 1 else []
    if unused:
        note(f"{', '.join(unused)}: without effect, because the head on a frozen encoder is solved and takes no steps")
    return replace(job, tuner_type=partial(HeadSolving, refits=refits))


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
