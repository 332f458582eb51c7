"""The small parts a stack is built from: embeddings, feed-forward, and how they join the residual.

Shape letters: t tokens, e embedding width, h width, f inner width of the feed-forward part.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import Batch

ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": lambda x: x.tanh(),
}


class Embeddings(nn.Module):
    """Token + position + segment tables, norm, dropout and, when E is not H, a projection."""

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: nn.Embedding,
        position_offset: int,
        segments: nn.Embedding | None,
        norm: nn.LayerNorm,
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
        x_te: Tensor = self.tokens(batch.ids)
        if self.segments is not None:
            one = self.segments.num_embeddings == 1  # a single segment needs no look-up
            x_te = x_te + (self.segments.weight[0] if one else self.segments(batch.segments))
        x_te = x_te + self.positions(batch.positions + self.position_offset)
        x_te = self.dropout(self.norm(x_te))
        return x_te if self.projection is None else self.projection(x_te)


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


class PostNorm(nn.Module):
    """A part joined to the residual stream as in BERT: norm(x + dropout(part(x)))."""

    def __init__(self, part: nn.Module, norm: nn.LayerNorm, dropout: float) -> None:
        super().__init__()
        self.part = part
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Residual stream in, residual stream out."""
        out: Tensor = self.norm(x_th + self.dropout(self.part(x_th, batch)))
        return out
