"""Attention by its definition, on padded sequences: the kernel that supports everything.

All indices are computed on the device, so that nothing waits for the host. Padding exists inside this function only.

Shape letters: t tokens, s sequences, n heads, d head width, q queries, k keys, l places in a sequence.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bertree.model.kernels.layout import Kernel, Layout, ScoreBias, Supports
from bertree.model.masks import Causal, Full, Window


def attend(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, layout: Layout, dropout: float, bias: ScoreBias | None = None
) -> Tensor:
    """Pad to the longest sequence, attend under a mask, remove the padding."""
    places_q, real_sq, token_sq = _rectangle(layout.cu_q, layout.max_q)
    places_k, real_sk, token_sk = places_q, real_sq, token_sq
    if layout.separate_keys:
        places_k, real_sk, token_sk = _rectangle(layout.cu_k, layout.max_k)
        places_q = places_q + (layout.cu_k.diff() - layout.cu_q.diff())[:, None]  # s x q
    q_snqd = q_tnd[token_sq].transpose(1, 2)
    k_snkd, v_snkd = (x[token_sk].transpose(1, 2) for x in (k_tnd, v_tnd))
    mask = real_sk[:, None, None, :]
    if not isinstance(layout.mask, Full):
        seen = layout.mask.sees(places_q, places_k)  # q x k, or s x q x k
        mask = mask & (seen[:, None] if seen.dim() == 3 else seen)
    blind = None
    if layout.separate_keys:
        # A query that sees no key would be NaN in some of PyTorch's kernels. It sees all, and its result is cleared.
        blind = ~mask.any(-1, keepdim=True)
        mask = mask | blind
    if bias is not None:
        mask = bias(q_snqd, places_q, places_k).masked_fill(~mask, float("-inf"))
    mixed_snqd = scaled_dot_product_attention(q_snqd, k_snkd, v_snkd, attn_mask=mask, dropout_p=dropout)
    if blind is not None:
        mixed_snqd = mixed_snqd.masked_fill(blind, 0.0)
    tokens_t = torch.arange(q_tnd.shape[0], device=q_tnd.device)
    row_t = torch.searchsorted(layout.cu_q[1:].long(), tokens_t, right=True)
    slot_t = tokens_t - layout.cu_q.long()[row_t]
    return mixed_snqd.transpose(1, 2)[row_t, slot_t]


def _rectangle(bounds: Tensor, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return places (l), where a token is in the rectangle (s x l), and which (s x l); token 0 where none is."""
    starts_s1 = bounds[:-1, None].long()
    places_l = torch.arange(longest, device=bounds.device)
    real_sl = places_l < bounds.diff()[:, None]
    return places_l, real_sl, torch.where(real_sl, starts_s1 + places_l, 0)


KERNEL = Kernel(
    "padded",
    "pads inside the kernel; supports everything",
    Supports(None, (Full, Causal, Window), dropout=True, separate_keys=True, score_bias=True),
    attend,
)
