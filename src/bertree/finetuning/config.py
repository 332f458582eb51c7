"""Settings of fine-tuning and of distillation on a task: the sections of their recipe.toml."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

from bertree.config import settings
from bertree.config.overrides import Override, apply_overrides
from bertree.config.sections import SHAPES, OptimSettings, RunSettings
from bertree.config.settings import Above, AtLeast, AtMost, OneOf, Share, setting
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.model.architecture import Architecture
from bertree.model.readout import DEPTHS, MOST, Readout
from bertree.objectives.distill_task import KINDS
from bertree.tasks.task import Task, configure_task, task_options

DROPOUTS = ("dropout", "attention_dropout", "classifier_dropout")
MOST_COPIES = 1000
FROZEN_RATE = 1e-3  # learning rate of heads on a frozen encoder, if none is set
MOST_EPOCHS, LARGEST_BATCH = 1e6, 2**20


@dataclass(frozen=True)
class TrainSettings:
    """Length, batch size, schedule, evaluation and early stopping."""

    epochs: Annotated[float, Above(0), AtMost(MOST_EPOCHS)] = setting(3.0, "passes over the training examples")
    batch: Annotated[int, AtLeast(1), AtMost(LARGEST_BATCH)] = setting(
        32, "examples of a step (windows of SQuAD, questions with their options)"
    )
    max_length: Annotated[int, AtLeast(0)] = setting(
        0, "tokens of a sequence; 0: the task's default, or the model's limit"
    )
    warmup: Annotated[float, Share()] = setting(0.1, "share of the steps in which the learning rate rises from 0")
    shape: Annotated[str, OneOf(SHAPES)] = setting("linear", "how the learning rate falls after the warm-up")
    evaluations: Annotated[int, AtLeast(0)] = setting(
        1, "evaluations on the dev split in each epoch, of which the best is kept; 0: one, after the last step"
    )
    patience: Annotated[int, AtLeast(0)] = setting(
        3, "stop after this many evaluations without a better score; 0: never"
    )
    lm: Annotated[float | None, AtLeast(0)] = setting(
        None,
        "weight of the language-model loss on the task's texts; none: 0.5 if the model reads left to right and has "
        "that head",
    )
    held_out: Annotated[float, Share()] = setting(0.1, "share of the training data used as dev split if there is none")
    # None is not written: recipes without this setting stay as they were before there was one.
    ignore_dev: bool | None = setting(None, "the dev split is not read: as if there were none, a share is held out")
    examples: Annotated[int | None, AtLeast(1)] = setting(
        None, "training examples that are used, drawn at random with the seed; none: all"
    )
    per_class: Annotated[int | None, AtLeast(1)] = setting(None, "the same, of each class")
    few_shot: bool | None = setting(
        None, "the encoder learns to tell the classes apart by pairs of texts; then the head is solved (--few-shot)"
    )


@dataclass(frozen=True)
class ReadoutSettings:
    """What the heads read of the encoder, and whether the encoder is trained."""

    layers: Annotated[str, OneOf(tuple(DEPTHS))] = setting("last", "the hidden states that heads read")
    frozen: Annotated[str, OneOf(("", *DEPTHS))] = setting(
        "",
        "freezes the encoder and names the hidden states that are read of it; none: the encoder is trained (--frozen)",
    )
    lstm: Annotated[int, AtLeast(0), AtMost(MOST)] = setting(
        0, "width of each direction of a BiLSTM between hidden states and head; 0: none"
    )
    lstm_layers: Annotated[int, AtLeast(1), AtMost(64)] = setting(2, "layers of the BiLSTM")
    crf: bool = setting(False, "a CRF chooses the tags of the token head together")
    pooled: bool | None = setting(
        None, "heads on whole texts read the text's vector, as embed gives it; none: where the head is solved"
    )
    c: Annotated[float | None, Above(0)] = setting(
        None,
        "C of a head that is solved: a small one keeps its weights small, as in scikit-learn; none: chosen on the "
        "examples",
    )

    def __post_init__(self) -> None:
        if self.frozen and self.layers != "last":
            raise UserError(
                "readout.layers: readout.frozen names the layers of a frozen encoder; leave one of them out"
            )

    @property
    def of_network(self) -> Readout:
        """The readout of the network."""
        layers = self.frozen or self.layers
        pooled = bool(self.pooled)
        return Readout(layers, self.lstm, self.lstm_layers, frozen=bool(self.frozen), crf=self.crf, pooled=pooled)


@dataclass(frozen=True)
class FineTuneOptimSettings(OptimSettings):
    """The optimizer. Learning rate 0: chosen by the model's width."""

    lr: Annotated[float, AtLeast(0)] = setting(0.0, "the highest learning rate; 0: chosen by the model's width")
    eps: Annotated[float, Above(0)] = setting(1e-8, "added to the denominator of a step of Adam and LAMB")


