"""Attention for sequences above 128 tokens on a GPU: block by block, with a running softmax.

As flash attention does it, but the backward pass adds nothing up across blocks: one kernel owns the gradient of
a block of queries, another that of a block of keys and values, and both compute the scores again. That is a
third more arithmetic, which the matrix units have to spare at these lengths, and no atomic additions: the
result is the same to the bit every time. Gradients go straight into the layout of the fused projection.

Shape letters: t tokens, n heads, d head width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from bertree.model.kernels.layout import Kernel, Layout, RelativeScores
from bertree.model.kernels.triton_short import LOG2_E, SUPPORTS

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch's CUDA builds; without it other kernels are used
    triton = None

# Rows of the block a program owns, of the blocks it loops over; warps; pipeline stages. Tuned on an H200.
FORWARD = (64, 64, 4, 3)
QUERIES = (64, 64, 4, 3)
KEYS = (128, 32, 4, 3)


def attend(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, layout: Layout, dropout: float, relative: RelativeScores | None = None
) -> Tensor:
    """Queries, keys and values of a packed batch -> mixed values (t x n x d)."""
    return attend_fused(torch.stack([q_tnd, k_tnd, v_tnd], 1), layout)


def attend_fused(qkv_t3nd: Tensor, layout: Layout) -> Tensor:
    """Queries, keys and values of a packed batch -> mixed values (t x n x d)."""
    mixed: Tensor = _attend(qkv_t3nd.contiguous(), layout.cu_q, layout.max_q)[0]
    return mixed


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _forward(  # type: ignore[no-untyped-def]
        qkv,
        out,
        sums,
        ends,
        tokens,
        scale,
        HEADS: tl.constexpr,
        WIDTH: tl.constexpr,
        STAYS: tl.constexpr,
        WALKS: tl.constexpr,
    ):
        head = tl.program_id(2)
        first = tl.load(ends + tl.program_id(0)).to(tl.int64)
        length = (tl.load(ends + tl.program_id(0) + 1) - first).to(tl.int32)
        begin = tl.program_id(1) * STAYS
        if begin >= length:
            return
        columns = head * WIDTH + tl.arange(0, WIDTH)
        rows = begin + tl.arange(0, STAYS)
        live = rows < length
        stride: tl.constexpr = 3 * HEADS * WIDTH
        q = tl.load(qkv + (first + rows)[:, None] * stride + columns[None, :], mask=live[:, None], other=0.0)
        high = tl.full([STAYS], float("-inf"), tl.float32)
        total = tl.zeros([STAYS], tl.float32)
        mixed = tl.zeros([STAYS, WIDTH], tl.float32)
        for start in range(0, length, WALKS):
            keys = start + tl.arange(0, WALKS)
            valid = keys < length
            at = qkv + (first + keys)[:, None] * stride + columns[None, :]
            k = tl.load(at + HEADS * WIDTH, mask=valid[:, None], other=0.0)
            v = tl.load(at + 2 * HEADS * WIDTH, mask=valid[:, None], other=0.0)
            s = tl.where(valid[None, :], tl.dot(q, tl.trans(k)) * scale, float("-inf"))
            higher = tl.maximum(high, tl.max(s, 1))
            p = tl.exp2(s - higher[:, None])
            shrink = tl.exp2(high - higher)
            total = total * shrink + tl.sum(p, 1)
            mixed = mixed * shrink[:, None] + tl.dot(p.to(v.dtype), v)
            high = higher
        mixed = mixed / total[:, None]
        to = out + (first + rows)[:, None] * (HEADS * WIDTH) + columns[None, :]
        tl.store(to, mixed.to(q.dtype), mask=live[:, None])
        tl.store(sums + head * tokens + first + rows, high + tl.log2(total), mask=live)

    @triton.jit  # type: ignore[untyped-decorator]
    def _queries(  # type: ignore[no-untyped-def]
        grad,
        qkv,
        out,
        sums,
        deltas,
        to,
        ends,
        tokens,
        scale,
        natural,
        HEADS: tl.constexpr,
        WIDTH: tl.constexpr,
        STAYS: tl.constexpr,
        WALKS: tl.constexpr,
    ):
        """Gradient of a block of queries, and the row sums that the keys' gradient needs."""
        head = tl.program_id(2)
        first = tl.load(ends + tl.program_id(0)).to(tl.int64)
        length = (tl.load(ends + tl.program_id(0) + 1) - first).to(tl.int32)
        begin = tl.program_id(1) * STAYS
        if begin >= length:
            return
        columns = head * WIDTH + tl.arange(0, WIDTH)
        rows = begin + tl.arange(0, STAYS)
        live = rows < length
        stride: tl.constexpr = 3 * HEADS * WIDTH
        offset = (first + rows)[:, None] * stride + columns[None, :]
        plain = (first + rows)[:, None] * (HEADS * WIDTH) + columns[None, :]
        q = tl.load(qkv + offset, mask=live[:, None], other=0.0)
        do = tl.load(grad + plain, mask=live[:, None], other=0.0)
        o = tl.load(out + plain, mask=live[:, None], other=0.0)
        delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
        tl.store(deltas + head * tokens + first + rows, delta, mask=live)
        norm = tl.load(sums + head * tokens + first + rows, mask=live, other=float("inf"))
        dq = tl.zeros([STAYS, WIDTH], tl.float32)
        for start in range(0, length, WALKS):
            keys = start + tl.arange(0, WALKS)
            valid = keys < length
            at = qkv + (first + keys)[:, None] * stride + columns[None, :]
            k = tl.load(at + HEADS * WIDTH, mask=valid[:, None], other=0.0)
            v = tl.load(at + 2 * HEADS * WIDTH, mask=valid[:, None], other=0.0)
            p = tl.exp2(tl.dot(q, tl.trans(k)) * scale - norm[:, None])
            ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
            dq += tl.dot(tl.where(valid[None, :], ds, 0.0).to(k.dtype), k)
        tl.store(to + offset, (dq * natural).to(q.dtype), mask=live[:, None])

    @triton.jit  # type: ignore[untyped-decorator]
    def _keys(  # type: ignore[no-untyped-def]
        grad,
        qkv,
        sums,
        deltas,
        to,
        ends,
        tokens,
        scale,
        natural,
        HEADS: tl.constexpr,
        WIDTH: tl.constexpr,
        STAYS: tl.constexpr,
        WALKS: tl.constexpr,
    ):
        """Gradient of a block of keys and values. Scores are computed with the keys as rows."""
        head = tl.program_id(2)
        first = tl.load(ends + tl.program_id(0)).to(tl.int64)
        length = (tl.load(ends + tl.program_id(0) + 1) - first).to(tl.int32)
        begin = tl.program_id(1) * STAYS
        if begin >= length:
            return
        columns = head * WIDTH + tl.arange(0, WIDTH)
        rows = begin + tl.arange(0, STAYS)
        live = rows < length
        stride: tl.constexpr = 3 * HEADS * WIDTH
        offset = (first + rows)[:, None] * stride + columns[None, :]
        k = tl.load(qkv + offset + HEADS * WIDTH, mask=live[:, None], other=0.0)
        v = tl.load(qkv + offset + 2 * HEADS * WIDTH, mask=live[:, None], other=0.0)
        dk = tl.zeros([STAYS, WIDTH], tl.float32)
        dv = tl.zeros([STAYS, WIDTH], tl.float32)
        for start in range(0, length, WALKS):
            queries = start + tl.arange(0, WALKS)
            valid = queries < length
            q = tl.load(qkv + (first + queries)[:, None] * stride + columns[None, :], mask=valid[:, None], other=0.0)
            at = grad + (first + queries)[:, None] * (HEADS * WIDTH) + columns[None, :]
            do = tl.load(at, mask=valid[:, None], other=0.0)
            norm = tl.load(sums + head * tokens + first + queries, mask=valid, other=float("inf"))
            delta = tl.load(deltas + head * tokens + first + queries, mask=valid, other=0.0)
            p = tl.exp2(tl.dot(k, tl.trans(q)) * scale - norm[None, :])
            dv += tl.dot(p.to(do.dtype), do)
            ds = p * (tl.dot(v, tl.trans(do)) - delta[None, :])
            dk += tl.dot(ds.to(q.dtype), q)
        tl.store(to + offset + HEADS * WIDTH, (dk * natural).to(k.dtype), mask=live[:, None])
        tl.store(to + offset + 2 * HEADS * WIDTH, dv.to(k.dtype), mask=live[:, None])


