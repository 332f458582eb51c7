"""What a fine-tuning run is told: sections as in a recipe, and bare names (`epochs=3 lr=3e-5`) where they are clear."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from bertree.config import settings
from bertree.config.recipe import LIMITS as PRETRAINING
from bertree.config.recipe import Optim, Run
from bertree.config.settings import Limits
from bertree.errors import UserError, suggest
from bertree.files import Json
from bertree.model.architecture import Architecture
from bertree.model.readout import Top
from bertree.objectives.distill_task import KINDS
from bertree.tasks.options import task_options
from bertree.tasks.task import Task


@dataclass(frozen=True)
class TrainSettings:
    """How long, how much at once, and when to stop."""

    epochs: float = 3.0
    batch: int = 32  # examples a step (windows of SQuAD, questions with their options)
    max_length: int = 0  # tokens a sequence; 0: the task's own, at most the model's
    warmup: float = 0.1  # share of the steps in which the rate rises from 0
    shape: str = "linear"  # of the learning rate after that: linear, cosine, constant
    evaluations: int = 1  # on the dev split, an epoch
    patience: int = 3  # evaluations without a better score after which it stops; 0: it never does
    held_out: float = 0.1  # share of the training examples that is the dev split where there is none


# What differs from pretraining. Rate 0: by the model's width. How often it saves is a matter of time alone.
_OWN: dict[str, Json] = {"optim": {"lr": 0.0, "eps": 1e-8}, "run": {"log_every": 25, "save_every": 1}}


@dataclass(frozen=True)
class FineTuneConfig:
    """A whole run."""

    name: str = ""  # of the task
    note: str = ""  # the model it begins with
    model: Json = field(default_factory=dict)  # dropouts
    task: Json = field(default_factory=dict)  # the task's own settings, for example stride of SQuAD
    train: TrainSettings = TrainSettings()
    top: Top = field(default_factory=Top)
    optim: Optim = field(default_factory=lambda: Optim(**_OWN["optim"]))
    run: Run = field(default_factory=lambda: Run(**_OWN["run"]))


@dataclass(frozen=True)
class TaskDistillSettings:
    """What is learned from a teacher, and on what beside the task's own examples."""

    kind: str = "soft"  # its softened probabilities; hard: its likeliest class; mse: its scores as they are
    alpha: float = 0.5  # weight of the true answers; the rest is the teacher's. Of mse: 0 unless given
    temperature: float = 2.0  # of soft
    copies: int = 0  # examples made up of each of the task's own, which only the teacher labels
    masking: float = 0.1  # share of a copy's words that become a mask
    replacing: float = 0.1  # share of a copy's words that become another
    ngram: float = 0.25  # share of the copies that are cut to a few words in a row


@dataclass(frozen=True)
class TaskDistillConfig(FineTuneConfig):
    """A whole run of a student with its teacher."""

    distil: TaskDistillSettings = TaskDistillSettings()


MOST_COPIES = 1000
Config = TypeVar("Config", bound=FineTuneConfig)
LIMITS = Limits(
    options=dict(PRETRAINING.options) | {"train.shape": PRETRAINING.options["schedule.shape"], "distil.kind": KINDS},
    above_zero=("train.epochs", "optim.eps", "distil.temperature"),
    at_least_one=(
        "train.batch",
        "train.evaluations",
        *(key for key in PRETRAINING.at_least_one if key.startswith("run.")),
    ),
    not_negative=(
        *("train.max_length", "train.patience", "optim.lr", "distil.copies"),
        *(key for key in PRETRAINING.not_negative if key.startswith(("optim.", "run."))),
    ),
    shares=("train.warmup", "train.held_out", "optim.betas", "distil.masking", "distil.replacing"),
)
DROPOUTS = ("dropout", "attention_dropout", "classifier_dropout")


def load(overrides: Iterable[str], task: Task[Any], base: Json | None = None) -> FineTuneConfig:
    """The configuration of a run of `task`, checked."""
    return load_as(FineTuneConfig, overrides, task, base or {}, LIMITS)


def load_task_distill(overrides: Iterable[str], task: Task[Any]) -> TaskDistillConfig:
    """The same for a run with a teacher."""
    overrides = [full(override, task, TaskDistillConfig) for override in overrides]
    config = load_as(TaskDistillConfig, overrides, task, {}, LIMITS)
    given = {override.partition("=")[0] for override in overrides}
    if config.distil.kind == "mse" and "distil.alpha" not in given:
        config = replace(config, distil=replace(config.distil, alpha=0.0))
    if config.distil.copies > MOST_COPIES:
        raise UserError(f"settings: distil.copies: must be at most {MOST_COPIES}, not {config.distil.copies}")
    for key in ("alpha", "ngram"):
        if not 0 <= (value := getattr(config.distil, key)) <= 1:
            raise UserError(f"settings: distil.{key}: must lie between 0 and 1, not {value}")
    if (both := config.distil.masking + config.distil.replacing) > 1:
        raise UserError(f"settings: distil.masking and distil.replacing: are shares of the same words, not {both:g}")
    return config


def load_as(kind: type[Config], overrides: Iterable[str], task: Task[Any], base: Json, limits: Limits) -> Config:
    """The configuration of a run of another kind, checked."""
    tree: Json = {"model": {}, "task": {}} | {name: dict(section) for name, section in _OWN.items()} | base
    for override in overrides:
        settings.override(tree, full(override, task, kind))
    config: Config = settings.read(kind, tree, "settings")
    settings.check(config, "settings", limits)
    for key in config.model:
        if key not in DROPOUTS:
            raise UserError(f"settings: model.{key}: only {', '.join(DROPOUTS)} can be changed in a trained model")
    dropouts = {key: settings.read(float, value, "settings", f"model.{key}") for key, value in config.model.items()}
    return replace(config, model=dropouts)


def full(override: str, task: Task[Any], kind: type[FineTuneConfig]) -> str:
    """The same with its section, where it was left out."""
    key, equals, value = override.partition("=")
    if not equals or "." in key:
        return override
    places = {inner.name: s.name for s in fields(kind) for inner in _inner(kind, s.name)}
    places |= dict.fromkeys(DROPOUTS, "model") | dict.fromkeys(task_options(task), "task")
    if key not in places:
        raise UserError(f"{key}: unknown setting, {suggest(key, places)}")
    return f"{places[key]}.{key}={value}"


def _inner(kind: type[FineTuneConfig], section: str) -> Any:
    value = getattr(kind(), section)
    return fields(value) if is_dataclass(value) else ()


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
