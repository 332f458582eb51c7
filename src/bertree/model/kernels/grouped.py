"""Attention on the CPU: sequences of equal length share one call, without padding.

The lengths are read on the host, which a compiler cannot follow, so this is an operator of its own: the compiler sees
one opaque call, and new lengths cause no recompilation. Inside an operator there is no autograd, so forward and
backward call the CPU flash kernels that `scaled_dot_product_attention` would choose.

Shape letters: t tokens, n heads, d head width.
"""

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def grouped_attention(qkv_t3nd: Tensor, cu_seqlens: Tensor, causal: bool) -> Tensor:
    """Queries, keys and values of a packed batch -> mixed values (t x n x d)."""
    mixed_tnd: Tensor = _attend(*qkv_t3nd.unbind(1), cu_seqlens, causal)[0]
    return mixed_tnd


def _groups(cu_seqlens: Tensor) -> tuple[list[tuple[int, int]], Tensor | None]:
    """Return (length, count) of each group, and the order of tokens that brings equal lengths together."""
    lengths = cu_seqlens.diff().tolist()
    order_t = None
    if any(a > b for a, b in pairwise(lengths)):
        rows = torch.arange(sum(lengths)).split(lengths)
        order_t = torch.cat([rows[i] for i in sorted(range(len(rows)), key=lengths.__getitem__)])
        lengths.sort()
    return [(length, len(list(run))) for length, run in groupby(lengths) if length], order_t


def _cut(x_tn: Tensor, groups: list[tuple[int, int]], order_t: Tensor | None) -> list[Tensor]:
    """Cut the stream into one block per group: count x heads x length (x head width)."""
    if order_t is not None:
        x_tn = x_tn[order_t]
    parts = x_tn.split([length * count for length, count in groups])
    return [x.unflatten(0, (count, length)).transpose(1, 2) for x, (length, count) in zip(parts, groups, strict=True)]


def _join(parts: Sequence[Tensor], like_tn: Tensor, order_t: Tensor | None) -> Tensor:
    """Join blocks to the stream."""
    if not parts:
        return torch.empty_like(like_tn, memory_format=torch.contiguous_format)
    x_tn = torch.cat([part.transpose(1, 2).flatten(0, 1) for part in parts])
    return x_tn if order_t is None else torch.empty_like(x_tn).index_copy_(0, order_t, x_tn)


@custom_op("bertree::grouped_attention", mutates_args=())
def _attend(q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, cu_seqlens: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    groups, order_t = _groups(cu_seqlens)
    blocks = (_cut(x, groups, order_t) for x in (q_tnd, k_tnd, v_tnd))
    mixed = [_flash(q, k, v, is_causal=causal) for q, k, v in zip(*blocks, strict=True)]
    out_tnd = _join([out for out, _ in mixed], q_tnd, order_t)
    # The second output, log-sum-exp of the scores, is what the backward pass needs instead of them.
    return out_tnd, _join([scale for _, scale in mixed], q_tnd[..., 0].float(), order_t)


@custom_op("bertree::grouped_attention_backward", mutates_args=())
def _attend_backward(
    grad_tnd: Tensor,
    q_tnd: Tensor,
    k_tnd: Tensor,
    v_tnd: Tensor,
    out_tnd: Tensor,
    scale_tn: Tensor,
    cu_seqlens: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    groups, order_t = _groups(cu_seqlens)
    blocks = (_cut(x, groups, order_t) for x in (grad_tnd, q_tnd, k_tnd, v_tnd, out_tnd, scale_tn))
    grads = [_flash_backward(*block, 0.0, causal) for block in zip(*blocks, strict=True)]
    q, k, v = (_join([grad[i] for grad in grads], q_tnd, order_t) for i in range(3))
    return q, k, v


@_attend.register_fake
def _(q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, cu_seqlens: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    return _like(q_tnd), _like(q_tnd[..., 0].float())


@_attend_backward.register_fake
def _(
    grad_tnd: Tensor,
    q_tnd: Tensor,
    k_tnd: Tensor,
    v_tnd: Tensor,
    out_tnd: Tensor,
    scale_tn: Tensor,
    cu_seqlens: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _like(q_tnd), _like(k_tnd), _like(v_tnd)


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, cu_seqlens, ctx.causal = inputs
    ctx.save_for_backward(q, k, v, *output, cu_seqlens)


def _back(ctx: Any, grad_out: Tensor, grad_scale: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*_attend_backward(grad_out, *ctx.saved_tensors, ctx.causal), None, None)


_attend.register_autograd(_back, setup_context=_keep)