@dataclass(frozen=True)
class FineTuneRunSettings(RunSettings):
    """How a run is computed, logged and saved. Saving is triggered by time alone."""

    log_every: Annotated[int, AtLeast(1)] = setting(25, "steps between two lines of the log")
    save_every: Annotated[int, AtLeast(1)] = setting(1, "not used: checkpoints are saved by time")


@dataclass(frozen=True)
class FineTuneConfig:
    """The configuration of a fine-tuning run."""

    name: str = ""  # of the task
    note: str = ""  # the initial model
    model: Json = field(default_factory=dict)  # dropouts
    task: Json = field(default_factory=dict)  # the task's own settings, for example stride of SQuAD
    train: TrainSettings = TrainSettings()
    readout: ReadoutSettings = ReadoutSettings()
    optim: FineTuneOptimSettings = FineTuneOptimSettings()
    run: FineTuneRunSettings = FineTuneRunSettings()
    overridden: frozenset[str] = field(default=frozenset(), compare=False, metadata=settings.NOT_A_SETTING)


@dataclass(frozen=True)
class TaskDistillSettings:
    """How a teacher's predictions are used, and how the training examples are augmented."""

    kind: Annotated[str, OneOf(KINDS)] = setting(
        "soft", "soft: the teacher's softened probabilities; hard: its most likely class; mse: its logits"
    )
    alpha: Annotated[float, Share(closed=True)] = setting(
        0.5, "weight of the gold labels; the rest is the weight of the teacher. For mse: 0 unless it is set"
    )
    temperature: Annotated[float, Above(0)] = setting(2.0, "of soft")
    copies: Annotated[int, AtLeast(0), AtMost(MOST_COPIES)] = setting(
        0, "augmented copies of each example, which only the teacher labels"
    )
    masking: Annotated[float, Share()] = setting(0.1, "share of a copy's words that are masked")
    replacing: Annotated[float, Share()] = setting(0.1, "share of a copy's words that are replaced by others")
    ngram: Annotated[float, Share(closed=True)] = setting(0.25, "share of the copies that are cut to a short n-gram")


@dataclass(frozen=True)
class TaskDistillConfig(FineTuneConfig):
    """The configuration of a run that distills a teacher into a student on a task."""

    distill: TaskDistillSettings = TaskDistillSettings()


Config = TypeVar("Config", bound=FineTuneConfig)


def load(overrides: Iterable[str | Override], task: Task[Any], base: Json | None = None) -> FineTuneConfig:
    """Load and check the configuration of a run of `task`."""
    return load_as(FineTuneConfig, overrides, task, base or {})


def load_task_distill(overrides: Iterable[str | Override], task: Task[Any]) -> TaskDistillConfig:
    """Load and check the configuration of a run with a teacher."""
    config = load_as(TaskDistillConfig, overrides, task, {})
    if config.distill.kind == "mse" and "distill.alpha" not in config.overridden:
        config = replace(config, distill=replace(config.distill, alpha=0.0))
    if (share := config.distill.masking + config.distill.replacing) > 1:
        raise UserError(f"settings: distill.masking and distill.replacing: are shares of the same words, not {share:g}")
    return config


def load_as(kind: type[Config], overrides: Iterable[str | Override], task: Task[Any], base: Json) -> Config:
    """Load and check a configuration of any kind of fine-tuning."""
    tree: Json = {"model": {}, "task": {}} | base
    own = task_options(task)
    hidden = {"name", "note", *(["readout.crf"] if "crf" in own else [])}  # `crf=true` is then a setting of the task
    overridden = apply_overrides(tree, overrides, kind, free={"model": DROPOUTS, "task": own}, hidden=hidden)
    config: Config = settings.read(kind, tree, "settings")
    for key in config.model:
        if key not in DROPOUTS:
            raise UserError(f"settings: model.{key}: only {', '.join(DROPOUTS)} can be changed in a trained model")
    dropouts = {key: settings.read(float, value, "settings", f"model.{key}") for key, value in config.model.items()}
    return replace(config, model=dropouts, overridden=frozenset(overridden))


def configure(config: Config, task: Task[Any]) -> tuple[Config, Task[Any]]:
    """Return the task with its settings, and both with the same `crf`, which belongs to the network and to the task."""
    task = configure_task(task, config.task)
    crf = config.readout.crf or getattr(task, "crf", False)
    if crf and not hasattr(task, "crf"):
        raise UserError(f"crf: chooses the tags of words, but {task.name} has none; it is for ner and tagging")
    task = replace(task, crf=crf) if hasattr(task, "crf") else task  # type: ignore[call-arg]
    return replace(config, readout=replace(config.readout, crf=crf)), task


def learning_rate(config: FineTuneConfig, a: Architecture) -> float:
    """Return the learning rate: as set, or the architecture's."""
    if config.optim.lr:
        return config.optim.lr
    return FROZEN_RATE if config.readout.frozen else a.learning_rate
