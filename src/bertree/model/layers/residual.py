"""How attention and feed-forward are connected to the residual stream: post-norm, pre-norm or reversible.

The connection belongs to the stack: it opens a stream from the embeddings, applies one block after the other to it, and
closes it to hidden states. A stream may be more than one tensor: that of post-norm and pre-norm is the hidden states
(of post-norm on a GPU also a carrier of gradients, `Normed`), a reversible one is two halves of them.

Shape letters: t tokens, h width.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bertree.model.kernels import triton_add_norm
from bertree.model.kernels.triton_add_norm import Normed, add_norm
from bertree.model.layers.attention import Attention
from bertree.model.layers.feed_forward import FeedForward, GatedFeedForward
from bertree.model.torch_internals import has_forward_hooks

Stream = Any  # what a residual connection carries from block to block


class Block(nn.Module):
    """Attention or feed-forward (`part`) with its norm and dropout, which the residual connection applies in its order.

    All of a block is computed in its `forward`, so that what is put on a module from outside (compilation, sharding)
    covers the norm too.
    """

    def __init__(self, part: nn.Module, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.part = part
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def forward(self, residual: "Residual", stream: Stream, *inputs: Any) -> Stream:
        """Return the stream after this block; `inputs` are the other arguments of attention or feed-forward."""
        return residual.apply(stream, self, *inputs)

    def branch(self, x_th: Tensor, *inputs: Any) -> Tensor:
        """Return dropout(part(x)), which is added to the stream."""
        out_th: Tensor = self.dropout(self.part(x_th, *inputs))
        return out_th


class Residual(Protocol):
    """A residual connection; its stream is the hidden states, unless it opens and closes another. `norms_last`: the
    states after the last layer still need a norm."""

    @property
    def norms_last(self) -> bool: ...

    def open(self, x_th: Tensor) -> Stream:
        """Return the stream before the first layer."""
        return x_th

    def read(self, stream: Stream, block: Block) -> Tensor:
        """Return the input of a block's attention or feed-forward."""
        ...

    def apply(self, stream: Stream, block: Block, *inputs: Any) -> Stream:
        """Return the stream after a block, in its own precision; `inputs` are the block's other arguments."""
        ...

    def close(self, stream: Stream) -> Tensor:
        """Return the hidden states."""
        return states_of(stream)


@dataclass(frozen=True)
class PostNorm(Residual):
    """norm(x + dropout(part(x))), as in BERT.

    Every state is normed, but gradients pass each norm on their way down, which requires a long warm-up
    (Xiong et al. 2020).
    """

    norms_last = False

    def read(self, stream: Tensor | Normed, block: Block) -> Tensor:
        """Return the states."""
        return states_of(stream)

    def apply(self, stream: Tensor | Normed, block: Block, *inputs: Any) -> Tensor | Normed:
        """Return the stream after a block, in its own precision."""
        x_th, carrier_th = stream if isinstance(stream, Normed) else (stream, None)
        if _has_add_norm_kernel(block, x_th):
            f_th, bias_h = _before_bias(block, x_th, *inputs)
            norm: Any = block.norm
            return add_norm(x_th, carrier_th, f_th, bias_h, norm.weight, norm.bias, norm.eps, block.dropout.p)
        out_th: Tensor = block.norm(x_th + block.branch(x_th, *inputs)).to(x_th.dtype)
        return out_th


def _has_add_norm_kernel(block: Block, x_th: Tensor) -> bool:
    """Return whether one kernel computes sum and norm at the end of a block: in training, on a GPU. Without gradients
    too, so that the same numbers are dropped."""
    norm, dropout = block.norm, block.dropout
    if type(norm) is not nn.LayerNorm or norm.bias is None or type(dropout) is not nn.Dropout or not block.training:
        return False
    return triton_add_norm.usable(x_th, dropout.p) and not (has_forward_hooks(norm) or has_forward_hooks(dropout))


def _before_bias(block: Block, x_th: Tensor, *inputs: Any) -> tuple[Tensor, Tensor | None]:
    """Return the result of attention or feed-forward, and a bias that is still to be added; None: none is."""
    part = block.part
    if type(part) in (Attention, FeedForward, GatedFeedForward) and not has_forward_hooks(part):
        return part.before_bias(x_th, *inputs)  # type: ignore[operator]
    return part(x_th, *inputs), None


@dataclass(frozen=True)
class PreNorm(Residual):
    """x + dropout(part(norm(x))), as in Megatron.

    Gradients reach every layer through the sum alone, so deep stacks train with little warm-up. In return the stream
    is never normed and grows with depth, so the encoder norms it once, after the last layer.
    """

    norms_last = True

    def read(self, x_th: Tensor, block: Block) -> Tensor:
        """Return the normed stream."""
        normed_th: Tensor = block.norm(x_th)
        return normed_th

    def apply(self, x_th: Tensor, block: Block, *inputs: Any) -> Tensor:
        """Return the stream after a block, in its own precision."""
        out_th: Tensor = x_th + block.branch(block.norm(x_th), *inputs)
        return out_th


@dataclass(frozen=True)
class Reversible(Residual):
    """Two streams, as in Reformer: y1 = x1 + attention(norm(x2)), y2 = x2 + feed_forward(norm(y1)).

    Each block adds to one stream what it computes from the other, so its input can be computed from its output
    (`layers.stack`). Under autocast both are float32: sums in half precision cannot be undone.
    """

    norms_last = True

    def open(self, x_th: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states twice."""
        x_th = x_th.float() if torch.is_autocast_enabled(x_th.device.type) else x_th
        return x_th, x_th

    def read(self, stream: tuple[Tensor, Tensor], block: Block) -> Tensor:
        """Return the stream that the block reads, normed."""
        normed_th: Tensor = block.norm(stream[1])
        return normed_th

    def apply(self, stream: tuple[Tensor, Tensor], block: Block, *inputs: Any) -> tuple[Tensor, Tensor]:
        """Return the stream that was read, and the one that was written: the next block reads it."""
        return stream[1], stream[0] + block.branch(self.read(stream, block), *inputs)

    def close(self, stream: tuple[Tensor, Tensor]) -> Tensor:
        """Return both streams side by side (t x 2 h)."""
        return torch.cat(stream, -1)


def states_of(stream: Stream) -> Any:
    """Return a stream without the carrier of gradients."""
    return stream.states if isinstance(stream, Normed) else stream


# The connection for each value of the axis `residual`.
RESIDUALS: dict[str, Residual] = {"post-norm": PostNorm(), "pre-norm": PreNorm(), "reversible": Reversible()}
