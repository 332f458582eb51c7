"""How the parts of a layer are connected to the residual stream: post-norm or pre-norm.

The connection belongs to the stack: it opens a stream from the embeddings, applies one block after the other to it, and
closes it to hidden states. A stream may be more than one tensor; those here are the hidden states themselves.

Shape letters: t tokens, h width.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

Stream = Any  # what a residual connection carries from block to block


class Block(nn.Module):
    """A part (attention or feed-forward) with its norm and dropout; the residual connection puts them in order."""

    def __init__(self, part: nn.Module, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.part = part
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_th: Tensor, *given: Any) -> Tensor:
        """Return dropout(part(x)), what is added to the stream; `given` are the part's other arguments."""
        out_th: Tensor = self.dropout(self.part(x_th, *given))
        return out_th


class Residual(Protocol):
    """A residual connection. `norms_last`: the states after the last layer still need a norm."""

    @property
    def norms_last(self) -> bool: ...

    def open(self, x_th: Tensor) -> Stream:
        """Return the stream before the first layer."""
        ...

    def read(self, stream: Stream, block: Block) -> Tensor:
        """Return the input of a block's part."""
        ...

    def apply(self, stream: Stream, block: Block, *given: Any) -> Stream:
        """Return the stream after a block, in its own precision; `given` are the part's other arguments."""
        ...

    def close(self, stream: Stream) -> Tensor:
        """Return the hidden states."""
        ...


@dataclass(frozen=True)
class PostNorm:
    """norm(x + dropout(part(x))), as in BERT.

    Every state is normed, but gradients pass each norm on their way down, which requires a long warm-up
    (Xiong et al. 2020).
    """

    norms_last = False

    def open(self, x_th: Tensor) -> Tensor:
        """Return the states."""
        return x_th

    def read(self, x_th: Tensor, block: Block) -> Tensor:
        """Return the stream itself."""
        return x_th

    def apply(self, x_th: Tensor, block: Block, *given: Any) -> Tensor:
        """Return the stream after a block, in its own precision."""
        out_th: Tensor = block.norm(x_th + block(x_th, *given)).to(x_th.dtype)
        return out_th

    def close(self, x_th: Tensor) -> Tensor:
        """Return the stream."""
        return x_th


@dataclass(frozen=True)
class PreNorm:
    """x + dropout(part(norm(x))), as in Megatron.

    Gradients reach every layer through the sum alone, so deep stacks train with little warm-up. In return the stream
    is never normed and grows with depth, so the encoder norms it once, after the last layer.
    """

    norms_last = True

    def open(self, x_th: Tensor) -> Tensor:
        """Return the states."""
        return x_th

    def read(self, x_th: Tensor, block: Block) -> Tensor:
        """Return the normed stream."""
        normed_th: Tensor = block.norm(x_th)
        return normed_th

    def apply(self, x_th: Tensor, block: Block, *given: Any) -> Tensor:
        """Return the stream after a block, in its own precision."""
        out_th: Tensor = x_th + block(block.norm(x_th), *given)
        return out_th

    def close(self, x_th: Tensor) -> Tensor:
        """Return the stream."""
        return x_th


# The connection for each value of the axis `residual`.
RESIDUALS: dict[str, Residual] = {"post-norm": PostNorm(), "pre-norm": PreNorm()}
