"""The losses that train sentence vectors. Each is described in one place: the class that computes it.

To add a loss, write a frozen dataclass below `EmbeddingLoss` with `@register_loss` on it. Its fields are its settings,
its class attributes say which rows it reads and how long it is usually trained; the command line's help, the recipe
and the messages follow from them. Torch is imported only when a loss is computed, so that help texts are quick.

A loss sees the vectors of a batch as a table of questions x texts, in which the first text is the anchor and the
second the positive.

Shape letters: q questions, w texts of a question, d width of a vector, n negatives.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import Field, dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from bertree.config.settings import Above, AtLeast, OneOf, setting
from bertree.errors import UserError, suggest

if TYPE_CHECKING:
    from torch import Tensor

    from bertree.model.network import Network
    from bertree.objectives.objective import Loss

ROWS = {  # what is known about the texts of a row
    "label": "pairs with labels",
    "score": "pairs with scores",
    "triplet": "triplets (an anchor, its positive, negatives)",
    "pair": "pairs of texts alone",
    "text": "single texts",
}
CROSS = "cross"  # not a loss for vectors, but chosen in the same place: a model that reads both texts at once
CROSS_LABEL = "no vectors, but a model that reads both texts at once"
DISTANCES = ("euclidean", "manhattan", "cosine")
SHORT_MARGIN = 0.5  # where no distance exceeds 2


@dataclass(frozen=True)
class EmbeddingLoss(ABC):
    """A loss on the vectors of a batch. The first line of a subclass's docstring is its help text."""

    name: ClassVar[str]
    label: ClassVar[str]  # what is learned, in a few words
    reads: ClassVar[tuple[str, ...]]  # kinds of rows, see ROWS
    needs: ClassVar[str]  # the same in words, for messages
    default_for: ClassVar[str] = ""  # the kind of rows for which this loss is chosen if none is named
    epochs: ClassVar[float] = 1.0  # the usual settings of a run
    batch: ClassVar[int] = 16
    evaluations: ClassVar[int] = 4  # an epoch
    whole_step: ClassVar[bool] = False  # depends on all rows of a step, not on each row alone
    truncatable: ClassVar[bool] = True  # can be computed on truncated vectors (the setting `dimensions`)
    answered: ClassVar[Any] = ...  # index of the answers for which losses are summed

    def is_answered(self, answers: "Tensor") -> "Tensor":
        """Return which answers exist.

        `answers` are classes (rows with labels), numbers from 0 to 1 (scores), or else a number for each text (q x w)
        that equal texts share. Unknown ones are -100, or NaN for scores."""
        from bertree.batch import IGNORED

        answers = answers[self.answered]
        return ~answers.isnan() if answers.is_floating_point() else answers != IGNORED

    def count(self, answers: "Tensor") -> int:
        """Return how many losses are summed, on the host."""
        return int(self.is_answered(answers).sum())

    @abstractmethod
    def __call__(self, network: "Network", table_qwd: "Tensor", answers: "Tensor") -> "Loss":
        """Return the sum of the losses."""

    @classmethod
    def resolve(cls, settings: Any, overridden: Collection[str], normalize: bool) -> Any:
        """Check settings against each other and fill in defaults that depend on others.

        `overridden` are the keys the user has set (loss.margin); `normalize`: vectors have length 1."""
        return settings

    def classifier_parts(self) -> tuple[str, ...]:
        """Return what a classifier reads of two vectors (u, v, |u-v|, u*v); nothing if there is no classifier."""
        return ()


class RowLoss(EmbeddingLoss):
    """A sum of the errors of rows, or of negatives, that have an answer."""

    @abstractmethod
    def errors(self, table_qwd: "Tensor", answers: "Tensor") -> "Tensor":
        """Return an error for each answer of `answered`."""

    def __call__(self, network: "Network", table_qwd: "Tensor", answers: "Tensor") -> "Loss":
        """Sum the errors that have an answer."""
        from bertree.objectives.objective import Loss

        return Loss(self.errors(table_qwd, answers).masked_fill(~self.is_answered(answers), 0.0).sum(), None)


LOSSES: dict[str, type[EmbeddingLoss]] = {}
AnyLoss = TypeVar("AnyLoss", bound=type[EmbeddingLoss])


