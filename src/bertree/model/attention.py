"""Attention over a packed batch, and the kernels that compute it.

One table, `KERNELS`, from name to function; `choose` picks by device, precision and axis at call time:

    short     CUDA, half precision, no sequence above 128 tokens: one tile each (see `kernels.triton_short`)
    blocks    CUDA, half precision, longer sequences (see `kernels.triton_blocked`)
    varlen    CUDA, half precision, causal attention or without Triton: PyTorch's flash attention
    grouped   CPU: sequences of equal length share one call, no padding (see `kernels.grouped`)
    padded    the rest: fp32 on CUDA, or dropout on the attention probabilities, which the other kernels do not have.
              Padding exists inside this function only.

Shape letters: t tokens, s sequences, l longest sequence, n heads, d head width, h width.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from bertree.batch import Batch
from bertree.model.architecture import Architecture
from bertree.model.kernels import triton_blocked, triton_short
from bertree.model.kernels.grouped import grouped_attention


class Attention(nn.Module):
    """Multi-head self-attention; one matrix product for queries, keys and values.

    `causal`: a token sees itself and those before it, not those that follow.
    """

    def __init__(self, width: int, heads: int, dropout: float, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.heads, self.head_width = heads, width // heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Mix the hidden states of each sequence's tokens."""
        qkv_t3nd = self.qkv(x_th).unflatten(-1, (3, self.heads, self.head_width))
        dropout = self.dropout if self.training else 0.0
        kernel = KERNELS[choose(qkv_t3nd, batch, dropout, self.causal)]
        mixed_tnd = kernel(qkv_t3nd, batch, dropout, self.causal)
        out: Tensor = self.out(mixed_tnd.flatten(1))
        return out


# The part for each value of the axis `attention` (architecture.ATTENTION); a new kind also has a row in cost.KEYS.
KINDS: dict[str, Callable[[int, int, float], Attention]] = {
    "full": Attention,
    "causal": partial(Attention, causal=True),
}


def build_attention(a: Architecture) -> Attention:
    """Build the attention of one layer."""
    return KINDS[a.attention](a.width, a.heads, a.attention_dropout)


def choose(qkv_t3nd: Tensor, batch: Batch, dropout: float, causal: bool = False) -> str:
    """Return the name of the kernel for these tensors."""
    if dropout > 0:
        return "padded"
    if not qkv_t3nd.is_cuda:
        return "grouped"
    if triton_short.supports(qkv_t3nd) and not causal:
        return "short" if batch.max_seqlen <= triton_short.LONGEST else "blocks"
    return "varlen" if qkv_t3nd.dtype in (torch.float16, torch.bfloat16) else "padded"


class Kernel(Protocol):
    """Queries, keys and values of a packed batch -> mixed values (t x n x d)."""

    def __call__(self, qkv_t3nd: Tensor, batch: Batch, dropout: float, causal: bool = False) -> Tensor: ...


def short(qkv_t3nd: Tensor, batch: Batch, dropout: float, causal: bool = False) -> Tensor:
    """Sequences of at most 128 tokens, one tile each."""
    assert not causal, "this kernel is not causal"
    return triton_short.attend(qkv_t3nd, batch.cu_seqlens, batch.max_seqlen)


def blocks(qkv_t3nd: Tensor, batch: Batch, dropout: float, causal: bool = False) -> Tensor:
    """Sequences of any length, block by block."""
    assert not causal, "this kernel is not causal"
    return triton_blocked.attend(qkv_t3nd, batch.cu_seqlens, batch.max_seqlen)


def varlen(qkv_t3nd: Tensor, batch: Batch, dropout: float, causal: bool = False) -> Tensor:
    """Flash attention over the flat stream."""
    from torch.nn.attention.varlen import varlen_attn

    q_tnd, k_tnd, v_tnd = qkv_t3nd.unbind(1)
    ends, longest = batch.cu_seqlens, batch.max_seqlen
    window = (-1, 0 if causal else -1)  # how far a token sees to the left and right; -1: to the end
    mixed = varlen_attn(q_tnd, k_tnd, v_tnd, ends, ends, longest, longest, window_size=window)
    assert isinstance(mixed, Tensor)
    return mixed


def padded(qkv_t3nd: Tensor, batch: Batch, dropout: float, causal: bool = False) -> Tensor:
    """Pad to the longest sequence, attend under a mask, remove the padding.

    All indices are computed on the device, so that nothing waits for the host.
    """
    starts_s1 = batch.cu_seqlens[:-1, None].long()
    slots_l = torch.arange(batch.max_seqlen, device=qkv_t3nd.device)
    real_sl = slots_l < batch.lengths[:, None]
    token_sl = torch.where(real_sl, starts_s1 + slots_l, 0)
    q_snld, k_snld, v_snld = (x[token_sl].transpose(1, 2) for x in qkv_t3nd.unbind(1))
    seen_s1ll = real_sl[:, None, None, :]
    if causal:
        seen_s1ll = seen_s1ll & (slots_l <= slots_l[:, None])
    mixed_snld = scaled_dot_product_attention(q_snld, k_snld, v_snld, attn_mask=seen_s1ll, dropout_p=dropout)
    tokens_t = torch.arange(qkv_t3nd.shape[0], device=qkv_t3nd.device)
    row_t = torch.searchsorted(batch.cu_seqlens[1:].long(), tokens_t, right=True)
    slot_t = tokens_t - batch.cu_seqlens.long()[row_t]
    return mixed_snld.transpose(1, 2)[row_t, slot_t]


def grouped(qkv_t3nd: Tensor, batch: Batch, dropout: float, causal: bool = False) -> Tensor:
    """Sequences of equal length in one call each."""
    return grouped_attention(qkv_t3nd, batch.cu_seqlens, causal)


KERNELS: dict[str, Kernel] = {
    "short": short,
    "blocks": blocks,
    "varlen": varlen,
    "grouped": grouped,
    "padded": padded,
}
