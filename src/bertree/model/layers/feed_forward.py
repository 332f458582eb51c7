"""Feed-forward layers, and the activations.

Shape letters: t tokens, h width, f inner width.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.kernels import triton_activations
from bertree.model.kernels.triton_activations import gelu
from bertree.model.layers.basic import product_and_bias

ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": lambda x: x.tanh(),
}


def in_chunks(transform: Callable[[Tensor], Tensor], x_th: Tensor, chunk: int) -> Tensor:
    """Transform each token's state, `chunk` tokens at a time; 0: all at once.

    With gradients each chunk is computed again in the backward pass, so inner states exist for one chunk at a time.
    """
    if not 0 < chunk < len(x_th):
        return transform(x_th)
    if torch.is_grad_enabled():
        again = partial(checkpoint, transform, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([again(some_th) for some_th in x_th.split(chunk)])
    return torch.cat([transform(some_th) for some_th in x_th.split(chunk)])


class TokenTransform(nn.Module):
    """Linear layers with something between them, applied to each token alone. `chunk`: tokens at a time; 0: all."""

    down: nn.Linear

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.chunk = chunk

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Transform each token's hidden state. The batch is not used."""
        return in_chunks(self._transform, x_th, self.chunk)

    def _transform(self, x_th: Tensor) -> Tensor:
        out_th: Tensor = self.down(self._inner(x_th))
        return out_th

    def before_bias(self, x_th: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return the result without the bias of the last layer, and that bias; None: it is in the result."""
        if self.chunk:
            return self(x_th, batch), None
        return product_and_bias(self.down, self._inner(x_th))

    def _inner(self, x_th: Tensor) -> Tensor:
        """Return the input of the last layer."""
        raise NotImplementedError


class FeedForward(TokenTransform):
    """Two linear layers with an activation between them."""

    def __init__(self, width: int, inner: int, activation: str, bias: bool = True, chunk: int = 0) -> None:
        super().__init__(chunk)
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)
        self.activation = ACTIVATION[activation]

    @property
    def activation_name(self) -> str:
        """Name of the activation in `ACTIVATION`; empty if it is none of them."""
        return next((name for name, function in ACTIVATION.items() if function is self.activation), "")

    def _inner(self, x_th: Tensor) -> Tensor:
        if self.activation is gelu and triton_activations.gelu_usable(x_th) and torch.is_grad_enabled():
            return gelu(*product_and_bias(self.up, x_th))
        return self.activation(self.up(x_th))


class GatedFeedForward(TokenTransform):
    """down(activation(a) * gate), where a and gate are the two halves of one product (Shazeer 2020)."""

    def __init__(self, width: int, inner: int, activation: str, bias: bool = True, chunk: int = 0) -> None:
        super().__init__(chunk)
        self.up = nn.Linear(width, 2 * inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)
        self.activation_name = activation

    def _inner(self, x_th: Tensor) -> Tensor:
        both_tf = self.up(x_th)
        if triton_activations.gated_usable(both_tf, self.activation_name):
            return triton_activations.gated(both_tf, self.activation_name)
        a, gate = both_tf.chunk(2, -1)
        return ACTIVATION[self.activation_name](a) * gate


# Width, inner width, activation, whether there are biases, tokens at a time -> the part, for each value of the axis
# `ffn`.
FEED_FORWARD: dict[str, Callable[[int, int, str, bool, int], FeedForward | GatedFeedForward]] = {
    "plain": FeedForward,
    "gated": GatedFeedForward,
}


def build_feed_forward(a: Transformer) -> list[FeedForward | GatedFeedForward]:
    """Build the feed-forward layers; what encoder layers share is built once."""
    parts = (a.width, a.ffn_width, a.activation, a.ffn_bias, a.ffn_chunk)
    return [FEED_FORWARD[a.ffn](*parts) for _ in set(a.sharing_indices("ffn"))]
