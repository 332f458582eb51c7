"""A run that trains sentence vectors: its settings, and an encoder with pooling and a classifier for classes of pairs.

The settings are those of fine-tuning, how a text becomes a vector, and the loss.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, make_dataclass, replace
from typing import Annotated, Any, get_type_hints

import torch

from bertree.config.overrides import Override, parse
from bertree.config.settings import AtLeast, AtMost, setting
from bertree.errors import UserError
from bertree.finetuning.config import FineTuneConfig, load_as
from bertree.finetuning.tuner import FineTuning
from bertree.model.architecture import Architecture
from bertree.model.heads import PairClassifier
from bertree.model.network import Network, build
from bertree.model.pooling import MOST, Dense, DenseLayer, PoolingConfig, SentencePooling
from bertree.objectives.embedding_losses import LOSSES, EmbeddingLoss
from bertree.tasks.task import Task

# Every recipe lists the settings of these losses, whichever is used; any other loss adds its own.
LISTED = ("softmax", "triplet", "ranking", "cosine")
DIMENSIONS = ("dimensions", "loss.dimensions")


@dataclass(frozen=True)
class PoolingSettings:
    """How hidden states become a vector; `layers`, which of them, is a setting of `readout`."""

    pooling: str = setting("mean", "cls, mean, max, min, last, sqrt, weighted; several side by side: mean+max")
    normalize: bool = setting(False, "vectors of length 1")
    # None is not written: recipes without this setting stay as they were before there was one.
    dense: Annotated[int | None, AtLeast(1), AtMost(MOST)] = setting(
        None, "width of a linear layer after the pooling; none: as the model has it"
    )


@dataclass(frozen=True)
class EmbeddingConfig(FineTuneConfig):
    """The configuration of a run. `loss` has the fields that `_loss_section` declares."""

    vector: PoolingSettings = PoolingSettings()
    loss: Any = None

    def make_loss(self, loss: type[EmbeddingLoss]) -> EmbeddingLoss:
        """Build the loss with its settings."""
        own = {setting.name: getattr(self.loss, setting.name) for setting in fields(loss)}
        return loss(**own)


def load(
    overrides: Iterable[str | Override], task: Task[Any], loss: type[EmbeddingLoss], vector: PoolingConfig
) -> EmbeddingConfig:
    """Load and check the configuration of a run with that loss; pooling is that of `vector`, unless overridden."""
    section = _loss_section(loss)
    kind = make_dataclass(
        "EmbeddingConfig", [("loss", section, field(default=section()))], bases=(EmbeddingConfig,), frozen=True
    )
    own = {"pooling": vector.pooling, "normalize": vector.normalize}
    base = {"train": {"epochs": loss.epochs, "batch": loss.batch, "evaluations": loss.evaluations}, "vector": own}
    config: EmbeddingConfig = load_as(kind, map(_with_list, overrides), task, base)
    resolved = config.loss
    for listed in _listed(loss):
        resolved = listed.resolve(resolved, config.overridden, config.vector.normalize)
    pooling_of(config, vector)
    dimensions = resolved.dimensions or ()
    if dimensions and not loss.truncatable:
        raise UserError(f"settings: loss.dimensions: the classifier of '{loss.name}' needs vectors of one width")
    if len(set(dimensions)) < len(dimensions):
        raise UserError(f"settings: loss.dimensions: must differ, not {list(dimensions)}")
    return replace(config, loss=resolved)


def pooling_of(config: EmbeddingConfig, vector: PoolingConfig) -> PoolingConfig:
    """Return how vectors are made. Dense layers are kept only on the pooling they were trained on, unless `dense` asks
    for a layer: then it is the only one, and the model's own if that has the same form."""
    chosen = replace(vector, pooling=config.vector.pooling, normalize=config.vector.normalize)
    if config.vector.dense is not None:
        return replace(chosen, dense=(Dense(config.vector.dense, "identity"),))
    keep = chosen.pooling == vector.pooling and not config.readout.of_network.transforms
    return chosen if keep else replace(chosen, dense=())


def _listed(loss: type[EmbeddingLoss]) -> list[type[EmbeddingLoss]]:
    """The losses whose settings the recipe lists; where a setting is one of several losses, that of `loss` counts."""
    return [*(LOSSES[name] for name in LISTED if name != loss.name), loss]


def _loss_section(loss: type[EmbeddingLoss]) -> type:
    """Build the `[loss]` section: the settings of the listed losses, and `dimensions`."""
    order = {setting.name: None for name in LISTED for setting in fields(LOSSES[name])}
    settings: dict[str, Any] = dict(order)
    for listed in _listed(loss):
        hints = get_type_hints(listed, include_extras=True)
        settings |= {
            setting.name: (setting.name, hints[setting.name], field(default=setting.default))
            for setting in fields(listed)
        }
    # None is not written: recipes without this setting stay as they were before there was one.
    dimensions = ("dimensions", Annotated[tuple[int, ...] | None, AtLeast(1)], field(default=None))
    return make_dataclass("LossSettings", [*settings.values(), dimensions], frozen=True)


def _with_list(text: str | Override) -> Override:
    """Let `dimensions=256,128` and `dimensions=256` stand for lists."""
    override = parse(text) if isinstance(text, str) else text
    if override.key not in DIMENSIONS or isinstance(override.value, list | tuple):
        return override
    parts = str(override.value).split(",")
    return Override(override.key, [int(part) if part.strip().isdecimal() else part for part in parts])


@dataclass(kw_only=True)
class EmbeddingFineTuning(FineTuning):
    """A run that trains sentence vectors; `run` trains with one seed."""

    pooling: PoolingConfig = field(default_factory=PoolingConfig)
    concat: tuple[str, ...] = ()  # parts of two vectors that a classifier reads; empty: no classifier

    @property
    def architecture(self) -> Architecture:
        """The architecture of the initial model, with the changes of the configuration."""
        return self.initial.architecture.with_values({"attention_dropout": 0.0} | self.config.model)

    @property
    def reuses_head(self) -> bool:
        """Never: a classifier is not saved."""
        return False

    @property
    def pretrained(self) -> tuple[str, ...]:
        """Prefixes of the weights that are copied from the initial model, where they fit."""
        return ("encoder.", "features.") if self._has_new_dense else ("encoder.", "features.", "vector.")

    @property
    def _has_new_dense(self) -> bool:
        """Whether the dense layers after the pooling are not those of the initial model."""
        initial = self.initial.network.vector
        return self.pooling.dense != (() if initial is None else initial.config.dense)

    def network(self, seed: int) -> Network:
        """Build the network: pretrained encoder and pooling, where they fit, and a new classifier."""
        network = super().network(seed)
        if network.vector is not None and self._has_new_dense:
            _start_as_identity(network.vector)
        return network

    def new_network(self) -> Network:
        """Build the network with random weights."""
        a = self.architecture
        network = build(a, {}, self.config.readout.of_network, self.pooling)
        if self.concat:
            assert network.vector is not None
            network.heads["compare"] = PairClassifier(network.vector.width, self.task.classes, self.concat, a.init_std)
        return network


@torch.no_grad()
def _start_as_identity(pooling: SentencePooling) -> None:
    """Let new dense layers change nothing, or as little as their width allows: training starts from the vectors as they
    were."""
    for layer in pooling.dense:
        assert isinstance(layer, DenseLayer)
        torch.nn.init.eye_(layer.linear.weight)
        if layer.linear.bias is not None:
            torch.nn.init.zeros_(layer.linear.bias)
