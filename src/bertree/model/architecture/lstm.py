"""The architecture of an LSTM language model: its axes, their constraints and its properties.

ELMo is one: characters through a CNN, then LSTMs with projections that read in both directions. An LSTM of one
direction on a table of tokens is another. `width` is that of the projections, in each direction. Its files also have a
transformer's axes, with fixed values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from bertree.model.architecture.base import (
    MAX_ROWS,
    MAX_WIDTH,
    TASK_HEADS,
    Architecture,
    at_most,
    axis,
    list_of_rising_numbers,
    not_negative,
    positive,
)
from bertree.model.architecture.bilstm import REASONS, Recurrent

MAX_FILTERS, MAX_CHARACTERS = 64, 1024


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
