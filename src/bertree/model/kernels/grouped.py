"""Attention on the CPU: sequences of equal lengths share one call, without padding.

The lengths are read on the host, which a compiler cannot follow, so this is an operator of its own: the compiler sees
one opaque call, and new lengths cause no recompilation. Inside an operator there is no autograd, so forward and
backward call the CPU flash kernels that `scaled_dot_product_attention` would choose.

Shape letters: t tokens, n heads, d head width, q queries, k keys.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import register_autograd

from bertree.model.kernels.layout import Kernel, Layout, RelativeScores, Supports
from bertree.model.kernels.operators import fake_of, operator
from bertree.model.kernels.streams import cut_streams
from bertree.model.masks import Causal, CausalButSelf, Full, FullButSelf, Window
from bertree.model.torch_internals import flash_attention_for_cpu, flash_attention_for_cpu_backward


def attend(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, layout: Layout, dropout: float, relative: RelativeScores | None = None
) -> Tensor:
    """Queries, keys and values of packed sequences -> mixed values (t x n x d)."""
    cu_k = layout.cu_k if layout.separate_keys else None
    hides_self = isinstance(layout.mask, FullButSelf | CausalButSelf)
    mixed_tnd: Tensor = _attend(q_tnd, k_tnd, v_tnd, layout.cu_q, cu_k, *layout.mask.band, hides_self)[0]
    return mixed_tnd


def _mask(queries: int, keys: int, left: int, right: int, hides_self: bool, like: Tensor) -> tuple[bool, Tensor | None]:
    """Return how the CPU kernel is told what a query sees: a flag for causal, or a mask (q x k)."""
    if left < 0 and right < 0 and not hides_self:
        return False, None
    if left < 0 and right == 0 and queries == keys and not hides_self:
        return True, None
    window = Window(*(keys + queries if side < 0 else side for side in (left, right)))
    seen = window.sees(torch.arange(keys - queries, keys), torch.arange(keys))
    mask = like.new_zeros(queries, keys).masked_fill_(~seen, float("-inf"))
    if hides_self:  # a score so low that it counts only where there is no other
        mask[:, keys - queries :].fill_diagonal_(-1e4)
    return False, mask


@operator("bertree::grouped_attention")
def _attend(
    q_tnd: Tensor,
    k_tnd: Tensor,
    v_tnd: Tensor,
    cu_q: Tensor,
    cu_k: Tensor | None,
    left: int,
    right: int,
    hides_self: bool,
) -> tuple[Tensor, Tensor]:
    queries, keys = cut_streams(cu_q, cu_k)
    scale_type, mixed = torch.promote_types(q_tnd.dtype, torch.float32), []
    for q, k, v in zip(queries.cut(q_tnd), keys.cut(k_tnd), keys.cut(v_tnd), strict=True):
        if not (q.shape[2] and k.shape[2]):  # the kernel would divide by zero
            mixed.append((torch.zeros_like(q), torch.zeros_like(q[..., 0], dtype=scale_type)))
            continue
        causal, mask = _mask(q.shape[2], k.shape[2], left, right, hides_self, q)
        mixed.append(flash_attention_for_cpu(q, k, v, is_causal=causal, attn_mask=mask))
    out_tnd = queries.join([out for out, _ in mixed], q_tnd)
    # The second output, log-sum-exp of the scores, is what the backward pass needs instead of them.
    return out_tnd, queries.join([scale for _, scale in mixed], q_tnd[..., 0].to(scale_type))


@operator("bertree::grouped_attention_backward", differentiable=False)
def _attend_backward(
    grad_tnd: Tensor,
    q_tnd: Tensor,
    k_tnd: Tensor,
    v_tnd: Tensor,
    out_tnd: Tensor,
    scale_tn: Tensor,
    cu_q: Tensor,
    cu_k: Tensor | None,
    left: int,
    right: int,
    hides_self: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys = cut_streams(cu_q, cu_k)
    grads: list[Sequence[Tensor]] = []
    cuts = (queries.cut(grad_tnd), queries.cut(q_tnd), keys.cut(k_tnd), keys.cut(v_tnd))
    for grad, q, k, v, *made in zip(*cuts, queries.cut(out_tnd), queries.cut(scale_tn), strict=True):
        if not (q.shape[2] and k.shape[2]):
            grads.append([torch.zeros_like(x) for x in (q, k, v)])
            continue
        causal, mask = _mask(q.shape[2], k.shape[2], left, right, hides_self, q)
        grads.append(flash_attention_for_cpu_backward(grad, q, k, v, *made, is_causal=causal, attn_mask=mask))
    q_grad = queries.join([grad[0] for grad in grads], q_tnd)
    return q_grad, keys.join([grad[1] for grad in grads], k_tnd), keys.join([grad[2] for grad in grads], v_tnd)


@fake_of("bertree::grouped_attention")
def _(
    q_tnd: Tensor,
    k_tnd: Tensor,
    v_tnd: Tensor,
    cu_q: Tensor,
    cu_k: Tensor | None,
    left: int,
    right: int,
    hides_self: bool,
) -> tuple[Tensor, Tensor]:
    return _like(q_tnd), _like(q_tnd[..., 0].to(torch.promote_types(q_tnd.dtype, torch.float32)))


@fake_of("bertree::grouped_attention_backward")
def _(
    grad_tnd: Tensor,
    q_tnd: Tensor,
    k_tnd: Tensor,
    v_tnd: Tensor,
    out_tnd: Tensor,
    scale_tn: Tensor,
    cu_q: Tensor,
    cu_k: Tensor | None,
    left: int,
    right: int,
    hides_self: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _like(q_tnd), _like(k_tnd), _like(v_tnd)


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, cu_q, cu_k, *ctx.band = inputs
    ctx.save_for_backward(q, k, v, *output, cu_q, cu_k)


def _back(ctx: Any, grad_out: Tensor, grad_scale: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*_attend_backward(grad_out, *ctx.saved_tensors, *ctx.band), None, None, None, None, None)


register_autograd("bertree::grouped_attention", _back, setup_context=_keep)

KERNEL = Kernel(
    "grouped",
    "sequences of equal lengths in one call each",
    Supports("cpu", (Full, Causal, Window, FullButSelf, CausalButSelf), separate_keys=True),
    attend,
)
