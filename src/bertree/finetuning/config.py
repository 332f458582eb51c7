"""What a fine-tuning run is told: sections as in a recipe, and bare names (`epochs=3 lr=3e-5`) where they are clear."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

from bertree.config import settings
from bertree.config.bounds import Above, AtLeast, AtMost, OneOf, Share
from bertree.config.overrides import Override, apply_overrides
from bertree.config.sections import SHAPES, OptimSettings, RunSettings
from bertree.errors import UserError
from bertree.files import Json
from bertree.model.architecture import Architecture
from bertree.model.readout import Readout
from bertree.objectives.distill_task import KINDS
from bertree.tasks.options import task_options
from bertree.tasks.task import Task

DROPOUTS = ("dropout", "attention_dropout", "classifier_dropout")
MOST_COPIES = 1000
MOST_EPOCHS, LARGEST_BATCH = 1e6, 2**20


@dataclass(frozen=True)
class TrainSettings:
    """How long, how much at once, and when to stop."""

    epochs: Annotated[float, Above(0), AtMost(MOST_EPOCHS)] = 3.0
    # examples a step (windows of SQuAD, questions with their options)
    batch: Annotated[int, AtLeast(1), AtMost(LARGEST_BATCH)] = 32
    max_length: Annotated[int, AtLeast(0)] = 0  # tokens a sequence; 0: the task's own, at most the model's
    warmup: Annotated[float, Share()] = 0.1  # share of the steps in which the rate rises from 0
    shape: Annotated[str, OneOf(SHAPES)] = "linear"  # of the learning rate after that
    evaluations: Annotated[int, AtLeast(1)] = 1  # on the dev split, an epoch
    patience: Annotated[int, AtLeast(0)] = 3  # evaluations without a better score after which it stops; 0: never
    held_out: Annotated[float, Share()] = 0.1  # share of the training examples that is the dev split if there is none


@dataclass(frozen=True)
class FineTuneOptimSettings(OptimSettings):
    """The optimizer. Learning rate 0: by the model's width."""

    lr: Annotated[float, AtLeast(0)] = 0.0
    eps: Annotated[float, Above(0)] = 1e-8


@dataclass(frozen=True)
class FineTuneRunSettings(RunSettings):
    """How a run is computed, watched and saved. How often it saves is a matter of time alone."""

    log_every: Annotated[int, AtLeast(1)] = 25
    save_every: Annotated[int, AtLeast(1)] = 1


@dataclass(frozen=True)
class FineTuneConfig:
    """A whole run."""

    name: str = ""  # of the task
    note: str = ""  # the model it begins with
    model: Json = field(default_factory=dict)  # dropouts
    task: Json = field(default_factory=dict)  # the task's own settings, for example stride of SQuAD
    train: TrainSettings = TrainSettings()
    top: Readout = field(default_factory=Readout)
    optim: FineTuneOptimSettings = FineTuneOptimSettings()
    run: FineTuneRunSettings = FineTuneRunSettings()
    overridden: frozenset[str] = field(default=frozenset(), compare=False, metadata=settings.NOT_A_SETTING)


@dataclass(frozen=True)
class TaskDistillSettings:
    """What is learned from a teacher, and on what beside the task's own examples."""

    # soft: the teacher's softened probabilities; hard: its likeliest class; mse: its scores as they are
    kind: Annotated[str, OneOf(KINDS)] = "soft"
    # weight of the true answers; the rest is the teacher's. Of mse: 0 unless given
    alpha: Annotated[float, Share(closed=True)] = 0.5
    temperature: Annotated[float, Above(0)] = 2.0  # of soft
    # examples made up of each of the task's own, which only the teacher labels
    copies: Annotated[int, AtLeast(0), AtMost(MOST_COPIES)] = 0
    masking: Annotated[float, Share()] = 0.1  # share of a copy's words that become a mask
    replacing: Annotated[float, Share()] = 0.1  # share of a copy's words that become another
    ngram: Annotated[float, Share(closed=True)] = 0.25  # share of the copies that are cut to a few words in a row


@dataclass(frozen=True)
class TaskDistillConfig(FineTuneConfig):
    """A whole run of a student with its teacher."""

    distil: TaskDistillSettings = TaskDistillSettings()


Config = TypeVar("Config", bound=FineTuneConfig)


def load(overrides: Iterable[str | Override], task: Task[Any], base: Json | None = None) -> FineTuneConfig:
    """The configuration of a run of `task`, checked."""
    return load_as(FineTuneConfig, overrides, task, base or {})


def load_task_distill(overrides: Iterable[str | Override], task: Task[Any]) -> TaskDistillConfig:
    """The same for a run with a teacher."""
    config = load_as(TaskDistillConfig, overrides, task, {})
    if config.distil.kind == "mse" and "distil.alpha" not in config.overridden:
        config = replace(config, distil=replace(config.distil, alpha=0.0))
    if (both := config.distil.masking + config.distil.replacing) > 1:
        raise UserError(f"settings: distil.masking and distil.replacing: are shares of the same words, not {both:g}")
    return config


def load_as(kind: type[Config], overrides: Iterable[str | Override], task: Task[Any], base: Json) -> Config:
    """The configuration of a run of another kind, checked."""
    tree: Json = {"model": {}, "task": {}} | base
    own = task_options(task)
    hidden = {"name", "note", *(["top.crf"] if "crf" in own else [])}  # `crf=true` is then a setting of the task
    overridden = apply_overrides(tree, overrides, kind, free={"model": DROPOUTS, "task": own}, hidden=hidden)
    config: Config = settings.read(kind, tree, "settings")
    for key in config.model:
        if key not in DROPOUTS:
            raise UserError(f"settings: model.{key}: only {', '.join(DROPOUTS)} can be changed in a trained model")
    dropouts = {key: settings.read(float, value, "settings", f"model.{key}") for key, value in config.model.items()}
    return replace(config, model=dropouts, overridden=frozenset(overridden))


def with_crf(config: Config, task: Task[Any]) -> tuple[Config, Task[Any]]:
    """A CRF is both: a part of the network, and how a tagging task reads its answers."""
    crf = config.top.crf or getattr(task, "crf", False)
    if crf and not hasattr(task, "crf"):
        raise UserError(f"crf: chooses the tags of words, but {task.name} has none; it is for ner and tagging")
    task = replace(task, crf=crf) if hasattr(task, "crf") else task  # type: ignore[call-arg]
    return replace(config, top=replace(config.top, crf=crf)), task


def learning_rate(config: FineTuneConfig, a: Architecture) -> float:
    """The rate asked for, or what suits the width: small models want larger steps, LSTMs and heads the largest."""
    if config.optim.lr:
        return config.optim.lr
    if config.top.frozen or a.body == "bilstm":
        return 1e-3
    return next(rate for width, rate in ((1024, 2e-5), (768, 3e-5), (384, 1e-4), (0, 2e-4)) if a.width >= width)
