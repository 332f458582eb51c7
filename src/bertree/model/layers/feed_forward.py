"""The feed-forward part of a layer, and the activations.

Shape letters: t tokens, h width.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.errors import UserError
from bertree.model.architecture import Transformer
from bertree.model.kernels.custom_ops import gelu

ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": lambda x: x.tanh(),
}


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, applied to each token alone."""

    def __init__(self, width: int, inner: int, activation: str, bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)
        self.activation = ACTIVATION[activation]

    @property
    def activation_name(self) -> str:
        """Name of the activation in `ACTIVATION`; empty if it is none of them."""
        return next((name for name, function in ACTIVATION.items() if function is self.activation), "")

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Transform each token's hidden state. The batch is not used."""
        out_th: Tensor = self.down(self.activation(self.up(x_th)))
        return out_th


class GatedFeedForward(nn.Module):
    """down(activation(a) * gate), where a and gate are the two halves of one product (Shazeer 2020)."""

    def __init__(self, width: int, inner: int, activation: str, bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)
        self.activation = ACTIVATION[activation]

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Transform each token's hidden state. The batch is not used."""
        a, gate = self.up(x_th).chunk(2, -1)
        out_th: Tensor = self.down(self.activation(a) * gate)
        return out_th


# Width, inner width, activation and whether there are biases -> the part, for each value of the axis `ffn`.
FEED_FORWARD: dict[str, Callable[[int, int, str, bool], FeedForward | GatedFeedForward]] = {
    "plain": FeedForward,
    "gated": GatedFeedForward,
}


def build_feed_forward(a: Transformer) -> list[FeedForward | GatedFeedForward]:
    """Build the feed-forward part of the layers; what layers share is built once."""
    if a.ffn_chunk:
        raise UserError("architecture: ffn_chunk: a feed-forward part in chunks cannot be built yet")
    return [FEED_FORWARD[a.ffn](a.width, a.ffn_width, a.activation, a.ffn_bias) for _ in set(a.plan("ffn"))]
