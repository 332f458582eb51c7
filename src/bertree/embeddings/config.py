"""Settings of a run that trains sentence vectors: those of fine-tuning, how a text becomes a vector, and the loss."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, make_dataclass, replace
from typing import Annotated, Any, get_type_hints

from bertree.config.overrides import Override, parse
from bertree.config.settings import AtLeast, AtMost, setting
from bertree.errors import UserError
from bertree.finetuning import config as configs
from bertree.finetuning.config import FineTuneConfig
from bertree.model.pooling import MOST, Dense, PoolingConfig
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
    config: EmbeddingConfig = configs.load_as(kind, map(_with_list, overrides), task, base)
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
