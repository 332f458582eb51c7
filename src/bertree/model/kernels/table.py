"""The kernels of attention in order of preference, and the choice among them.

The first kernel that supports a call computes it; `bertree info --kernels` shows the table.

Shape letters: t tokens, n heads, d head width.
"""

import torch
from torch import Tensor

from bertree.model.kernels import (
    grouped,
    grouped_relative,
    padded,
    triton_blocked,
    triton_relative,
    triton_short,
)
from bertree.model.kernels.layout import Case, Kernel, Layout, RelativeScores, Supports
from bertree.model.masks import Causal, Full, SlidingWindow


def _attend_varlen(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, layout: Layout, dropout: float, relative: RelativeScores | None = None
) -> Tensor:
    """Attend without padding; `layout.mask` must be a band."""
    from torch.nn.attention.varlen import varlen_attn

    bounds = (layout.cu_q, layout.cu_k, layout.max_q, layout.max_k)
    mixed = varlen_attn(q_tnd, k_tnd, v_tnd, *bounds, window_size=layout.mask.band)
    assert isinstance(mixed, Tensor)
    return mixed


VARLEN = Kernel(
    "varlen",
    "PyTorch's flash attention",
    Supports("cuda", (Full, Causal, SlidingWindow), (torch.float16, torch.bfloat16), separate_keys=True),
    _attend_varlen,
)

KERNELS: tuple[Kernel, ...] = (
    triton_short.KERNEL,
    triton_blocked.KERNEL,
    VARLEN,
    triton_relative.KERNEL,
    grouped.KERNEL,
    grouped_relative.KERNEL,
    padded.KERNEL,
)


def attend(
    q_tnd: Tensor,
    k_tnd: Tensor,
    v_tnd: Tensor,
    layout: Layout,
    dropout: float = 0.0,
    relative: RelativeScores | None = None,
) -> Tensor:
    """Queries, keys and values -> mixed values (t x n x d), by the kernel that suits them."""
    kernel = choose(case_of(q_tnd, layout, dropout, relative))
    return kernel.attend(q_tnd, k_tnd, v_tnd, layout, dropout, relative)


def attend_fused(qkv_t3nd: Tensor, layout: Layout, dropout: float = 0.0) -> Tensor:
    """Queries, keys and values of the same tokens -> mixed values (t x n x d), by the kernel that suits them."""
    kernel = choose(case_of(qkv_t3nd, layout, dropout))
    if kernel.attend_fused is not None:
        return kernel.attend_fused(qkv_t3nd, layout)
    q_tnd, k_tnd, v_tnd = qkv_t3nd.unbind(1)
    return kernel.attend(q_tnd, k_tnd, v_tnd, layout, dropout, None)


def case_of(x_nd: Tensor, layout: Layout, dropout: float, relative: RelativeScores | None = None) -> Case:
    """Return what the choice depends on; `x_nd` are queries, alone or with keys and values."""
    return Case(
        x_nd.device.type,
        x_nd.dtype,
        x_nd.shape[-1],
        layout.max_k,
        type(layout.mask),
        dropout > 0,
        layout.separate_keys,
        relative is not None,
        layout.ranked,
        relative is not None and relative.segments is not None,
    )


def choose(case: Case) -> Kernel:
    """Return the first kernel that supports a call."""
    for kernel in KERNELS:
        if not kernel.supports.refusal(case):
            return kernel
    raise AssertionError(f"no kernel for {case}")  # `padded` supports every mask there is


def refusals(case: Case) -> dict[str, str]:
    """Return the kernels that are preferred to the one chosen, and why each cannot take the call."""
    reasons = {}
    for kernel in KERNELS:
        reason = kernel.supports.refusal(case)
        if not reason:
            break
        reasons[kernel.name] = reason
    return reasons
