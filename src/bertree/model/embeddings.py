"""TODO."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.kernels.custom_ops import look_up


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
