"""The small parts a stack is built from: embeddings, feed-forward, and how they join the residual.

Shape letters: t tokens, e embedding width, h width, f inner width of the feed-forward part.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.kernels.custom_ops import gelu

ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": lambda x: x.tanh(),
}


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, applied to each token alone."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.activation = ACTIVATION[activation]

    @property
    def activation_name(self) -> str:
        """Name of its activation in `ACTIVATION`; empty if it is not one of them."""
        return next((name for name, function in ACTIVATION.items() if function is self.activation), "")

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Hidden states in, transformed hidden states out; the batch is not needed."""
        out: Tensor = self.down(self.activation(self.up(x_th)))
        return out