def _grid(cu_seqlens: Tensor, longest: int, stays: int, heads: int) -> tuple[int, int, int]:
    return cu_seqlens.numel() - 1, -(-longest // stays), heads


@custom_op("bertree::block_attention", mutates_args=())
def _attend(qkv_t3nd: Tensor, cu_seqlens: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    tokens, _, heads, width = qkv_t3nd.shape
    out_tnd = qkv_t3nd.new_empty(tokens, heads, width)
    sums_nt = torch.empty(heads, tokens, dtype=torch.float32, device=qkv_t3nd.device)
    stays, walks, warps, stages = FORWARD
    _forward[_grid(cu_seqlens, longest, stays, heads)](
        qkv_t3nd,
        out_tnd,
        sums_nt,
        cu_seqlens,
        tokens,
        LOG2_E * width**-0.5,
        heads,
        width,
        stays,
        walks,
        num_warps=warps,
        num_stages=stages,
    )
    return out_tnd, sums_nt


@custom_op("bertree::block_attention_backward", mutates_args=())
def _attend_backward(
    grad_tnd: Tensor, qkv_t3nd: Tensor, out_tnd: Tensor, sums_nt: Tensor, cu_seqlens: Tensor, longest: int
) -> Tensor:
    tokens, _, heads, width = qkv_t3nd.shape
    to_t3nd, deltas_nt, scale = torch.empty_like(qkv_t3nd), torch.empty_like(sums_nt), width**-0.5
    grad_tnd = grad_tnd.contiguous()
    stays, walks, warps, stages = QUERIES
    _queries[_grid(cu_seqlens, longest, stays, heads)](
        *(grad_tnd, qkv_t3nd, out_tnd, sums_nt, deltas_nt, to_t3nd, cu_seqlens, tokens, LOG2_E * scale, scale),
        *(heads, width, stays, walks),
        num_warps=warps,
        num_stages=stages,
    )
    stays, walks, warps, stages = KEYS
    _keys[_grid(cu_seqlens, longest, stays, heads)](
        *(grad_tnd, qkv_t3nd, sums_nt, deltas_nt, to_t3nd, cu_seqlens, tokens, LOG2_E * scale, scale),
        *(heads, width, stays, walks),
        num_warps=warps,
        num_stages=stages,
    )
    return to_t3nd


@_attend.register_fake
def _(qkv_t3nd: Tensor, cu_seqlens: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    tokens, _, heads, width = qkv_t3nd.shape
    return qkv_t3nd.new_empty(tokens, heads, width), qkv_t3nd.new_empty(heads, tokens, dtype=torch.float32)


@_attend_backward.register_fake
def _(grad_tnd: Tensor, qkv_t3nd: Tensor, out_tnd: Tensor, sums_nt: Tensor, cu_seqlens: Tensor, longest: int) -> Tensor:
    return torch.empty_like(qkv_t3nd)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv_t3nd, cu_seqlens, ctx.longest = inputs
    ctx.save_for_backward(qkv_t3nd, *output, cu_seqlens)


def _back(ctx: Any, grad_tnd: Tensor, grad_sums: Tensor | None) -> tuple[Tensor, None, None]:
    return _attend_backward(grad_tnd, *ctx.saved_tensors, ctx.longest), None, None


_attend.register_autograd(_back, setup_context=_keep)


KERNEL = Kernel("blocks", "block by block, with a running softmax", SUPPORTS, attend, attend_fused)
