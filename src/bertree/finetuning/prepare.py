"""Prepare a fine-tuning run: read the files of a task, encode the examples, put model and settings together."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.finetuning import config as configs
from bertree.finetuning.config import FineTuneConfig
from bertree.finetuning.left_to_right import LM_WEIGHT, language_model_weight
from bertree.finetuning.tuner import EncodedSplit, FineTuning, InitialModel, data_digest, hold_out
from bertree.inference.load import Model
from bertree.interop.contents import Contents
from bertree.model.cost import describe_architecture
from bertree.model.network import Network
from bertree.objectives.objective import Objective
from bertree.scale.world import World
from bertree.tasks.files import TaskFiles
from bertree.tasks.logits import effective_max_length
from bertree.tasks.task import Task, Truncation
from bertree.text.framing import special_ids
from bertree.train.device import Placement

Labels = Callable[[Task[Any], Sequence[Any]], Sequence[str]]


@dataclass(frozen=True)
class TaskExamples:
    """A task with its labels, and the examples of each split."""

    task: Task[Any]
    splits: Mapping[str, tuple[Path, ...]]
    examples: Mapping[str, Sequence[Any]]
    held: int  # examples held out of the training data because there is no dev split


@dataclass(frozen=True)
class FineTuningJob:
    """A prepared run: everything but the seed."""

    tuner: FineTuning
    start: Model
    splits: Mapping[str, EncodedSplit[Any]]
    truncations: Mapping[str, Truncation]
    out: Path
    intro: Sequence[str]
    model: str  # the initial model as the user named it
    teacher: Json = field(default_factory=dict)  # name and scores of the teacher, if there is one
    select_saved: Callable[["FineTuningJob", Network], Contents] | None = None  # None: everything


def training_splits(files: TaskFiles, task: Task[Any]) -> dict[str, tuple[Path, ...]]:
    """Return the files of each split; there must be a training file."""
    splits = files.splits(task)
    if "train" not in splits:
        raise UserError(f"{files.data or files.dev}: has no training file; give one with `train=FILE`")
    return splits


def read_examples(
    task: Task[Any],
    splits: Mapping[str, tuple[Path, ...]],
    share: float,
    labels: Labels = lambda task, examples: task.labels_in(examples),
) -> TaskExamples:
    """Read the examples of every split; if there is no dev split, hold out a share of the training examples."""
    examples = {"train": task.read(splits["train"])}
    task = task.with_labels(labels(task, examples["train"]))
    task.check_training(examples["train"])
    examples |= {name: task.read(paths) for name, paths in splits.items() if name.startswith("dev")}
    if "dev" in examples:
        return TaskExamples(task, splits, examples, 0)
    examples = hold_out(examples["train"], share, task.group, splits["train"][0])
    return TaskExamples(task, splits, examples, len(examples["dev"]))


def prepare_run(
    start: Model,
    model: str,
    given: TaskExamples,
    out: Path,
    config: FineTuneConfig,
    machine: Placement,
    objective: Objective | None = None,
    *,
    identity: Sequence[str],
    unanswered: bool = False,
    fine_tuning_type: Callable[..., FineTuning] = FineTuning,
    world: World | None = None,
) -> FineTuningJob:
    """Encode the examples and put the run together.

    `identity` identifies the model; `unanswered`: training examples without a gold answer are kept, for a teacher."""
    task, examples, splits = given.task, given.examples, given.splits
    longest = effective_max_length(config.train.max_length, task.max_length, start.architecture.longest_input)
    rate = configs.learning_rate(config, start.architecture)
    lm = language_model_weight(config, task, start, LM_WEIGHT if objective is None else None)
    train, optim = replace(config.train, max_length=longest, lm=lm), replace(config.optim, lr=rate)
    config = replace(config, name=task.name, note=config.note or model, train=train, optim=optim)
    both = {name: encode_split(task, some, start, longest) for name, some in examples.items()}
    parts, cuts = {name: part for name, (part, _) in both.items()}, {name: cut for name, (_, cut) in both.items()}
    if not unanswered:
        answered = [unit for unit in parts["train"].units if unit.answer is not None]
        parts["train"] = EncodedSplit(parts["train"].examples, answered)
    for name, part in parts.items():
        known = any(unit.answer is not None for unit in part.units)
        if not (known or (unanswered and name == "train")):
            where = ", ".join(map(str, splits.get(name, splits["train"])))
            raise UserError(f"{where}: no example has a gold answer, so it cannot be the {name} split")
    digests = [f"{name} {data_digest(path)}" for name in sorted(splits) for path in splits[name]]
    tuner = fine_tuning_type(
        task,
        InitialModel(start.architecture, start.network, start.labels, str(start.task.get("name", ""))),
        parts["train"],
        parts["dev"],
        config,
        machine,
        identity="\n".join([*identity, task.name, *digests]),
        objective=objective,
        special=special_ids(start.required_tokenizer),
        world=world or World.alone(),
    )
    tuner.check()
    intro = _intro(tuner, given.held)
    intro += [cut.message(name, len(examples[name]), longest) for name, cut in cuts.items() if cut.examples]
    return FineTuningJob(tuner, start, parts, cuts, out, intro, model)


def _intro(tuner: FineTuning, held: int) -> list[str]:
    """Return what is about to be run, in a few lines."""
    task, config, machine = tuner.task, tuner.config, tuner.machine
    labels = f": {', '.join(task.labels[:8])}{', ...' if len(task.labels) > 8 else ''}" if task.labels else ""
    kind = "one score" if task.regression else f"{task.classes} classes{labels}" if task.labels else task.head
    dev = f"{len(tuner.dev.examples):,} held out of them" if held else f"{len(tuner.dev.examples):,} dev"
    where = f"{machine.device}, {'bf16' if machine.bf16 else 'fp32'}"
    where += f"; {tuner.world.data} data ranks" if tuner.world.joined else ""
    lm = f"; {config.train.lm:g} times the language-model loss is added" if config.train.lm else ""
    top = f"; encoder frozen, reading {config.top.layers}" if config.top.frozen else ""
    steps = max(1, math.ceil(tuner.steps_per_epoch * config.train.epochs))
    return [
        f"{describe_architecture(tuner.architecture)} on {where}{top}",
        f"{task.name}: {len(tuner.train.examples) + held:,} examples, {dev}; {kind}",
        f"{steps:,} steps of {config.train.batch}, rate {config.optim.lr:g}, up to {config.train.max_length} tokens; "
        f"best by {task.metric}{'; the head of the model is reused' if tuner.reuses_head else ''}{lm}",
    ]


def encode_split(
    task: Task[Any], examples: Sequence[Any], model: Model, longest: int
) -> tuple[EncodedSplit[Any], Truncation]:
    """Return the examples with their units, and how much was truncated."""
    units, cut = task.units(examples, model.required_tokenizer, longest)
    return EncodedSplit(examples, units), cut
