"""What a run that trains vectors is told, beside what any fine-tuning is: how a text becomes one, and the losses."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from bertree.config.bounds import Above, AtLeast, OneOf
from bertree.config.overrides import Override
from bertree.errors import UserError
from bertree.files import Json
from bertree.finetuning import config as configs
from bertree.finetuning.config import FineTuneConfig
from bertree.model.comparison import parts_of
from bertree.model.pooling import Vector
from bertree.objectives.embedding import DISTANCES
from bertree.tasks.task import Task


@dataclass(frozen=True)
class Pooling:
    """How states become a vector; `layers`, which states, is a setting of `top`."""

    pooling: str = "mean"  # cls, mean, max, ...; several side by side: mean+max
    normalise: bool = False  # vectors of length 1


@dataclass(frozen=True)
class Losses:
    """The losses' own settings. Each reads those that concern it."""

    concat: str = "u,v,|u-v|"  # softmax: what the classifier reads of two vectors
    # triplet: how much farther a negative must be; 0.5 where nothing is farther than 2
    margin: Annotated[float, AtLeast(0)] = 5.0
    distance: Annotated[str, OneOf(tuple(DISTANCES))] = "euclidean"  # triplet
    scale: Annotated[float, Above(0)] = 20.0  # ranking: what cosines are multiplied by
    symmetric: bool = False  # ranking: the anchor is looked for among all anchors too
    low: float = 0.0  # cosine: what score is a cosine of 0
    high: float = 0.0  # and what score one of 1; both 0: the scale is found


@dataclass(frozen=True)
class Siamese(FineTuneConfig):
    """A whole run."""

    vector: Pooling = Pooling()
    loss: Losses = Losses()


# As published: NLI once, STS-B four times; ranking lives of large batches, and one too many is soon learned by heart.
USUAL: dict[str, Json] = {
    "softmax": {"epochs": 1.0, "batch": 16, "evaluations": 4},
    "cosine": {"epochs": 4.0, "batch": 16},
    "triplet": {"epochs": 1.0, "batch": 16, "evaluations": 4},
    "ranking": {"epochs": 1.0, "batch": 64, "evaluations": 4},
}
SHORT = 0.5  # margin of distances from 0 to 2


def load(overrides: Iterable[str | Override], task: Task[Any], loss: str, vector: Vector) -> Siamese:
    """The configuration of a run with that loss, checked; what makes vectors is `vector`, unless told otherwise."""
    own = {"pooling": vector.pooling, "normalise": vector.normalise}
    config = configs.load_as(Siamese, overrides, task, {"train": dict(USUAL[loss]), "vector": own})
    given = config.overridden
    short = config.loss.distance == "cosine" or (config.loss.distance == "euclidean" and config.vector.normalise)
    if short and "loss.margin" not in given:
        config = replace(config, loss=replace(config.loss, margin=SHORT))
    parts_of(config.loss.concat)
    made(config, vector)
    low, high = config.loss.low, config.loss.high
    if {"loss.low", "loss.high"} & given and not low < high:
        raise UserError(f"settings: loss.low, loss.high: {low:g} to {high:g} is no scale; give both, low=0 high=5")
    return config


def made(config: Siamese, vector: Vector) -> Vector:
    """What makes vectors. Dense layers stay where they still stand on what they were trained on."""
    chosen = replace(vector, pooling=config.vector.pooling, normalise=config.vector.normalise)
    stays = chosen.pooling == vector.pooling and config.top.layers == "last" and not config.top.lstm
    return chosen if stays else replace(chosen, dense=())
