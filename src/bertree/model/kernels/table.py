"""The kernels of attention in order of preference, the choice among them, and the kernel that supports everything.

The first kernel that supports a call computes it; `bertree info --kernels` shows the table. The last one is attention
by its definition, on padded sequences: all its indices are computed on the device, so that nothing waits for the host,
and padding exists inside this function only.

Shape letters: t tokens, s sequences, n heads, d head width, q queries, k keys, l positions in a sequence, x distances.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bertree.model.kernels import grouped, grouped_relative, triton_blocked, triton_relative, triton_short
from bertree.model.kernels.layout import Case, Kernel, Layout, RelativeScores, SegmentScores, Supports
from bertree.model.masks import Causal, CausalButSelf, Full, FullButSelf, SlidingWindow


def _attend_padded(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, layout: Layout, dropout: float, relative: RelativeScores | None = None
) -> Tensor:
    """Pad to the longest sequence, attend under a mask, remove the padding."""
    positions_q, real_sq, token_sq = _rectangle(layout.cu_q, layout.max_q)
    positions_k, real_sk, token_sk = positions_q, real_sq, token_sq
    if layout.separate_keys:
        positions_k, real_sk, token_sk = _rectangle(layout.cu_k, layout.max_k)
    if layout.positions is not None:
        positions_q = layout.positions.long()[token_sq]  # s x q
    elif layout.separate_keys:
        positions_q = positions_q + (layout.cu_k.diff() - layout.cu_q.diff())[:, None]  # s x q
    if relative is not None:
        q_tnd, qv_tnd, r_xnd = relative.add_to(q_tnd)
    q_snqd = q_tnd[token_sq].transpose(1, 2)
    k_snkd, v_snkd = (x[token_sk].transpose(1, 2) for x in (k_tnd, v_tnd))
    mask = real_sk[:, None, None, :]
    if not isinstance(layout.mask, Full):
        seen = layout.mask.sees(positions_q, positions_k)  # q x k, or s x q x k
        seen = seen[:, None] if seen.dim() == 3 else seen
        mask = mask & seen
        if isinstance(layout.mask, FullButSelf):  # a sequence of one token sees itself
            mask = mask | (~mask.any(-1, keepdim=True) & ~seen)
    if layout.ranks is not None:
        bounds_t, ranks_k = layout.ranks
        mask = mask & (ranks_k[token_sk][:, None, None, :] < bounds_t[token_sq][:, None, :, None])
    blind = None
    if layout.separate_keys or layout.ranks is not None:
        # A query that sees no key would be NaN in some of PyTorch's kernels. It sees all, and its result is cleared.
        blind = ~mask.any(-1, keepdim=True)
        mask = mask | blind
    if relative is not None:
        rows_qk = positions_q[..., :, None] - positions_k - relative.lowest  # q x k, or s x q x k
        bias_snqk = scores_by_distance(qv_tnd[token_sq], r_xnd, rows_qk)
        if relative.segments is not None:
            bias_snqk = bias_snqk + _scores_by_segment(relative.segments, token_sq, token_sk, q_tnd.shape[-1])
        mask = bias_snqk.masked_fill(~mask, float("-inf"))
    mixed_snqd = scaled_dot_product_attention(q_snqd, k_snkd, v_snkd, attn_mask=mask, dropout_p=dropout)
    if blind is not None:
        mixed_snqd = mixed_snqd.masked_fill(blind, 0.0)
    tokens_t = torch.arange(q_tnd.shape[0], device=q_tnd.device)
    row_t = torch.searchsorted(layout.cu_q[1:].long(), tokens_t, right=True)
    slot_t = tokens_t - layout.cu_q.long()[row_t]
    return mixed_snqd.transpose(1, 2)[row_t, slot_t]


def scores_by_distance(qv_sqnd: Tensor, r_xnd: Tensor, rows_qk: Tensor) -> Tensor:
    """Return what relative scores add to those of keys (s x n x q x k); anything where there is no row of r."""
    scores_snqx = torch.einsum("sqnd,xnd->snqx", qv_sqnd, r_xnd) * qv_sqnd.shape[-1] ** -0.5
    rows_qk = rows_qk.clamp(0, len(r_xnd) - 1)
    rows_snqk = rows_qk.unsqueeze(-3).expand(*scores_snqx.shape[:-1], rows_qk.shape[-1])
    return scores_snqx.gather(-1, rows_snqk)


def _scores_by_segment(scores: SegmentScores, token_sq: Tensor, token_sk: Tensor, width: int) -> Tensor:
    """Return what scores by segment add to those of keys (s x n x q x k)."""
    differ_sqk = scores.of_t[token_sq][:, :, None] != scores.of_k[token_sk][:, None]
    apart_snq = scores.apart_tn[token_sq].transpose(1, 2) * width**-0.5
    return apart_snq[..., None] * differ_sqk[:, None]


def _rectangle(bounds: Tensor, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return positions (l), where a token is in the rectangle (s x l), and which (s x l); token 0 where none is."""
    starts_s1 = bounds[:-1, None].long()
    positions_l = torch.arange(longest, device=bounds.device)
    real_sl = positions_l < bounds.diff()[:, None]
    return positions_l, real_sl, torch.where(real_sl, starts_s1 + positions_l, 0)


PADDED = Kernel(
    "padded",
    "pads inside the kernel; supports everything",
    Supports(
        None,
        (Full, Causal, SlidingWindow, FullButSelf, CausalButSelf),
        dropout=True,
        separate_keys=True,
        relative=True,
        ranked=True,
        segments=True,
    ),
    _attend_padded,
)


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
    PADDED,
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
