"""The interface of encoders, and the state that they carry from one batch to the next. Networks, readouts and the
training loop use nothing else of an encoder.

A state (a memory, a cache) is a flat mapping of named tensors, so that loops and checkpoints can move, detach and store
it without knowing what it is. None: there is no state yet.

Shape letters: t tokens, s sequences, h width.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.layers.embeddings import Embeddings

State = Mapping[str, Tensor]


class EncoderOutput(NamedTuple):
    """Hidden states (t x h), and the state for the next batch; None if the encoder has none."""

    hidden: Tensor
    state: State | None = None


class StateSpec(NamedTuple):
    """Shape, type and limits of a tensor of a state. A size of None may be any, a type of None float32 or bfloat16."""

    shape: tuple[int | None, ...]
    dtype: torch.dtype | None
    least: int | None = None  # of its values, if they have limits
    most: int | None = None

    def fits(self, tensor: Tensor) -> bool:
        """Return whether a tensor has this shape and type, and finite values within the limits."""
        sizes = len(tensor.shape) == len(self.shape) and all(
            size in (None, actual) for size, actual in zip(self.shape, tensor.shape, strict=True)
        )
        kind = tensor.dtype in (torch.float32, torch.bfloat16) if self.dtype is None else tensor.dtype == self.dtype
        if not sizes or not kind or not all_finite(tensor):
            return False
        above = self.least is None or not tensor.numel() or bool(tensor.min() >= self.least)
        return above and (self.most is None or not tensor.numel() or bool(tensor.max() <= self.most))


def all_finite(tensor: Tensor) -> bool:
    """Return whether a tensor has neither NaN nor infinity. Its sum is finite then, unless it overflows."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


@runtime_checkable
class Stateful(Protocol):
    """A module that has a state."""

    def start_state(self, lanes: int) -> State | None:
        """Return the state before the first batch, for this number of lanes; None if there is none."""

    def state_specs(self, lanes: int) -> Mapping[str, StateSpec]:
        """Describe the tensors of a state for this number of lanes."""


class Encoder(nn.Module, ABC):
    """Batch -> hidden states. `width` is that of the last states, `depth` the number of layers."""

    def __init__(self, embeddings: Embeddings, width: int, depth: int) -> None:
        super().__init__()
        self.width = width
        self.depth = depth
        self.readers = 1  # how many times it reads a text
        self.embeddings = embeddings
        self.pooler: nn.Linear | None = None

    @abstractmethod
    def states(self, batch: Batch) -> Iterator[Tensor]:
        """Yield the embeddings, then each layer's hidden states (t x h); the last are those of `forward`.

        Layers are computed as the states are taken, so a caller that stops early saves the layers above.
        """

    def forward(self, batch: Batch) -> Tensor:
        """Return the last hidden states (t x h) of a batch that continues no other."""
        for state in self.states(batch):
            last_th = state
        return last_th

    def encode(self, batch: Batch, state: State | None = None) -> EncoderOutput:
        """Return the last hidden states and what the next batch continues from: nothing, without a memory."""
        return EncoderOutput(self(batch))

    def start_state(self, lanes: int) -> State | None:
        """Return the state before the first batch, for this number of lanes: None, without a memory."""
        return None

    def state_specs(self, lanes: int) -> Mapping[str, StateSpec]:
        """Describe the tensors of a state for this number of lanes: none, without a memory."""
        return {}

    def predictions(self, batch: Batch, chosen_m: Tensor, targets_m: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of `reader_states` that predict tokens, and these tokens. The labels are those of a
        left-to-right model: the tokens that predict the next one, and the next one."""
        return chosen_m, targets_m

    def reader_states(self, hidden_th: Tensor) -> Tensor:
        """Return the states that predict tokens: a row for each token, or two, one of each direction in turn."""
        return hidden_th if self.readers == 1 else hidden_th.reshape(-1, self.width // self.readers)

    def summary_index(self, batch: Batch) -> Tensor:
        """Index of the token that represents each sequence (s, int64): the batch says which, or it is the first."""
        return batch.first if batch.summary is None else batch.summary

    def sequence_states(self, hidden_th: Tensor, batch: Batch) -> Tensor:
        """Return one state per sequence, of states of any width: its summary token's (s x h)."""
        return hidden_th[self.summary_index(batch)]

    def pool(self, hidden_th: Tensor, batch: Batch) -> Tensor:
        """Return the pooler's output for each sequence (s x h), for heads that read it."""
        if self.pooler is None:
            raise NotImplementedError(f"a {type(self).__name__} has no pooler")
        pooled: Tensor = self.pooler(self.sequence_states(hidden_th, batch)).tanh()
        return pooled

    def recompute(self, wanted: bool) -> None:
        """Compute activations again in the backward pass instead of keeping them, where the encoder can."""
