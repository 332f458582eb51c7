"""What an encoder carries from one batch to the next: a memory, a cache, the states of an LSTM.

A state is a flat mapping of named tensors, so that loops and checkpoints can move, cut off from the graph and store it
without knowing what it is. None: start fresh.

Shape letters: t tokens, h width.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

State = Mapping[str, Tensor]


class EncoderOutput(NamedTuple):
    """Hidden states (t x h), and the state for the next batch; None if the encoder has none."""

    hidden: Tensor
    state: State | None = None


class StateSpec(NamedTuple):
    """What a tensor of a state must look like; a size of None may be any, a type of None any floating point."""

    shape: tuple[int | None, ...]
    dtype: torch.dtype | None

    def fits(self, tensor: Tensor) -> bool:
        """Return whether a tensor looks like this and holds finite numbers."""
        sizes = len(tensor.shape) == len(self.shape) and all(
            size in (None, there) for size, there in zip(self.shape, tensor.shape, strict=True)
        )
        kind = tensor.is_floating_point() if self.dtype is None else tensor.dtype == self.dtype
        return sizes and kind and bool(tensor.isfinite().all())


@runtime_checkable
class Stateful(Protocol):
    """A module that has a state."""

    def start_state(self, lanes: int) -> State | None:
        """Return the state before the first batch of so many lanes; None if there is none."""

    def state_specs(self, lanes: int) -> Mapping[str, StateSpec]:
        """Describe the tensors of a state of so many lanes."""