def register_loss(loss: AnyLoss) -> AnyLoss:
    """Make a loss known by its name, on the command line and in `train_embeddings(loss=...)`."""
    if "__dataclass_params__" not in vars(loss):
        dataclass(frozen=True)(loss)
    name = getattr(loss, "name", "")
    if not isinstance(name, str) or not name or name == CROSS:
        raise UserError(f"{loss.__name__}: a loss needs a `name` of its own, not {name!r}")
    if name in LOSSES and LOSSES[name].__module__ == __name__:
        raise UserError(f"{loss.__name__}: there is a loss '{name}' already; choose another name")
    for kind in getattr(loss, "reads", ()) or ("",):
        if kind not in ROWS:
            raise UserError(f"{loss.__name__}: reads '{kind}', which is no kind of rows; {suggest(kind, ROWS)}")
    LOSSES[name] = loss
    return loss


def loss_named(name: str) -> type[EmbeddingLoss]:
    """Return the loss of that name."""
    if name not in LOSSES:
        raise UserError(f"`loss={name}`: unknown, {suggest(name, (*LOSSES, CROSS))}")
    return LOSSES[name]


def default_loss(kind: str) -> str:
    """Return the name of the loss for rows of a kind."""
    return next(name for name, loss in LOSSES.items() if loss.default_for == kind)


def loss_choices() -> str:
    """Return the names of all losses, as the command line shows them."""
    return "|".join((*LOSSES, CROSS))


def loss_help() -> str:
    """Return what each loss learns, for the command line."""
    labels = "; ".join(f"{name}: {loss.label}" for name, loss in LOSSES.items())
    return f"What is learned. {labels}; {CROSS}: {CROSS_LABEL}. Without it, what the data are for."


def loss_settings_help() -> str:
    """Return the settings of each loss with their defaults, for the command line."""
    lines = {name: ", ".join(map(_setting_help, fields(loss))) for name, loss in LOSSES.items()}
    return "; ".join(f"{name}: {line}" for name, line in lines.items() if line)


def loss_defaults_help(setting: str) -> str:
    """Return the usual value of epochs, batch or evaluations, and the losses that differ from it."""
    default = getattr(EmbeddingLoss, setting)
    different = [f"{name}: {value:g}" for name, loss in LOSSES.items() if (value := getattr(loss, setting)) != default]
    return f"{default:g}" + (f" ({', '.join(different)})" if different else "")


def _setting_help(setting: Field[Any]) -> str:
    value = setting.default
    shown = f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else value
    return f"{setting.name}={shown} ({setting.metadata.get('meaning', '')})"


@register_loss
@dataclass(frozen=True)
class SoftmaxLoss(EmbeddingLoss):
    """Cross-entropy of the class of each pair, by a classifier on both vectors that is not kept."""

    name = "softmax"
    label = "classes of pairs"
    reads = ("label",)
    needs = "a label for each pair"
    default_for = "label"
    truncatable = False

    concat: str = setting("u,v,|u-v|", "what the classifier reads, also u*v")

    def __call__(self, network: "Network", table_qwd: "Tensor", answers: "Tensor") -> "Loss":
        """Cross-entropy of the `compare` head."""
        from bertree.objectives.embedding import pair_logits
        from bertree.objectives.objective import cross_entropy

        return cross_entropy(pair_logits(network, table_qwd), answers)

    @classmethod
    def resolve(cls, settings: Any, overridden: Collection[str], normalize: bool) -> Any:
        """Every part of `concat` must be known."""
        from bertree.model.heads import parse_concat

        parse_concat(settings.concat)
        return settings

    def classifier_parts(self) -> tuple[str, ...]:
        """The parts named by `concat`."""
        from bertree.model.heads import parse_concat

        return parse_concat(self.concat)


@register_loss
@dataclass(frozen=True)
class TripletLoss(RowLoss):
    """By how much each negative is nearer to the anchor than the positive plus a margin."""

    name = "triplet"
    label = "a positive nearer than its negatives"
    reads = ("triplet",)
    needs = "three texts (anchor, positive, negative) or labels of NLI"
    default_for = "triplet"
    answered = (slice(None), slice(2, None))  # the negatives

    margin: Annotated[float, AtLeast(0)] = setting(5.0, f"{SHORT_MARGIN} where no distance exceeds 2")
    distance: Annotated[str, OneOf(DISTANCES)] = setting("euclidean", "manhattan, cosine")

    def errors(self, table_qwd: "Tensor", answers: "Tensor") -> "Tensor":
        """For each negative (q x n)."""
        from bertree.objectives.embedding import DISTANCE_FUNCTIONS, triplet_errors

        return triplet_errors(table_qwd, DISTANCE_FUNCTIONS[self.distance], self.margin)

    @classmethod
    def resolve(cls, settings: Any, overridden: Collection[str], normalize: bool) -> Any:
        """A smaller default margin where distances are small."""
        short = settings.distance == "cosine" or (settings.distance == "euclidean" and normalize)
        return replace(settings, margin=SHORT_MARGIN) if short and "loss.margin" not in overridden else settings


