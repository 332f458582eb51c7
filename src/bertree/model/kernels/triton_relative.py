"""Relative attention (Transformer-XL, XLNet) on a GPU, without the scores of all pairs in memory.

In the backward pass one kernel computes the gradients of a block of queries, and writes the weights of its keys and
the gradients of its scores to tables of queries and distances. From these one kernel computes the gradients of a block
of keys and values, and two matrix products those of queries and distances. Nothing is added up by atomic additions, so
the result is the same to the bit every time. The kernels are in `triton_relative_jit`.

Shape letters: t queries, u keys, x distances, n heads, d head width.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op
from torch.nn.functional import pad

from bertree.model.kernels import triton_relative_jit as jit
from bertree.model.kernels.layout import Kernel, Layout, RelativeScores, Supports
from bertree.model.kernels.triton_short import LOG2_E, SUPPORTS
from bertree.model.masks import Causal, Full, SlidingWindow

# Rows of a block of queries and of keys, warps, pipeline stages. Tuned on an H200.
FORWARD, QUERIES, KEYS = (64, 64, 4, 3), (64, 64, 4, 2), (64, 64, 4, 2)
RESIDUES = 8  # rows whose columns are shifted against each other, so that columns of keys are aligned
TABLE_BYTES = 2**31  # of one table
Ints = Tensor | None


def attend(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, layout: Layout, dropout: float, relative: RelativeScores | None = None
) -> Tensor:
    """Queries, keys and values of packed sequences -> mixed values (t x n x d)."""
    assert relative is not None, "only for scores by distance"
    qu_tnd, qv_tnd, r_xnd = relative.add_to(q_tnd)
    if not _same_rows(k_tnd, v_tnd):
        k_tnd, v_tnd = k_tnd.contiguous(), v_tnd.contiguous()
    tensors = (qu_tnd.contiguous(), qv_tnd.contiguous(), k_tnd, v_tnd, r_xnd.contiguous())
    apart, of_t, of_k = relative.segments or (None, None, None)
    apart = None if apart is None else apart.contiguous()
    bounds, ranks = layout.ranks or (None, None)
    positions = layout.positions if layout.starts is None else None
    order = (layout.starts, positions, bounds, ranks, of_t, of_k)
    sizes = (layout.separate_keys, layout.max_q, layout.max_k, relative.lowest, *layout.mask.band)
    mixed_tnd: Tensor = _attend(*tensors, apart, layout.cu_q, layout.cu_k, *order, *sizes)[0]
    return mixed_tnd


def _same_rows(k_tnd: Tensor, v_tnd: Tensor) -> bool:
    """Return whether the rows of keys and values are whole, and equally far apart."""
    _, _, width = k_tnd.shape
    return k_tnd.stride() == v_tnd.stride() and k_tnd.stride()[1:] == (width, 1)


def _constants(
    heads: int, width: int, band: tuple[int, int], order: tuple[Ints, ...], longest: int, tuned: tuple[int, ...]
) -> dict[str, Any]:
    rows, keys, warps, stages = tuned
    starts, positions, bounds, _, segments, _ = order
    if positions is not None:  # elsewhere blocks are square
        rows = min(rows, max(16, 1 << (longest - 1).bit_length()))
    return {
        "HEADS": heads,
        "WIDTH": width,
        "PADDED": max(16, 1 << (width - 1).bit_length()),
        "ROWS": rows,
        "KEYS": keys,
        "LEFT": band[0],
        "RIGHT": band[1],
        "STARTED": starts is not None,
        "PLACED": positions is not None,
        "RANKED": bounds is not None,
        "SEGMENTS": segments is not None,
        "num_warps": warps,
        "num_stages": stages,
    }


class Tables:
    """Tables of queries and distances, for some heads at a time: rows by their residue (8 x n x t / 8 x columns).

    Columns are distances from the farthest to the lowest, 8 + residue columns later, with zeros around them.
    """

    def __init__(self, qv_tnd: Tensor, r_xnd: Tensor) -> None:
        self.tokens, self.heads, self.width = qv_tnd.shape
        self.distances = len(r_xnd)
        self.pitch = -(-(self.distances + 3 * RESIDUES) // RESIDUES) * RESIDUES
        spare = -self.tokens % RESIDUES
        qv_tnd = pad(qv_tnd, (0, 0, 0, 0, 0, spare)) if spare else qv_tnd
        self.rows = len(qv_tnd)
        self.qv_bnad = qv_tnd.unflatten(0, (-1, RESIDUES)).permute(1, 2, 0, 3)
        residues_b1 = torch.arange(RESIDUES, device=r_xnd.device)[:, None]
        distances_bx = torch.arange(self.pitch, device=r_xnd.device) - RESIDUES - residues_b1
        distances_bx = torch.where(distances_bx < 0, self.distances, distances_bx).clamp(max=self.distances)
        by_column = pad(r_xnd.flip(0), (0, 0, 0, 0, 0, 1))  # the last row is zero
        self.r_bnxd = by_column[distances_bx].transpose(1, 2).contiguous()

    def parts(self) -> Iterator[slice]:
        """Yield some heads at a time, whose tables fit into memory."""
        fit = max(1, TABLE_BYTES // max(1, self.rows * self.pitch * self.r_bnxd.element_size()))
        for first in range(0, self.heads, fit):
            yield slice(first, min(first + fit, self.heads))

    def sizes(self, some: slice, lowest: int) -> tuple[int, ...]:
        """Return what the kernels must know of the tables of some heads."""
        return self.tokens, self.rows, self.pitch, self.distances, lowest + self.distances - 1, some.start

    def products(self, some: slice) -> Tensor:
        """Return the products of queries and distances."""
        return torch.matmul(self.qv_bnad[:, some], self.r_bnxd[:, some].mT)

    def empty(self, some: slice) -> Tensor:
        """Return a table without values."""
        return self.r_bnxd.new_empty(RESIDUES, some.stop - some.start, self.rows // RESIDUES, self.pitch)

    def gradients(self, some: slice, changes_bnax: Tensor, dqv_tnd: Tensor, dr_xnd: Tensor) -> None:
        """Write the gradients of the queries and distances of some heads, from those of their products."""
        if self.rows == self.tokens and changes_bnax.shape[1] == self.heads:
            out = dqv_tnd.unflatten(0, (-1, RESIDUES)).permute(1, 2, 0, 3).flatten(0, 1)
            torch.bmm(changes_bnax.flatten(0, 1), self.r_bnxd.flatten(0, 1), out=out)
        else:
            dqv_bnad = torch.matmul(changes_bnax, self.r_bnxd[:, some])
            dqv_tnd[:, some] = dqv_bnad.permute(2, 0, 1, 3).flatten(0, 1)[: self.tokens]
        dr_bnxd = torch.matmul(changes_bnax.mT, self.qv_bnad[:, some])
        heads = some.stop - some.start
        row, block = self.width, self.pitch * self.width
        # The same distance is one column further in the next residue.
        shape = (RESIDUES, heads, self.distances, self.width)
        shifted = dr_bnxd.as_strided(shape, (heads * block + row, block, row, 1), RESIDUES * row)
        dr_xnd[:, some] = shifted.sum(0, dtype=torch.float32).transpose(0, 1).flip(0)


@custom_op("bertree::relative_attention", mutates_args=())
def _attend(
    qu_tnd: Tensor,
    qv_tnd: Tensor,
    k_und: Tensor,
    v_und: Tensor,
    r_xnd: Tensor,
    apart_tn: Tensor | None,
    cu_q: Tensor,
    cu_k: Tensor,
    starts: Tensor | None,
    positions: Tensor | None,
    bounds: Tensor | None,
    ranks: Tensor | None,
    segments: Tensor | None,
    segments_k: Tensor | None,
    spare: bool,
    longest_q: int,
    longest_k: int,
    lowest: int,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor]:
    tokens, heads, width = qu_tnd.shape
    out_tnd = torch.empty_like(qu_tnd)
    sums_nt = torch.empty(heads, tokens, dtype=torch.float32, device=qu_tnd.device)
    order = (starts, positions, bounds, ranks, segments, segments_k)
    constants = _constants(heads, width, (left, right), order, longest_q, FORWARD)
    tables = Tables(qv_tnd, r_xnd) if positions is not None else None
    for some in tables.parts() if tables is not None else (slice(0, heads),):
        part = some.stop - some.start
        products = tables.products(some) if tables is not None else qv_tnd  # not read
        sizes = (tokens, 0, 0, len(r_xnd), lowest + len(r_xnd) - 1, 0) if tables is None else tables.sizes(some, lowest)
        jit.forward[(cu_q.numel() - 1, -(-longest_q // constants["ROWS"]), part)](
            *(qu_tnd, qv_tnd, k_und, v_und, r_xnd, products, out_tnd, sums_nt, cu_q, cu_k, *order, apart_tn),
            *(*sizes, k_und.stride(0), LOG2_E * width**-0.5),
            PART=part,
            **constants,
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
    apart_tn: Tensor | None,
    out_tnd: Tensor,
    sums_nt: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    starts: Tensor | None,
    positions: Tensor | None,
    bounds: Tensor | None,
    ranks: Tensor | None,
    segments: Tensor | None,
    segments_k: Tensor | None,
    spare: bool,
    longest_q: int,
    longest_k: int,
    lowest: int,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    tokens, heads, width = qu_tnd.shape
    sequences, grad_tnd = cu_q.numel() - 1, grad_tnd.contiguous()
    dqu, dqv = torch.empty_like(qu_tnd), torch.empty_like(qv_tnd)
    new = k_und.new_zeros if spare else k_und.new_empty  # spare rows are of no sequence
    dk, dv = new(k_und.shape), new(k_und.shape)
    dr = torch.empty_like(r_xnd)
    d_apart = qu_tnd.new_empty((tokens, heads) if apart_tn is not None else (0,), dtype=torch.float32)
    order = (starts, positions, bounds, ranks, segments, segments_k)
    shape = (heads, width, (left, right), order, longest_q)
    by_query, by_key = _constants(*shape, QUERIES), _constants(*shape, KEYS)
    by_key["RANKED"] = by_key["RANKED"] and by_key["PLACED"]  # elsewhere weights say what is seen
    query_blocks = -(-longest_q // by_query["ROWS"])
    key_blocks = -(-(longest_k + RESIDUES - 1) // by_key["KEYS"])
    tables = Tables(qv_tnd, r_xnd)
    for some in tables.parts():
        part, products = some.stop - some.start, tables.products(some) if positions is not None else qv_tnd
        weights = tables.empty(some)
        changes, sizes = torch.zeros_like(weights), tables.sizes(some, lowest)
        jit.query_gradients[(sequences, query_blocks, part)](
            *(grad_tnd, qu_tnd, qv_tnd, k_und, v_und, r_xnd, products, out_tnd, sums_nt, dqu, changes, weights),
            *(d_apart, cu_q, cu_k, *order, apart_tn, *sizes, k_und.stride(0), LOG2_E * width**-0.5, width**-0.5),
            PART=part,
            **by_query,
        )
        jit.key_gradients[(sequences, key_blocks, part)](
            *(grad_tnd, qu_tnd, changes, weights, dk, dv, cu_q, cu_k, *order[:4], tables.rows, tables.pitch),
            *sizes[4:],
            PART=part,
            **by_key,
        )
        tables.gradients(some, changes, dqv, dr)
    return dqu, dqv, dk, dv, dr, d_apart if apart_tn is None else d_apart.to(apart_tn.dtype)


@_attend.register_fake
def _(qu_tnd: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    tokens, heads, _ = qu_tnd.shape
    return torch.empty_like(qu_tnd), qu_tnd.new_empty(heads, tokens, dtype=torch.float32)


@_attend_backward.register_fake
def _(grad_tnd: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *tensors, apart_tn = rest[:6]
    d_apart = grad_tnd.new_empty(0, dtype=torch.float32) if apart_tn is None else apart_tn.new_empty(apart_tn.shape)
    return (*(x.new_empty(x.shape) for x in tensors), d_apart)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.settings = inputs[14:]
    ctx.save_for_backward(*inputs[:6], *output, *inputs[6:14])


def _back(ctx: Any, grad_tnd: Tensor, grad_sums: Tensor | None) -> tuple[Tensor | None, ...]:
    *grads, d_apart = _attend_backward(grad_tnd, *ctx.saved_tensors, *ctx.settings)
    return (*grads, d_apart if ctx.saved_tensors[5] is not None else None, *[None] * 14)


_attend.register_autograd(_back, setup_context=_keep)


KERNEL = Kernel(
    "relative",
    "block by block; a block's distances are shifted in registers",
    Supports(
        "cuda",
        (Full, Causal, SlidingWindow),
        (torch.float16, torch.bfloat16),
        widest_head=128,
        separate_keys=True,
        relative=True,
        plain=False,
        ranked=True,
        segments=True,
        missing=SUPPORTS.missing,
    ),
    attend,
)
