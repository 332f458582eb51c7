"""What an encoder carries from one batch to the next: a memory, a cache, the states of an LSTM.

A state is a flat mapping of named tensors, so that loops and checkpoints can move, cut off from the graph and store it
without knowing what it is. None: start fresh.

Shape letters: t tokens, h width.
"""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

State = Mapping[str, Tensor]


class Encoded(NamedTuple):
    """Hidden states (t x h), and the state for the next batch; None if the encoder has none."""

    hidden: Tensor
    state: State | None = None
