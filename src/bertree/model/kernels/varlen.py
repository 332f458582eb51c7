"""PyTorch's flash attention over the flat stream.

Shape letters: t tokens, n heads, d head width.
"""

import torch
from torch import Tensor

from bertree.model.kernels.layout import Kernel, Layout, RelativeScores, Supports
from bertree.model.masks import Causal, Full, Window


def attend(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, layout: Layout, dropout: float, relative: RelativeScores | None = None
) -> Tensor:
    """Attend without padding; `layout.mask` must be a band."""
    from torch.nn.attention.varlen import varlen_attn

    bounds = (layout.cu_q, layout.cu_k, layout.max_q, layout.max_k)
    mixed = varlen_attn(q_tnd, k_tnd, v_tnd, *bounds, window_size=layout.mask.band)
    assert isinstance(mixed, Tensor)
    return mixed


KERNEL = Kernel(
    "varlen",
    "PyTorch's flash attention",
    Supports("cuda", (Full, Causal, Window), (torch.float16, torch.bfloat16), separate_keys=True),
    attend,
)
