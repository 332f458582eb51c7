"""Relative attention (Transformer-XL, XLNet) on the CPU: sequences of equal lengths share a call, without padding.

Work goes in blocks of a few queries of each sequence and the keys that they see (`relative_blocks`), so memory does
not grow with the square of the length; the backward pass computes the scores again.

Shape letters: t tokens, n heads, c sequences of a group, l tokens of a sequence, d head width, x distances.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from bertree.model.kernels.layout import Kernel, Layout, RelativeScores, Supports
from bertree.model.kernels.relative_blocks import DistanceRows, cut_blocks, share_out
from bertree.model.kernels.streams import cut_streams
from bertree.model.masks import Causal, Full, Window

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def attend(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, layout: Layout, dropout: float, relative: RelativeScores | None = None
) -> Tensor:
    """Queries, keys and values of packed sequences -> mixed values (t x n x d)."""
    assert relative is not None, "only for scores by distance"
    cu_k = layout.cu_k if layout.separate_keys else None
    qu_tnd, qv_tnd, r_xnd = relative.add_to(q_tnd)
    given = (qu_tnd, qv_tnd, k_tnd, v_tnd, r_xnd, layout.cu_q, cu_k)
    mixed_tnd: Tensor = _attend(*given, relative.lowest, *layout.mask.band)[0]
    return mixed_tnd


def _forward(
    out: Tensor, sums: Tensor, qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, r_xnd: Tensor, lowest: int, *band: int
) -> None:
    """Mix the values of a group into `out` (all n x c x l x d), log-sum-exp of the scores into `sums` (n x c x l)."""
    heads, count, queries, width = qu.shape
    blocks = cut_blocks(queries, k.shape[2], *band)
    blind = blocks[0].queries.start if blocks else queries
    out[:, :, :blind], sums[:, :, :blind] = 0, 0
    if not blocks:
        return
    distances = DistanceRows.of(r_xnd, lowest, blocks)
    for block in blocks:
        r_nxd = distances.rows_nxd[:, distances.rows_of(block)]
        for chunk in share_out(heads, count, block.rows * block.pitch):
            own, seen = (*chunk, block.queries), (*chunk, block.keys)
            bias = block.shifted(torch.bmm((qv[own] * width**-0.5).flatten(1, 2), r_nxd[chunk[0]].mT))
            block.hide(bias)
            bias = bias.unflatten(0, qu[own].shape[:2])
            out[own], sums[own] = _flash(qu[own], k[seen], v[seen], attn_mask=bias)


def _backward(
    grads: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    grad: Tensor,
    qu: Tensor,
    qv: Tensor,
    out: Tensor,
    sums: Tensor,
    k: Tensor,
    v: Tensor,
    r_xnd: Tensor,
    lowest: int,
    *band: int,
) -> None:
    """Write the gradients of queries plus u and plus v, keys and values of a group (n x c x l x d); add that of r."""
    heads, count, queries, width = qu.shape
    to_qu, to_qv, to_k, to_v, to_r = grads
    blocks = cut_blocks(queries, k.shape[2], *band)
    blind = blocks[0].queries.start if blocks else queries
    to_qu[:, :, :blind], to_qv[:, :, :blind] = 0, 0
    dk, dv = (x.new_zeros(x.shape) for x in (k, v))
    if blocks:
        distances, scale = DistanceRows.of(r_xnd, lowest, blocks), width**-0.5
        dr_nxd = torch.zeros_like(distances.rows_nxd)
        # One more component: products with keys and values then subtract what a row has in common.
        qu, k = _wider(qu, sums / -scale), _wider(k, 1.0)
        grad, v = _wider(grad, -(grad * out).sum(-1)), _wider(v, 1.0)
    for block in blocks:
        near = distances.rows_of(block)
        for chunk in share_out(heads, count, block.rows * block.pitch):
            own, seen = (*chunk, block.queries), (*chunk, block.keys)
            q_block, k_block, grad_block, v_block = (
                _together(x[at]) for x, at in ((qu, own), (k, seen), (grad, own), (v, seen))
            )
            qv_block, r_nxd = qv[own].flatten(1, 2), distances.rows_nxd[chunk[0], near]
            cells = torch.bmm(qv_block, r_nxd.mT)
            weights = block.shifted(cells).baddbmm_(q_block, k_block.mT, beta=scale, alpha=scale).exp_()
            block.clear(weights)
            _together(dv[seen]).baddbmm_(weights.mT, grad_block[..., :width])
            changes = torch.empty_like(cells)
            changes[..., : block.rows - 1] = 0  # these are no keys
            changes[..., block.columns :] = 0
            by_key = block.shifted(changes).baddbmm_(grad_block, v_block.mT, beta=0, alpha=scale).mul_(weights)
            to_qu[own] = torch.bmm(by_key, k_block[..., :width]).view(to_qu[own].shape)
            to_qv[own] = torch.bmm(changes, r_nxd).view(to_qv[own].shape)
            _together(dk[seen]).baddbmm_(by_key.mT, q_block[..., :width])
            dr_nxd[chunk[0], near].baddbmm_(changes.mT, qv_block)
    to_k.copy_(dk)
    to_v.copy_(dv)
    if blocks:
        to_r[distances.given] += dr_nxd[:, distances.own].transpose(0, 1).flip(0)


def _wider(x: Tensor, last: Tensor | float) -> Tensor:
    """Append one component to each vector."""
    wider = x.new_empty(*x.shape[:-1], x.shape[-1] + 1)
    wider[..., :-1] = x
    wider[..., -1] = last
    return wider


def _together(x: Tensor) -> Tensor:
    """View heads and sequences as one dimension."""
    return x.view(-1, *x.shape[2:])


@custom_op("bertree::grouped_relative_attention", mutates_args=())
def _attend(
    qu_tnd: Tensor,
    qv_tnd: Tensor,
    k_tnd: Tensor,
    v_tnd: Tensor,
    r_xnd: Tensor,
    cu_q: Tensor,
    cu_k: Tensor | None,
    lowest: int,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor]:
    queries, keys = cut_streams(cu_q, cu_k)
    exact = _precision(qu_tnd)
    made = [queries.new(x, exact) for x in (qu_tnd, qu_tnd[..., 0])]
    parts = [queries.split(x) for x in made]
    parts += [stream.cut(x) for stream, x in ((queries, qu_tnd), (queries, qv_tnd), (keys, k_tnd), (keys, v_tnd))]
    for group in zip(*parts, strict=True):
        out, sums, qu, qv, k, v = (x.transpose(0, 1).to(exact) for x in group)
        _forward(out, sums, qu, qv, k, v, r_xnd.to(exact), lowest, left, right)
    # The second output, log-sum-exp of the scores, is what the backward pass needs instead of them.
    out_tnd, sums_tn = (queries.restore(x, len(qu_tnd)) for x in made)
    return out_tnd.to(qu_tnd.dtype), sums_tn


@custom_op("bertree::grouped_relative_attention_backward", mutates_args=())
def _attend_backward(
    grad_tnd: Tensor,
    qu_tnd: Tensor,
    qv_tnd: Tensor,
    k_tnd: Tensor,
    v_tnd: Tensor,
    r_xnd: Tensor,
    out_tnd: Tensor,
    sums_tn: Tensor,
    cu_q: Tensor,
    cu_k: Tensor | None,
    lowest: int,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    queries, keys = cut_streams(cu_q, cu_k)
    exact = _precision(qu_tnd)
    streams = ((queries, qu_tnd), (queries, qv_tnd), (keys, k_tnd), (keys, v_tnd))
    made = [stream.new(x, exact) for stream, x in streams]
    dr_xnd = torch.zeros_like(r_xnd, dtype=exact)
    grads = zip(*(stream.split(x) for (stream, _), x in zip(streams, made, strict=True)), strict=True)
    by_query = (queries.cut(x) for x in (grad_tnd, qu_tnd, qv_tnd, out_tnd, sums_tn))
    groups = zip(*by_query, *(keys.cut(x) for x in (k_tnd, v_tnd)), strict=True)
    for to, group in zip(grads, groups, strict=True):
        to_qu, to_qv, to_k, to_v = (x.transpose(0, 1) for x in to)
        grad, qu, qv, out, sums, k, v = (x.transpose(0, 1).to(exact) for x in group)
        towards = (to_qu, to_qv, to_k, to_v, dr_xnd)
        _backward(towards, grad, qu, qv, out, sums, k, v, r_xnd.to(exact), lowest, left, right)
    dqu, dqv, dk, dv = (
        stream.restore(x, len(like)).to(like.dtype) for x, (stream, like) in zip(made, streams, strict=True)
    )
    return dqu, dqv, dk, dv, dr_xnd.to(r_xnd.dtype)


def _precision(x: Tensor) -> torch.dtype:
    """Half precision is computed in float32."""
    return torch.promote_types(x.dtype, torch.float32)


@_attend.register_fake
def _(qu_tnd: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    out_tnd = torch.empty_like(qu_tnd, memory_format=torch.contiguous_format)
    return out_tnd, qu_tnd.new_empty(qu_tnd.shape[:-1], dtype=_precision(qu_tnd))


@_attend_backward.register_fake
def _(grad_tnd: Tensor, *given: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in given[:5])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, cu_q, cu_k, lowest, left, right = inputs
    ctx.settings = (lowest, left, right)
    ctx.save_for_backward(*tensors, *output, cu_q, cu_k)


def _back(ctx: Any, grad_tnd: Tensor, grad_sums: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*_attend_backward(grad_tnd, *ctx.saved_tensors, *ctx.settings), *[None] * 5)


_attend.register_autograd(_back, setup_context=_keep)

KERNEL = Kernel(
    "grouped_relative",
    "sequences of equal lengths together, a few queries at a time",
    Supports("cpu", (Full, Causal, Window), separate_keys=True, relative=True, plain=False),
    attend,
)
