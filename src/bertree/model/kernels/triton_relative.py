"""Relative attention (Transformer-XL, XLNet) on a GPU: block by block, without the scores of all pairs in memory.

The backward pass adds nothing up across blocks: one kernel owns the gradients of a block of queries, one those of a
block of keys and values, one those of a block of distances, and each computes the scores again. No atomic additions,
so the result is the same to the bit every time. The kernels are in `triton_relative_jit`.

Shape letters: t queries, u keys, x distances, n heads, d head width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from bertree.model.kernels import triton_relative_jit as jit
from bertree.model.kernels.layout import Kernel, Layout, RelativeScores, Supports
from bertree.model.kernels.triton_short import LOG2_E, SUPPORTS
from bertree.model.masks import Causal, Full, Window

# Rows of a block, warps, pipeline stages. Tuned on an H200.
FORWARD, QUERIES, KEYS, DISTANCES = (64, 4, 3), (64, 4, 2), (64, 4, 1), (64, 4, 1)
SPLITS = 8  # programs that share the sequences of a block of distances; their sums are added in order


def attend(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, layout: Layout, dropout: float, relative: RelativeScores | None = None
) -> Tensor:
    """Queries, keys and values of packed sequences -> mixed values (t x n x d)."""
    assert relative is not None, "only for scores by distance"
    qu_tnd, qv_tnd, r_xnd = relative.add_to(q_tnd)
    given = (x.contiguous() for x in (qu_tnd, qv_tnd, k_tnd, v_tnd, r_xnd))
    bounds = (layout.cu_q, layout.cu_k, layout.max_q, layout.max_k)
    mixed_tnd: Tensor = _attend(*given, *bounds, relative.lowest, *layout.mask.band)[0]
    return mixed_tnd


def _constants(heads: int, width: int, left: int, right: int, block: int, warps: int, stages: int) -> dict[str, Any]:
    sizes = {"HEADS": heads, "WIDTH": width, "PADDED": max(16, 1 << (width - 1).bit_length()), "B": block}
    return sizes | {"LEFT": left, "RIGHT": right, "num_warps": warps, "num_stages": stages}


@custom_op("bertree::relative_attention", mutates_args=())
def _attend(
    qu_tnd: Tensor,
    qv_tnd: Tensor,
    k_und: Tensor,
    v_und: Tensor,
    r_xnd: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    longest_q: int,
    longest_k: int,
    lowest: int,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor]:
    tokens, heads, width = qu_tnd.shape
    out_tnd = torch.empty_like(qu_tnd)
    sums_nt = torch.empty(heads, tokens, dtype=torch.float32, device=qu_tnd.device)
    jit.forward[(cu_q.numel() - 1, -(-longest_q // FORWARD[0]), heads)](
        *(qu_tnd, qv_tnd, k_und, v_und, r_xnd, out_tnd, sums_nt, cu_q, cu_k),
        *(tokens, len(r_xnd), lowest, LOG2_E * width**-0.5),
        **_constants(heads, width, left, right, *FORWARD),
    )
    return out_tnd, sums_nt


@custom_op("bertree::relative_attention_backward", mutates_args=())
def _attend_backward(
    grad_tnd: Tensor,
    qu_tnd: Tensor,
    qv_tnd: Tensor,
    k_und: Tensor,
    v_und: Tensor,
    r_xnd: Tensor,
    out_tnd: Tensor,
    sums_nt: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    longest_q: int,
    longest_k: int,
    lowest: int,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    tokens, heads, width = qu_tnd.shape
    sequences, distances = cu_q.numel() - 1, len(r_xnd)
    dqu, dqv = torch.empty_like(qu_tnd), torch.empty_like(qv_tnd)
    dk, dv = torch.zeros_like(k_und), torch.zeros_like(v_und)  # zeros: rows of no sequence have no owner
    splits = min(SPLITS, max(1, sequences))
    dr_sxnd = r_xnd.new_empty(splits, *r_xnd.shape, dtype=torch.float32)
    deltas_nt = torch.empty_like(sums_nt)
    inputs = (grad_tnd.contiguous(), qu_tnd, qv_tnd, k_und, v_und, r_xnd)
    scales = (lowest, LOG2_E * width**-0.5, width**-0.5)
    shape = (heads, width, left, right)
    jit.query_gradients[(sequences, -(-longest_q // QUERIES[0]), heads)](
        *(*inputs, out_tnd, sums_nt, deltas_nt, dqu, dqv, cu_q, cu_k, tokens, distances, *scales),
        **_constants(*shape, *QUERIES),
    )
    jit.key_gradients[(sequences, -(-longest_k // KEYS[0]), heads)](
        *(*inputs, sums_nt, deltas_nt, dk, dv, cu_q, cu_k, tokens, distances, *scales), **_constants(*shape, *KEYS)
    )
    jit.distance_gradients[(-(-distances // DISTANCES[0]), splits, heads)](
        *(*inputs, sums_nt, deltas_nt, dr_sxnd, cu_q, cu_k, tokens, distances, sequences, *scales),
        SPLITS=splits,
        **_constants(*shape, *DISTANCES),
    )
    return dqu, dqv, dk, dv, dr_sxnd.sum(0).to(r_xnd.dtype)


@_attend.register_fake
def _(qu_tnd: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    tokens, heads, _ = qu_tnd.shape
    return torch.empty_like(qu_tnd), qu_tnd.new_empty(heads, tokens, dtype=torch.float32)


@_attend_backward.register_fake
def _(grad_tnd: Tensor, *given: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x) for x in given[:5])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, cu_q, cu_k, longest_q, longest_k, lowest, left, right = inputs
    ctx.settings = (longest_q, longest_k, lowest, left, right)
    ctx.save_for_backward(*tensors, *output, cu_q, cu_k)


def _back(ctx: Any, grad_tnd: Tensor, grad_sums: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*_attend_backward(grad_tnd, *ctx.saved_tensors, *ctx.settings), *[None] * 7)


_attend.register_autograd(_back, setup_context=_keep)


KERNEL = Kernel(
    "relative",
    "block by block; a block's distances are shifted in registers",
    Supports(
        "cuda",
        (Full, Causal, Window),
        (torch.float16, torch.bfloat16),
        widest_head=128,
        separate_keys=True,
        relative=True,
        plain=False,
        missing=SUPPORTS.missing,
    ),
    attend,
)
