"""The architecture of a bidirectional LSTM: its axes, their constraints and its properties.

A small student for distillation. The files of a `Recurrent` architecture also have a transformer's axes, with fixed
values, so that readers find the same keys in every file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from bertree.errors import UserError
from bertree.model.architecture.base import TASK_HEADS, Architecture, axis_problems
from bertree.model.architecture.transformer import Transformer

# The values of a transformer's axes in the files of a recurrent architecture.
FIXED: dict[str, Any] = {
    "heads": 1,
    "attention": "full",
    "embedding_projection": False,
    "position_offset": 0,
    "segments": 0,
    "sharing": "none",
    "groups": 1,
    "activation": "gelu",
    "mask_activation": "gelu",
    "residual": "post-norm",
    "residual_init": "plain",
    "pooler": False,
    "attention_dropout": 0.0,
}
# Axes of `FIXED` where another value is an error, and why. On the others it has no effect and is accepted.
REASONS = {
    "embedding_projection": "the LSTM reads the embeddings as they are",
    "sharing": "each layer has its own weights",
    "groups": "each layer has its own weights",
}


class Recurrent(Architecture):
    """What both kinds of LSTM have in common."""

    has_attention: ClassVar[bool] = False
    reasons: ClassVar[Mapping[str, str]]  # as `REASONS`

    @classmethod
    def _make(cls, values: Mapping[str, Any]) -> Self:
        own = {field.name for field in fields(cls)}
        foreign = {name: value for name, value in values.items() if name not in own and name != "body"}
        _check_transformer_axes(foreign, cls.body, cls.reasons)
        return cls(**{name: value for name, value in values.items() if name in own})

    def fixed_axes(self) -> dict[str, Any]:
        """Return the values of a transformer on axes that this kind does not have."""
        return FIXED

    @property
    def replayable(self) -> bool:
        """False: the LSTM reads sequence lengths on the host."""
        return False

    @property
    def learning_rate(self) -> float:
        """The learning rate of fine-tuning, if none is set."""
        return 1e-3

    @property
    def _mark(self) -> str:
        return "LSTM"


@dataclass(frozen=True)
class BiLstm(Recurrent):
    """A bidirectional LSTM. It has only the axes that all architectures have."""

    body: ClassVar[str] = "bilstm"
    reasons = REASONS | {
        "attention": "a bidirectional LSTM sees the whole sequence",
        "segments": "the two texts of a pair are encoded apart",
        "pooler": "a text is represented by both ends of the LSTM",
    }
    pretrainable: ClassVar[bool] = False
    layers_readable: ClassVar[bool] = False
    head_names: ClassVar[tuple[str, ...]] = TASK_HEADS

    embedding_norm: bool = False
    sequence_head: str = "relu"

    def _problems(self) -> list[str]:
        problems = [f"width: a bilstm has two equal halves, but {self.width} is odd"] if self.width % 2 else []
        if self.direction != "forward":
            problems.append(f"direction: {self.direction}: a bilstm always reads in both; leave it out")
        if self.sequence_head not in ("relu", "compare"):
            problems.append(
                f"sequence_head: a bilstm's is relu (single texts) or compare (pairs), not {self.sequence_head}"
            )
        return problems

    @classmethod
    def _changed(cls, before: Architecture, changes: Mapping[str, Any]) -> Self:
        kept = {field.name: getattr(before, field.name) for field in fields(cls)}
        if not isinstance(before, cls):
            kept |= {"embedding_norm": False, "sequence_head": "relu"}
        return cls._make({**kept, **changes})

    @property
    def sequence_width(self) -> int:
        """Width of what the head reads; for pairs with the vectors u and v: of u, v, u * v and |u - v| together."""
        return 4 * self.width if self.sequence_head == "compare" else self.width

    def for_task(self, head: str, pairs: bool, reads_states: bool) -> Architecture:
        """Return the architecture for a task: the texts of a pair are encoded apart and compared, except by heads that
        read tokens, which need both texts in one sequence."""
        compares = pairs and head in ("sequence", "choice")
        return self.with_values({"sequence_head": "compare" if compares else "relu"})


def _check_transformer_axes(values: Mapping[str, Any], body: str, reasons: Mapping[str, str]) -> None:
    """Refuse values of a transformer's axes that are impossible, or that another kind cannot follow: `reasons`."""
    axes = fields(Transformer)
    fixed = {field.name: field.default for field in axes} | FIXED
    problems = axis_problems(axes, values)
    for name, value in values.items():
        reason = reasons.get(name, "" if name in FIXED else "only a transformer has it")
        if reason and value != fixed[name]:
            problems.append(f"{name}: {reason}, so with body = {body} it is {_lower(fixed[name])}, not {_lower(value)}")
    for problem in problems:
        raise UserError(f"architecture: {problem}")


def _lower(value: Any) -> str:
    return str(value).lower()
