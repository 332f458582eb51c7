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
    """Token + position + segment tables, dropout, and where there are any a norm and a projection from E to H."""

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: nn.Embedding,
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
        x_te: Tensor = self.tokens(batch.ids)
        if self.segments is not None:
            one = self.segments.num_embeddings == 1  # a single segment needs no look-up
            x_te = x_te + (self.segments.weight[0] if one else self.segments(batch.segments))
        x_te = x_te + self.positions(batch.positions + self.position_offset)
        x_te = self.dropout(x_te if self.norm is None else self.norm(x_te))
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
    """A part joined to the residual stream as in BERT: norm(x + dropout(part(x))).

    Every state is normed, but gradients pass each norm on their way down, which asks for a long warm-up
    (Xiong et al. 2020).
    """

    def __init__(self, part: nn.Module, norm: nn.LayerNorm, dropout: float) -> None:
        super().__init__()
        self.part = part
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Residual stream in, residual stream out."""
        out: Tensor = self.norm(x_th + self.dropout(self.part(x_th, batch)))
        return out


class PreNorm(nn.Module):
    """A part joined to the residual stream as in Megatron: x + dropout(part(norm(x))).

    Gradients reach every depth through the sum alone, so deep stacks train with little warm-up. The price:
    the stream is never normed and grows with depth, so the encoder norms it once, at the end.
    """

    def __init__(self, part: nn.Module, norm: nn.LayerNorm, dropout: float) -> None:
        super().__init__()
        self.part = part
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Residual stream in, residual stream out."""
        # Under autocast a projection hands over half precision, in which a long sum would lose its small terms.
        x_th = x_th.to(self.norm.weight.dtype)
        out: Tensor = x_th + self.dropout(self.part(self.norm(x_th), batch))
        return out
