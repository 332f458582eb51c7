"""Token ids -> input of the first layer: token, position and segment embeddings.

Shape letters: t tokens, e embedding width, h width, c segments.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.kernels.pointwise.custom_ops import look_up
from bertree.model.layers.adaptive import AdaptiveEmbeddings
from bertree.model.layers.positions import EmbeddedPositions


class TokenEmbeddings(nn.Embedding):
    """A vector for each entry of the vocabulary, times `scale`."""

    def __init__(self, vocab_size: int, width: int, scale: float = 1.0) -> None:
        super().__init__(vocab_size, width)
        self.scale = scale

    def forward(self, ids_t: Tensor) -> Tensor:
        """Look up token ids (t x e)."""
        rows_te = look_up(self.weight, ids_t)
        return rows_te if self.scale == 1.0 else rows_te * self.scale


class Embeddings(nn.Module):
    """Sum of token, position and segment embeddings, then norm, dropout and a projection to the width of the layers.

    Positions, segments, norm and projection are optional.
    """

    def __init__(
        self,
        tokens: TokenEmbeddings | AdaptiveEmbeddings,
        positions: EmbeddedPositions | None,
        segments: nn.Embedding | None,
        norm: nn.Module | None,
        dropout: float,
        projection: nn.Linear | None,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = positions
        self.segments = segments
        self.norm = norm
        self.dropout = nn.Dropout(dropout)
        self.projection = projection

    def forward(self, batch: Batch) -> Tensor:
        """Return the input of the first layer (t x h)."""
        x_te: Tensor = self.tokens(batch.ids)
        if self.segments is not None:
            x_te = x_te + _segment_rows(self.segments.weight, batch.segments)
        if self.positions is not None:
            x_te = x_te + self.positions.embed(batch)
        x_te = self.dropout(x_te if self.norm is None else self.norm(x_te))
        x_te = x_te if self.projection is None else self.projection(x_te)
        # Under autocast the residual stream has the precision of the products: half the memory, half the traffic.
        kind = x_te.device.type
        return x_te.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x_te


def _segment_rows(table_ce: Tensor, segments_t: Tensor) -> Tensor:
    """Look up segment embeddings. With one or two segments the gradient is a plain sum, not a scatter."""
    if len(table_ce) == 1:
        return table_ce[0]
    if len(table_ce) == 2:
        return torch.where(segments_t[:, None] == 0, table_ce[0], table_ce[1])
    return F.embedding(segments_t, table_ce)
