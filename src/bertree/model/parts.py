"""The small parts a stack is built from: embeddings, feed-forward, and how they join the residual.

Shape letters: t tokens, e embedding width, h width, f inner width of the feed-forward part.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.operators import gelu, look_up

ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": lambda x: x.tanh(),
}


class Embeddings(nn.Module):
    """Tables of tokens and, where there are any, of positions and segments; dropout; a norm and a projection to H."""

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: nn.Embedding | None,
        position_offset: int,
        segments: nn.Embedding | None,
        norm: nn.LayerNorm | None,
        dropout: float,
        projection: nn.Linear | None,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = positions
        self.position_offset = position_offset
        self.segments = segments
        self.norm = norm
        self.dropout = nn.Dropout(dropout)
        self.projection = projection

    def forward(self, batch: Batch) -> Tensor:
        """Batch -> what the first layer reads (t x h)."""
        x_te = look_up(self.tokens.weight, batch.ids)
        if self.segments is not None:
            x_te = x_te + _segments(self.segments.weight, batch.segments)
        if self.positions is not None:
            x_te = x_te + look_up(self.positions.weight, batch.positions + self.position_offset)
        x_te = self.dropout(x_te if self.norm is None else self.norm(x_te))
        x_te = x_te if self.projection is None else self.projection(x_te)
        # What the layers hand on has the precision they compute in: half the memory, half the bytes to move.
        kind = x_te.device.type
        return x_te.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x_te


def _segments(table_ce: Tensor, segments_t: Tensor) -> Tensor:
    """Rows of a table of one, two or more; for up to two their gradient is a plain sum, not a scatter."""
    if len(table_ce) == 1:
        return table_ce[0]
    if len(table_ce) == 2:
        return torch.where(segments_t[:, None] == 0, table_ce[0], table_ce[1])
    return F.embedding(segments_t, table_ce)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, applied to each token alone."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.activation = ACTIVATION[activation]

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Hidden states in, transformed hidden states out; the batch is not needed."""
        out: Tensor = self.down(self.activation(self.up(x_th)))
        return out


class Joined(nn.Module):
    """A part, its norm and its dropout, joined to the residual stream in one way or another."""

    def __init__(self, part: nn.Module, norm: nn.LayerNorm, dropout: float) -> None:
        super().__init__()
        self.part = part
        self.norm = norm
        self.dropout = nn.Dropout(dropout)


class PostNorm(Joined):
    """A part joined to the residual stream as in BERT: norm(x + dropout(part(x))).

    Every state is normed, but gradients pass each norm on their way down, which asks for a long warm-up
    (Xiong et al. 2020).
    """

    def reads(self, x_th: Tensor) -> Tensor:
        """What its part is given of the residual stream."""
        return x_th

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Residual stream in, residual stream out, in the precision it came in."""
        out: Tensor = self.norm(x_th + self.dropout(self.part(self.reads(x_th), batch))).to(x_th.dtype)
        return out


class PreNorm(Joined):
    """A part joined to the residual stream as in Megatron: x + dropout(part(norm(x))).

    Gradients reach every depth through the sum alone, so deep stacks train with little warm-up. The price:
    the stream is never normed and grows with depth, so the encoder norms it once, at the end.
    """

    def reads(self, x_th: Tensor) -> Tensor:
        """What its part is given of the residual stream."""
        normed: Tensor = self.norm(x_th)
        return normed

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Residual stream in, residual stream out, in the precision it came in."""
        out: Tensor = x_th + self.dropout(self.part(self.reads(x_th), batch))
        return out
