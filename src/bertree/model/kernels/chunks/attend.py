"""Attention over the chunks of a line.

Shape letters: t tokens, n heads, d head width.
"""

from torch import Tensor

from bertree.model.kernels.chunks import plain
from bertree.model.kernels.chunks.order import ChunkOrder, ChunkSettings

__all__ = ["ChunkOrder", "ChunkSettings", "attend_chunks"]


def attend_chunks(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, order: ChunkOrder, settings: ChunkSettings, dropout: float = 0.0
) -> Tensor:
    """Queries, keys and values in the order of the stream -> mixed values (t x n x d). Scores are divided by sqrt(d).

    Scores are kept for a group of chunks at a time, and computed again in the backward pass.
    """
    return plain.attend(q_tnd, k_tnd, v_tnd, order, settings, dropout)
