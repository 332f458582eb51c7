"""The architectures of LSTMs: their axes, their constraints and their properties.

A bidirectional LSTM is a small student for distillation. Of the LSTM language models ELMo is one: characters through a
CNN, then LSTMs with projections that read in both directions. An LSTM of one direction on a table of tokens is another;
`width` is that of the projections, in each direction. The files of a `Recurrent` architecture also have a transformer's
axes, with fixed values, so that readers find the same keys in every file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from bertree.errors import UserError
from bertree.model.architecture.base import (
    MAX_ROWS,
    MAX_WIDTH,
    TASK_HEADS,
    Architecture,
    at_most,
    axis,
    axis_problems,
    list_of_rising_numbers,
    not_negative,
    positive,
)
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
MAX_FILTERS, MAX_CHARACTERS = 64, 1024


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


def filter_sizes(value: str) -> str:
    """Filters of a CNN, as length:number, divided by commas."""
    parts = [part.split(":") for part in value.split(",")]
    if not all(len(part) == 2 and all(n.isascii() and n.isdigit() and int(n[:9]) > 0 for n in part) for part in parts):
        return f"must be filters such as 1:32,2:64 (length:number), not '{value}'"
    if len(parts) > MAX_FILTERS or any(len(n) > 5 for part in parts for n in part):
        return f"'{value[:60]}' has more or larger filters than are supported"
    return ""


@dataclass(frozen=True)
class Lstm(Recurrent):
    """An LSTM language model."""

    body: ClassVar[str] = "lstm"
    reasons = REASONS | {
        "attention": "an LSTM has none",
        "embedding_norm": "the LSTM reads the embeddings as they are",
        "segments": "an LSTM has no segments",
        "pooler": "a text is represented by the ends of the LSTM",
        "sequence_head": "the classifier is one linear layer",
    }
    pretrainable: ClassVar[bool] = True
    compilable: ClassVar[bool] = False
    layers_readable: ClassVar[bool] = True
    head_names: ClassVar[tuple[str, ...]] = ("mask", *TASK_HEADS)

    embedding_norm: bool = False
    sequence_head: str = "linear"
    cell_clip: float = axis(0.0, "largest magnitude of an LSTM's cell; 0: any", not_negative)
    projection_clip: float = axis(0.0, "largest magnitude of an LSTM's projected output; 0: any", not_negative)
    skip_connections: bool = axis(True, "each LSTM layer but the first adds its input to its output")
    characters: int = axis(
        0, "characters of a token that a CNN reads; 0: a table of tokens", not_negative, at_most(MAX_CHARACTERS)
    )
    character_width: int = axis(16, "width of the character embeddings", positive, at_most(MAX_WIDTH))
    filters: str = axis("1:32,2:32,3:64,4:128,5:256,6:512,7:1024", "the CNN's filters, length:number", filter_sizes)
    highways: int = axis(2, "highway layers after the CNN", not_negative, at_most(64))
    cutoffs: str = axis("", "", list_of_rising_numbers)
    embedding_divisor: int = axis(1, "", positive, at_most(MAX_ROWS))

    def _problems(self) -> list[str]:
        problems = []
        if self.embedding_width != self.width:
            problems.append(f"embedding_width: an lstm's is its width, {self.width}, not {self.embedding_width}")
        if self.characters and self.characters < self.longest_filter:
            problems.append(f"characters: {self.characters} are less than the longest filter, {self.longest_filter}")
        if self.cutoffs and self.cluster_starts[-2] >= self.vocab_size:
            problems.append(f"cutoffs: {self.cutoffs} must lie below the vocabulary size {self.vocab_size}")
        if not self.cutoffs and self.embedding_divisor > 1:
            problems.append("embedding_divisor: has no meaning without cutoffs")
        return problems

    @classmethod
    def _make(cls, values: Mapping[str, Any]) -> Self:
        return super()._make({"embedding_width": values.get("width", cls.width)} | dict(values))

    @classmethod
    def _changed(cls, before: Architecture, changes: Mapping[str, Any]) -> Self:
        shared = fields(cls if isinstance(before, cls) else Architecture)
        kept = {field.name: getattr(before, field.name) for field in shared}
        if not isinstance(before, cls):
            kept |= {"embedding_norm": False, "sequence_head": "linear"}
        del kept["embedding_width"]  # it follows from the width
        values = {**kept, **changes}
        if "cutoffs" not in changes and values.get("cutoffs"):  # those of the vocabulary before may lie beyond this one
            below = [cutoff for cutoff in values["cutoffs"].split(",") if int(cutoff) < values["vocab_size"]]
            values |= {"cutoffs": ",".join(below)} | ({} if below else {"embedding_divisor": 1})
        return cls._make(values)

    @property
    def filter_table(self) -> tuple[tuple[int, int], ...]:
        """Length and number of each kind of filter."""
        pairs = (part.split(":") for part in self.filters.split(","))
        return tuple((int(length), int(count)) for length, count in pairs)

    @property
    def longest_filter(self) -> int:
        """Length of the longest filter."""
        return max(length for length, _ in self.filter_table)

    @property
    def cluster_starts(self) -> tuple[int, ...]:
        """First id of each cluster of the vocabulary, then its size."""
        return (0, *(int(cutoff) for cutoff in self.cutoffs.split(",") if cutoff), self.vocab_size)

    @property
    def tied_output(self) -> bool:
        """True if the softmax uses the table of tokens."""
        return not self.characters and not self.cutoffs

    @property
    def mixes_embeddings(self) -> bool:
        """True: a sum of all layers has the embeddings too, as ELMo's."""
        return True

    @property
    def causal(self) -> bool:
        """True: no token sees those that are read after it."""
        return True

    @property
    def longest_input(self) -> int:
        """Longest sequence: an LSTM has no positions, so they have no end."""
        return MAX_ROWS

    def for_task(self, head: str, pairs: bool, reads_states: bool) -> Architecture:
        """Return the same architecture: texts of a pair are read in one sequence."""
        return self
