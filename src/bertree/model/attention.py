"""Attention over a packed batch, and the kernels that compute it.

One table, `KERNELS`, from name to function; `choose` picks by device and precision at call time:

    varlen    CUDA, half precision: one call for the whole stream, no padding
    grouped   CPU: sequences of equal length share one call, no padding
    padded    the rest: fp32 on CUDA, or dropout on the attention probabilities, which the other
              two kernels do not have. Padding lives and dies inside this function.

Shape letters: t tokens, s sequences, l longest sequence, n heads, d head width, h width.
"""

from collections.abc import Callable
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from bertree.batch import Batch


class Attention(nn.Module):
    """Multi-head self-attention; one matrix product for queries, keys and values."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Hidden states in, mixed hidden states out."""
        q_tnd, k_tnd, v_tnd = self.qkv(x_th).view(x_th.shape[0], 3, self.heads, -1).unbind(1)
        dropout = self.dropout if self.training else 0.0
        mixed_tnd = KERNELS[choose(q_tnd, dropout)](q_tnd, k_tnd, v_tnd, batch, dropout)
        out: Tensor = self.out(mixed_tnd.flatten(1))
        return out


def choose(q: Tensor, dropout: float) -> str:
    """Name of the kernel for these tensors."""
    if dropout > 0:
        return "padded"
    if q.is_cuda:
        return "varlen" if q.dtype in (torch.float16, torch.bfloat16) else "padded"
    return "grouped"


def varlen(q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, batch: Batch, dropout: float) -> Tensor:
    """Flash attention over the flat stream."""
    from torch.nn.attention.varlen import varlen_attn

    ends, longest = batch.cu_seqlens, batch.max_seqlen
    mixed = varlen_attn(q_tnd, k_tnd, v_tnd, ends, ends, longest, longest)
    assert isinstance(mixed, Tensor)
    return mixed


def padded(q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, batch: Batch, dropout: float) -> Tensor:
    """Pad to the longest sequence, attend under a mask, drop the padding again.

    Only indices computed on the device, so that nothing waits for the host.
    """
    starts_s1 = batch.cu_seqlens[:-1, None].long()
    slots_l = torch.arange(batch.max_seqlen, device=q_tnd.device)
    real_sl = slots_l < batch.lengths[:, None]
    token_sl = torch.where(real_sl, starts_s1 + slots_l, 0)
    q_snld, k_snld, v_snld = (x[token_sl].transpose(1, 2) for x in (q_tnd, k_tnd, v_tnd))
    mixed_snld = scaled_dot_product_attention(
        q_snld, k_snld, v_snld, attn_mask=real_sl[:, None, None, :], dropout_p=dropout
    )
    tokens_t = torch.arange(q_tnd.shape[0], device=q_tnd.device)
    row_t = torch.searchsorted(batch.cu_seqlens[1:].long(), tokens_t, right=True)
    slot_t = tokens_t - batch.cu_seqlens.long()[row_t]
    return mixed_snld.transpose(1, 2)[row_t, slot_t]


def grouped(q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, batch: Batch, dropout: float) -> Tensor:
    """Attend length by length."""
    mixed: Tensor = _grouped(q_tnd, k_tnd, v_tnd, batch.cu_seqlens)
    return mixed


KERNELS: dict[str, Callable[[Tensor, Tensor, Tensor, Batch, float], Tensor]] = {
    "varlen": varlen,
    "grouped": grouped,
    "padded": padded,
}


# The grouped kernel reads the lengths on the host, which a compiler cannot follow, so it is an
# operator of its own: the compiler sees one opaque call, and new lengths cause no recompilation.


def _by_length(q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, cu_seqlens: Tensor) -> Tensor:
    lengths = cu_seqlens.diff().tolist()
    if any(a > b for a, b in zip(lengths, lengths[1:], strict=False)):  # bring equal lengths together
        order_s = torch.tensor(lengths).argsort(stable=True)
        rows = torch.arange(q_tnd.shape[0]).split(lengths)
        order_t = torch.cat([rows[i] for i in order_s.tolist()])
        ends = torch.tensor([0, *sorted(lengths)]).cumsum(0)
        mixed = _by_length(q_tnd[order_t], k_tnd[order_t], v_tnd[order_t], ends)
        return torch.empty_like(mixed).index_copy(0, order_t, mixed)
    sizes = [(length, len(list(run))) for length, run in groupby(lengths) if length]
    parts = (x.split([length * count for length, count in sizes]) for x in (q_tnd, k_tnd, v_tnd))
    mixed_parts = []
    for (length, count), *qkv in zip(sizes, *parts, strict=True):
        q, k, v = (x.unflatten(0, (count, length)).transpose(1, 2) for x in qkv)
        mixed_parts.append(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1))
    return torch.cat(mixed_parts) if mixed_parts else torch.zeros_like(q_tnd)


@torch.library.custom_op("bertree::grouped_attention", mutates_args=())
def _grouped(q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, cu_seqlens: Tensor) -> Tensor:
    return _by_length(q_tnd, k_tnd, v_tnd, cu_seqlens)


@torch.library.custom_op("bertree::grouped_attention_backward", mutates_args=())
def _grouped_backward(
    grad_tnd: Tensor, q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, cu_seqlens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    # Attention is a few percent of a step at these lengths, so it is computed again rather than kept.
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in (q_tnd, k_tnd, v_tnd)]
        mixed = _by_length(*inputs, cu_seqlens)
    q, k, v = torch.autograd.grad(mixed, inputs, grad_tnd)
    return q, k, v


@_grouped.register_fake
def _(q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, cu_seqlens: Tensor) -> Tensor:
    return torch.empty_like(q_tnd, memory_format=torch.contiguous_format)


@_grouped_backward.register_fake
def _(
    grad_tnd: Tensor, q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, cu_seqlens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q_tnd, k_tnd, v_tnd))
    return q, k, v


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _back(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, cu_seqlens = ctx.saved_tensors  # type: ignore[attr-defined]
    return (*_grouped_backward(grad, q, k, v, cu_seqlens), None)


_grouped.register_autograd(_back, setup_context=_keep)