@register_loss
@dataclass(frozen=True)
class RankingLoss(RowLoss):
    """Cross-entropy of finding each anchor's positive among all positives and negatives of the step."""

    name = "ranking"
    label = "the right text among all texts of a batch"
    reads: ClassVar[tuple[str, ...]] = ("pair", "triplet")
    needs = "two texts that belong together, with negatives or without, or labels of NLI"
    default_for = "pair"
    answered = (slice(None), 0)  # the anchors
    batch = 64  # larger batches hold more negatives
    whole_step = True

    scale: Annotated[float, Above(0)] = setting(20.0, "factor of the cosines")
    symmetric: bool = setting(False, "also finds the anchor among all anchors")
    all_ranks: bool = setting(True, "among the texts of all processes of torchrun; false: of its own")

    def errors(self, table_qwd: "Tensor", answers: "Tensor") -> "Tensor":
        """For each anchor (q)."""
        from bertree.objectives.embedding import ranking_errors

        return ranking_errors(table_qwd, answers, self.scale, self.symmetric)


@register_loss
@dataclass(frozen=True)
class SimcseLoss(RankingLoss):
    """Cross-entropy of finding each text again among all texts of the step; only dropout tells both passes apart."""

    name = "simcse"
    label = "the same text, with other dropout, among all texts of a batch"
    reads = ("text",)
    needs = "texts"
    default_for = "text"


@register_loss
@dataclass(frozen=True)
class CosineLoss(RowLoss):
    """Squared difference of each pair's cosine and its score, scaled to the range from 0 to 1."""

    name = "cosine"
    label = "scores of pairs"
    reads = ("score",)
    needs = "a score for each pair"
    default_for = "score"
    epochs = 4.0
    evaluations = 1

    low: float = setting(0.0, "the score that is a cosine of 0; default: found in the data")
    high: float = setting(0.0, "the score that is a cosine of 1; default: found in the data")

    def errors(self, table_qwd: "Tensor", answers: "Tensor") -> "Tensor":
        """For each pair (q)."""
        from bertree.objectives.embedding import cosine_errors

        return cosine_errors(table_qwd[:, 0], table_qwd[:, 1], answers.nan_to_num())

    @classmethod
    def resolve(cls, settings: Any, overridden: Collection[str], normalize: bool) -> Any:
        """`low` must be below `high` where they are given."""
        low, high = settings.low, settings.high
        if {"loss.low", "loss.high"} & set(overridden) and not low < high:
            raise UserError(f"settings: loss.low, loss.high: {low:g} to {high:g} is no scale; give both, low=0 high=5")
        return settings


@register_loss
@dataclass(frozen=True)
class CosentLoss(EmbeddingLoss):
    """Log of one plus the sum, over pairs of rows, of how much the row with the lower score has the higher cosine."""

    name = "cosent"
    label = "the order of scores"
    reads = ("score",)
    needs = "a score for each pair"
    epochs = 4.0
    evaluations = 1
    whole_step = True

    scale: Annotated[float, Above(0)] = setting(20.0, "factor of the cosines")
    low: float = setting(0.0, "the lowest score; default: found in the data")
    high: float = setting(0.0, "the highest score; default: found in the data")

    def count(self, answers: "Tensor") -> int:
        """One for a step."""
        return int((~answers.isnan()).any())

    def __call__(self, network: "Network", table_qwd: "Tensor", answers: "Tensor") -> "Loss":
        """Compare every row with every other of the step."""
        from bertree.objectives.embedding import cosent_error
        from bertree.objectives.objective import Loss

        return Loss(cosent_error(table_qwd, answers, self.scale), None)


@register_loss
@dataclass(frozen=True)
class MarginLoss(RowLoss):
    """Squared difference of two cosines' difference and of a teacher's (margin-MSE)."""

    name = "margin"
    label = "how much better a teacher finds the positive than the negative"
    reads = ("score",)
    needs = "three texts (anchor, positive, negative) and the difference of a teacher's scores as `score`"
    epochs = 4.0
    evaluations = 1

    scale: Annotated[float, Above(0)] = setting(1.0, "factor of the cosines")
    low: float = setting(-1.0, "the lowest difference")
    high: float = setting(1.0, "the highest difference")

    def errors(self, table_qwd: "Tensor", answers: "Tensor") -> "Tensor":
        """For each triplet (q)."""
        from bertree.objectives.embedding import margin_errors

        if table_qwd.shape[1] < 3:
            raise UserError(f"the loss '{self.name}' needs {self.needs}")
        target_q = self.low + answers.nan_to_num() * (self.high - self.low)
        return margin_errors(table_qwd, target_q, self.scale)
