"""The feed-forward part of a layer, and the activations.

Shape letters: t tokens, h width.
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
        """Name of the activation in `ACTIVATION`; empty if it is none of them."""
        return next((name for name, function in ACTIVATION.items() if function is self.activation), "")

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Transform each token's hidden state. The batch is not used."""
        out_th: Tensor = self.down(self.activation(self.up(x_th)))
        return out_th
