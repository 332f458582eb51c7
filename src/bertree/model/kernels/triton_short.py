"""Attention for sequences of at most 128 tokens on a GPU: one tile of a sequence and head, computed in one go.

Flash attention walks through long sequences block by block and keeps running sums. Where a whole sequence fits
into one block none of that is needed: scores live and die in registers, the backward pass computes them again
from queries and keys, and nothing but the gradient is written, straight into the layout of the fused projection.
No atomic additions, so the result is the same to the bit every time. Longer sequences go elsewhere.

Shape letters: t tokens, n heads, d head width, s sequences, b block.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from bertree.model.kernels.layout import Kernel, Layout, RelativeScores, Supports
from bertree.model.masks import Full

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch's CUDA builds; without it other kernels are used
    triton = None

LONGEST = 128
LOG2_E = 1.4426950408889634


SUPPORTS = Supports(  # also of the kernel for longer sequences
    "cuda",
    (Full,),
    (torch.float16, torch.bfloat16),
    (16, 32, 64, 128),
    missing="needs Triton" if triton is None else "",
)


def attend(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, layout: Layout, dropout: float, relative: RelativeScores | None = None
) -> Tensor:
    """Queries, keys and values of a packed batch -> mixed values (t x n x d)."""
    return attend_fused(torch.stack([q_tnd, k_tnd, v_tnd], 1), layout)


def attend_fused(qkv_t3nd: Tensor, layout: Layout) -> Tensor:
    """Queries, keys and values of a packed batch -> mixed values (t x n x d)."""
    mixed: Tensor = _attend(qkv_t3nd.contiguous(), layout.cu_q, layout.max_q)
    return mixed


def _block(longest: int) -> int:
    """Return the tile size for the longest sequence."""
    return max(16, 1 << (longest - 1).bit_length())


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _scores(at, rows, live, HEADS: tl.constexpr, WIDTH: tl.constexpr, scale):  # type: ignore[no-untyped-def]
        """Queries, keys, values and attention probabilities of one sequence and head."""
        q = tl.load(at, mask=live[:, None], other=0.0)
        k = tl.load(at + HEADS * WIDTH, mask=live[:, None], other=0.0)
        v = tl.load(at + 2 * HEADS * WIDTH, mask=live[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        s = tl.where(live[None, :], s, float("-inf"))
        p = tl.exp2(s - tl.max(s, 1)[:, None])
        p = p / tl.sum(p, 1)[:, None]
        return q, k, v, p

    @triton.jit  # type: ignore[untyped-decorator]
    def _forward(  # type: ignore[no-untyped-def]
        qkv, out, ends, scale, HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
    ):
        first = tl.load(ends + tl.program_id(0)).to(tl.int64)
        length = tl.load(ends + tl.program_id(0) + 1) - first
        rows = tl.arange(0, BLOCK)
        live = rows < length
        columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        at = qkv + (first + rows)[:, None] * (3 * HEADS * WIDTH) + columns[None, :]
        _, _, v, p = _scores(at, rows, live, HEADS, WIDTH, scale)
        o = tl.dot(p.to(v.dtype), v)
        to = out + (first + rows)[:, None] * (HEADS * WIDTH) + columns[None, :]
        tl.store(to, o.to(v.dtype), mask=live[:, None])

    @triton.jit  # type: ignore[untyped-decorator]
    def _backward(  # type: ignore[no-untyped-def]
        grad, qkv, out, ends, scale, natural, HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
    ):
        first = tl.load(ends + tl.program_id(0)).to(tl.int64)
        length = tl.load(ends + tl.program_id(0) + 1) - first
        rows = tl.arange(0, BLOCK)
        live = rows < length
        columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        offset = (first + rows)[:, None] * (3 * HEADS * WIDTH) + columns[None, :]
        q, k, v, p = _scores(qkv + offset, rows, live, HEADS, WIDTH, scale)
        at = grad + (first + rows)[:, None] * (HEADS * WIDTH) + columns[None, :]
        do = tl.load(at, mask=live[:, None], other=0.0)
        dv = tl.dot(tl.trans(p.to(do.dtype)), do)
        tl.store(out + offset + 2 * HEADS * WIDTH, dv.to(do.dtype), mask=live[:, None])
        dp = tl.dot(do, tl.trans(v))
        ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * natural).to(do.dtype)
        dq = tl.dot(ds, k)
        tl.store(out + offset, dq.to(do.dtype), mask=live[:, None])
        dk = tl.dot(tl.trans(ds), q)
        tl.store(out + offset + HEADS * WIDTH, dk.to(do.dtype), mask=live[:, None])


@custom_op("bertree::short_attention", mutates_args=())
def _attend(qkv_t3nd: Tensor, cu_seqlens: Tensor, longest: int) -> Tensor:
    tokens, _, heads, width = qkv_t3nd.shape
    block = _block(longest)
    out_tnd = qkv_t3nd.new_empty(tokens, heads, width)
    grid = (cu_seqlens.numel() - 1, heads)
    _forward[grid](
        qkv_t3nd, out_tnd, cu_seqlens, LOG2_E * width**-0.5, heads, width, block, num_warps=max(1, block // 16)
    )
    return out_tnd


@custom_op("bertree::short_attention_backward", mutates_args=())
def _attend_backward(grad_tnd: Tensor, qkv_t3nd: Tensor, cu_seqlens: Tensor, longest: int) -> Tensor:
    _, _, heads, width = qkv_t3nd.shape
    block = _block(longest)
    out_t3nd = torch.empty_like(qkv_t3nd)
    grid, scale = (cu_seqlens.numel() - 1, heads), width**-0.5
    _backward[grid](
        grad_tnd.contiguous(),
        qkv_t3nd,
        out_t3nd,
        cu_seqlens,
        LOG2_E * scale,
        scale,
        heads,
        width,
        block,
        num_warps=max(2, block // 32),
    )
    return out_t3nd


@_attend.register_fake
def _(qkv_t3nd: Tensor, cu_seqlens: Tensor, longest: int) -> Tensor:
    return qkv_t3nd.new_empty(qkv_t3nd.shape[0], *qkv_t3nd.shape[2:])


@_attend_backward.register_fake
def _(grad_tnd: Tensor, qkv_t3nd: Tensor, cu_seqlens: Tensor, longest: int) -> Tensor:
    return torch.empty_like(qkv_t3nd)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    qkv_t3nd, cu_seqlens, ctx.longest = inputs
    ctx.save_for_backward(qkv_t3nd, cu_seqlens)


def _back(ctx: Any, grad_tnd: Tensor) -> tuple[Tensor, None, None]:
    return _attend_backward(grad_tnd, *ctx.saved_tensors, ctx.longest), None, None


_attend.register_autograd(_back, setup_context=_keep)


KERNEL = Kernel("short", "one tile per sequence and head", replace(SUPPORTS, longest=LONGEST), attend, attend_fused)
