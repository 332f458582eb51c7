"""A job that trains a model on a task, as `finetune`, `distill` and `train_embeddings` describe it, and its encoding.

A `TaskJob` says what to start from, which examples to learn from, with which objective, and what happens before the
first seed and after the last. Building one reads files and loads models; `encode_job` checks it and encodes the
examples; `execute.py` runs it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertree import keyed_random
from bertree.console import note
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.finetuning import config as configs
from bertree.finetuning.config import FineTuneConfig, TrainSettings
from bertree.finetuning.evaluate import EncodedSplit, encode_split
from bertree.finetuning.scored import count_overlap, data_digest, empty_line, hold_out, overlap_line
from bertree.finetuning.tuner import FineTuning, InitialModel
from bertree.inference.load import make_model
from bertree.inference.model import Model
from bertree.interop.contents import Contents, head_classes
from bertree.model.network import Network, build
from bertree.objectives.embedding import CLASS_CONTRAST
from bertree.objectives.objective import Objective
from bertree.objectives.supervised import HEAD_KINDS
from bertree.report.formats import describe_architecture
from bertree.scale.world import World
from bertree.tasks.files import TaskFiles
from bertree.tasks.metrics import few_line
from bertree.tasks.task import Task, Truncation, configure_task
from bertree.text.framing import add_task_tokens, frames_texts, special_ids
from bertree.train.device_setup import DeviceSetup, set_deterministic

LM_WEIGHT = 0.5  # of the language-model loss of a left-to-right model, unless set (Radford et al. 2018)
TOKEN_SEED = 0  # of the embeddings of new tokens

Labels = Callable[[Task[Any], Sequence[Any]], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class TaskExamples:
    """A task with its labels, and the examples of each split."""

    task: Task[Any]
    files: Mapping[str, tuple[Path, ...]]  # of each split
    examples: Mapping[str, Sequence[Any]]
    held_out: int = 0  # examples held out of the training data because there is no dev split
    drawn: bool = False  # the training examples are a random part of those in the files


@dataclass(frozen=True, kw_only=True)
class TaskJob:
    """What is trained on a task."""

    initial: Model
    initial_name: str  # as the user named it
    identity: Sequence[str]  # identifies the initial model when a run is resumed
    data: TaskExamples
    config: FineTuneConfig
    objective: Objective | None = None  # None: the supervised objective of the task's head
    redraw: bool = False  # the initial weights are random: draw new ones for every seed
    keep_unlabeled: bool = False  # training examples without a gold label are kept, for a teacher
    tuner_type: Callable[..., FineTuning] = FineTuning
    intro: Sequence[str] = ()  # lines about the job
    before_seeds: Callable[["EncodedJob"], "EncodedJob"] = lambda job: job
    after_seeds: Callable[["EncodedJob", Json], bool] = lambda job, best: False  # True: write the report again
    select_saved: Callable[["EncodedJob", Network], Contents] | None = None  # what is saved; None: everything


@dataclass(frozen=True, kw_only=True)
class EncodedJob:
    """A job with its examples encoded: everything that a run needs but the seed."""

    job: TaskJob
    out: Path
    tuner: FineTuning
    splits: Mapping[str, EncodedSplit[Any]]
    truncations: Mapping[str, Truncation]
    intro: Sequence[str]
    overlaps: Mapping[str, int] = field(default_factory=dict)  # examples of a dev split that are trained on too
    teacher: Json = field(default_factory=dict)  # name and scores of the teacher, if there is one


def find_splits(files: TaskFiles, task: Task[Any], ignore_dev: bool | None = None) -> dict[str, tuple[Path, ...]]:
    """Return the files of each split; there must be a training file. `ignore_dev`: without those of a dev split."""
    splits = files.splits(task)
    if "train" not in splits:
        raise UserError(f"{files.data or files.dev}: has no training file; give one with `train=FILE`")
    return {"train": splits["train"]} if ignore_dev else splits


def read_examples(
    task: Task[Any],
    files: Mapping[str, tuple[Path, ...]],
    held_out: float,
    labels: Labels = lambda task, examples: task.labels_in(examples),
) -> TaskExamples:
    """Read the examples of every split; if there is no dev split, hold out a share of the training examples."""
    train = task.read(files["train"])
    task = task.with_labels(labels(task, train))
    task.check_training(train)
    dev = {name: task.read(paths) for name, paths in files.items() if name.startswith("dev")}
    return split_examples(task, files, {"train": train, **dev}, held_out)


def split_examples(
    task: Task[Any],
    files: Mapping[str, tuple[Path, ...]],
    examples: Mapping[str, Sequence[Any]],
    held_out: float,
    group: Callable[[Any], str | None] | None = None,
) -> TaskExamples:
    """Return examples with a dev split: if there is none, a share of the training examples is held out.

    `group` names the group of an example if it is not the task's; examples of one group stay together.
    """
    if "dev" in examples:
        return TaskExamples(task=task, files=files, examples=examples)
    examples = hold_out(examples["train"], held_out, group or task.group, files["train"][0])
    return TaskExamples(task=task, files=files, examples=examples, held_out=len(examples["dev"]))


def draw_examples(data: TaskExamples, train: TrainSettings, seed: int) -> TaskExamples:
    """Return the data with as many training examples as set, in all or of each class, drawn at random."""
    if data.drawn or (train.examples is None and train.per_class is None):
        return data
    if train.examples is not None and train.per_class is not None:
        raise UserError("examples, per_class: are two ways to say how many examples are used; give one of them")
    if train.per_class is not None and (data.task.head != "sequence" or data.task.regression):
        raise UserError(f"per_class: {data.task.name} has no class for each example; use examples=N")
    wanted = train.examples or train.per_class or 0
    pool = [e for e in data.examples["train"] if train.per_class is None or e.gold is not None]
    order = np.argsort(keyed_random.bits(keyed_random.key(seed, "examples"), np.arange(len(pool))), kind="stable")
    drawn: list[int] = []
    counts = Counter[str]()
    for number in order.tolist():
        group = "" if train.per_class is None else str(pool[number].gold)
        if counts[group] < wanted:
            counts[group] += 1
            drawn.append(number)
    if few := {group: count for group, count in counts.items() if count < wanted}:
        where = f"of class '{next(iter(few))}'" if train.per_class else "in the training data"
        note(f"there are only {min(few.values())} examples {where}, fewer than {wanted}; all of them are used")
    examples = {**data.examples, "train": [pool[number] for number in sorted(drawn)]}
    return replace(data, examples=examples, drawn=True)


def with_layout(task: Task[Any], model: Model, settings: Json) -> Task[Any]:
    """Return the task in the layout that suits the model; what the user has set stays."""
    a = model.architecture
    return configure_task(task.for_direction(a.direction), settings) if a.causal else task


def with_task_tokens(model: Model) -> Model:
    """Return the model with special tokens around its texts.

    If it reads left to right and its tokenizer writes none, new ones are added to the vocabulary, with random
    embeddings. The model that is passed stays as it is.
    """
    if not model.architecture.causal or model.tokenizer is None or frames_texts(model.tokenizer):
        return model
    tokenizer = add_task_tokens(model.tokenizer)
    a = model.architecture.with_values({"vocab_size": max(tokenizer.size, model.architecture.vocab_size)})
    network = model.network
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(TOKEN_SEED)
        grown = build(a, head_classes(network), network.readout, network.vector.config if network.vector else None)
    weights = grown.state_dict()
    for name, tensor in network.state_dict().items():  # new rows come after the others
        weights[name][tuple(slice(size) for size in tensor.shape)] = tensor.to(weights[name])
    grown.load_state_dict(weights)
    contents = Contents(a, grown.to(model.device), tokenizer, model.labels, model.limit, model.task, model.controls)
    return make_model(contents, model.trained)


def language_model_weight(job: TaskJob) -> float | None:
    """Return the weight of the language-model loss, as set or the default; None if there is none."""
    config, network, set_weight = job.config, job.initial.network, job.config.train.lm
    reasons = {
        "sentence vectors are trained without it": HEAD_KINDS[job.data.task.head].term is None,
        "the model does not read left to right": not job.initial.architecture.causal,
        "the model has no language-model head": "mask" not in network.heads,
        "the head does not read the last hidden states (readout)": config.readout.of_network.reads_states,
    }
    missing = next((reason for reason, applies in reasons.items() if applies), "")
    if missing and set_weight:
        raise UserError(f"lm: {missing}, so there is no language-model loss; leave it out")
    default = LM_WEIGHT if job.objective is None else None
    return None if missing else default if set_weight is None else set_weight


def encode_job(job: TaskJob, out: Path, world: World) -> EncodedJob:
    """Check a job, choose the device, and encode the examples."""
    set_deterministic(job.config.run.deterministic)
    device_setup = DeviceSetup.from_settings(job.config.run)
    if job.config.train.few_shot and job.objective is not CLASS_CONTRAST:
        raise UserError("few_shot: is a setting of finetune alone")
    if job.config.train.ignore_dev and not job.data.held_out:
        raise UserError("ignore_dev: is a setting of fine-tuning and distillation on a task alone")
    job = replace(job, data=draw_examples(job.data, job.config.train, job.config.run.seed))
    initial, task, data = job.initial, job.data.task, job.data
    longest = initial.sequence_length(job.config.train.max_length, task.max_length)
    train = replace(job.config.train, max_length=longest, lm=language_model_weight(job))
    optim = replace(job.config.optim, lr=configs.learning_rate(job.config, initial.architecture))
    name = job.config.note or job.initial_name
    config = replace(job.config, name=task.name, note=name, train=train, optim=optim)
    encoded = {split: encode_split(task, examples, initial, longest) for split, examples in data.examples.items()}
    splits = {split: units for split, (units, _) in encoded.items()}
    truncations = {split: truncation for split, (_, truncation) in encoded.items()}
    _check_labels(job, splits)
    if not job.keep_unlabeled:
        labeled = [unit for unit in splits["train"].units if unit.answer is not None]
        splits["train"] = EncodedSplit(splits["train"].examples, labeled)
    digests = [f"{split} {data_digest(path)}" for split in sorted(data.files) for path in data.files[split]]
    tuner = job.tuner_type(
        task=task,
        initial=InitialModel(
            architecture=initial.architecture,
            network=initial.network,
            labels=initial.labels,
            task=str(initial.task.get("name", "")),
            redraw=job.redraw,
        ),
        train=splits["train"],
        dev=splits["dev"],
        config=config,
        device_setup=device_setup,
        identity="\n".join([*job.identity, task.name, *digests]),
        objective=job.objective,
        special=special_ids(initial.required_tokenizer),
        world=world,
    )
    tuner.check()
    overlaps = _overlaps(task, data.examples)
    intro = [*_intro(tuner, data)]
    if longest == initial.max_length < task.max_length and longest < initial.architecture.max_positions:
        intro.append(
            f"{longest} tokens are the model's maximum length, of {initial.architecture.max_positions} positions; a "
            "larger max_length trains more of them"
        )
    intro += [
        cut.message(split, len(data.examples[split]), longest) for split, cut in truncations.items() if cut.examples
    ]
    return EncodedJob(
        job=job,
        out=out,
        tuner=tuner,
        splits=splits,
        truncations=truncations,
        intro=[*intro, *job.intro],
        overlaps=overlaps,
    )


def _overlaps(task: Task[Any], examples: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """Count the examples of each dev split that are trained on too; note them, empty texts, and splits that are very
    small."""
    for split in examples:
        if line := empty_line(task, split, examples[split]):
            note(line)
    overlaps = {}
    for split in [split for split in examples if split != "train"]:
        overlaps[split] = count_overlap(task, examples["train"], examples[split])
        for line in (overlap_line(split, overlaps[split], len(examples[split])), few_line(split, len(examples[split]))):
            if line:
                note(line)
    return {split: count for split, count in overlaps.items() if count}


def _check_labels(job: TaskJob, splits: Mapping[str, EncodedSplit[Any]]) -> None:
    """Refuse a split without a single gold label, unless a teacher labels it."""
    for name, split in splits.items():
        labeled = any(unit.answer is not None for unit in split.units)
        if not (labeled or (job.keep_unlabeled and name == "train")):
            where = ", ".join(map(str, job.data.files.get(name, job.data.files["train"])))
            raise UserError(f"{where}: no example has a gold answer, so it cannot be the {name} split")


def _intro(tuner: FineTuning, data: TaskExamples) -> list[str]:
    """Describe the run in a few lines."""
    task, config = tuner.task, tuner.config
    labels = f": {', '.join(task.labels[:8])}{', ...' if len(task.labels) > 8 else ''}" if task.labels else ""
    kind = "one score" if task.regression else f"{task.classes} classes{labels}" if task.labels else task.head
    count = len(tuner.train.examples)
    examples = f"{count:,} examples drawn" if data.drawn else f"{count + data.held_out:,} examples"
    dev = f"{len(tuner.dev.examples):,} dev"
    if data.held_out:
        dev = f"{data.held_out:,} held out {'for dev' if data.drawn else 'of them'}"
    where = tuner.device_setup.description
    where += f"; {tuner.world.data} data ranks" if tuner.world.joined else ""
    frozen = f"; encoder frozen, reading {config.readout.frozen}" if config.readout.frozen else ""
    return [
        f"{describe_architecture(tuner.architecture)} on {where}{frozen}",
        f"{task.name}: {examples}, {dev}; {kind}",
        tuner.describe_steps(),
    ]
