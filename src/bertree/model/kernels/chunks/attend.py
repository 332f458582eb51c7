"""Attention over the chunks of a line.

Shape letters: t tokens, n heads, d head width.
"""

import torch
from torch import Tensor

from bertree.model.kernels.chunks import plain, triton_attend
from bertree.model.kernels.chunks.order import ChunkOrder, ChunkSettings

__all__ = ["ChunkOrder", "ChunkSettings", "attend_chunks", "unit_length"]


def attend_chunks(
    q_tnd: Tensor, k_tnd: Tensor | None, v_tnd: Tensor, order: ChunkOrder, settings: ChunkSettings, dropout: float = 0.0
) -> Tensor:
    """Queries, keys and values in the order of the stream -> mixed values (t x n x d). Scores are divided by sqrt(d).

    `k_tnd`: None: the queries at unit length. Scores are not kept, but computed again in the backward pass.
    """
    if not triton_attend.refusal(q_tnd, dropout):
        return triton_attend.attend(q_tnd, k_tnd, v_tnd, order, settings)
    return plain.attend(q_tnd, unit_length(q_tnd) if k_tnd is None else k_tnd, v_tnd, order, settings, dropout)


def unit_length(q_tnd: Tensor) -> Tensor:
    """Return queries as keys: of unit length, once scores are divided by sqrt(d)."""
    kind = torch.promote_types(q_tnd.dtype, torch.float32)
    return q_tnd * (q_tnd.to(kind).square().mean(-1, keepdim=True) + 1e-6).rsqrt().to(q_tnd.dtype)
