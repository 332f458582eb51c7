"""Relative attention (Transformer-XL, XLNet) on a GPU: block by block, without the scores of all pairs in memory.

The score of query i and key j is (q_i + u) k_j + (q_i + v) r_(i - j): a product with the key, and one with a vector
for their distance. A block of 64 queries and 64 keys has 127 distances. So the second product is computed for those
and each row is shifted by its own place, in registers. The backward pass adds nothing up across blocks: one kernel
owns the gradients of a block of queries, one those of a block of keys and values, one those of a block of distances,
and each computes the scores again. No atomic additions, so the result is the same to the bit every time.

Keys may begin before the queries (memory): the last key of a sequence stands at the place of its last query.

Shape letters: t queries, u keys, x distances, n heads, d head width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from bertree.model.kernels.triton_short import LOG2_E

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch's CUDA builds; without it other kernels are used
    triton = None

# Rows of a block, warps, pipeline stages. Tuned on an H200.
FORWARD, QUERIES, KEYS, DISTANCES = (64, 4, 3), (64, 4, 2), (64, 4, 1), (64, 4, 1)
SPLITS = 8  # programs that share the sequences of a block of distances; their sums are added in order


def attend(
    qu_tnd: Tensor,
    qv_tnd: Tensor,
    k_und: Tensor,
    v_und: Tensor,
    r_xnd: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    longest: tuple[int, int],
    lowest: int,
    causal: bool,
    window: int = 0,
) -> Tensor:
    """Return the mixed values of each query (t x n x d).

    `qu_tnd`, `qv_tnd`: queries plus u and plus v. Row x of `r_xnd` is for distance `lowest` + x; there is one for
    every distance that is seen. `longest`: the most queries and keys of a sequence. `window`: a query sees keys at
    distances below it; 0: all.
    """
    given = (x.contiguous() for x in (qu_tnd, qv_tnd, k_und, v_und, r_xnd))
    mixed_tnd: Tensor = _attend(*given, cu_q, cu_k, *longest, lowest, causal, window)[0]
    return mixed_tnd


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _rows(  # type: ignore[no-untyped-def]
        x, first, rows, count, head, HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr
    ):
        """Load rows of one head, with zeros where there are none."""
        columns = tl.arange(0, PADDED)
        at = x + (first + rows).to(tl.int64)[:, None] * (HEADS * WIDTH) + head * WIDTH + columns[None, :]
        live = (rows >= 0) & (rows < count)
        return tl.load(at, mask=live[:, None] & (columns < WIDTH)[None, :], other=0.0)

    @triton.jit  # type: ignore[untyped-decorator]
    def _put(  # type: ignore[no-untyped-def]
        x, values, first, rows, count, head, HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr
    ):
        """Store rows of one head."""
        columns = tl.arange(0, PADDED)
        at = x + (first + rows).to(tl.int64)[:, None] * (HEADS * WIDTH) + head * WIDTH + columns[None, :]
        live = (rows >= 0) & (rows < count)
        tl.store(at, values.to(x.dtype.element_ty), mask=live[:, None] & (columns < WIDTH)[None, :])

    @triton.jit
    def _bounds(cu, sequence):  # type: ignore[no-untyped-def]
        """Where a sequence starts, and its length."""
        first = tl.load(cu + sequence)
        return first, tl.load(cu + sequence + 1) - first

    @triton.jit  # type: ignore[untyped-decorator]
    def _sees(distance, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):  # type: ignore[no-untyped-def]
        """Whether a query sees a key at that distance."""
        seen = distance == distance
        if CAUSAL:
            seen = seen & (distance >= 0)
        if WINDOW > 0:
            seen = seen & (distance < WINDOW)
        return seen

    @triton.jit  # type: ignore[untyped-decorator]
    def _shift(near, far, B: tl.constexpr):  # type: ignore[no-untyped-def]
        """Turn columns of distances into columns of keys: key j of row i is column i - j + B - 1 of both together.

        Row i needs the columns from i of `near` and those below i of `far`: one block, rotated by its row.
        """
        i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
        return tl.gather(tl.where(j >= i, near, far), (i - j + B - 1) % B, 1)

    @triton.jit  # type: ignore[untyped-decorator]
    def _scores(  # type: ignore[no-untyped-def]
        qu, k, near, far, queries, keys, shift, count_q, count_k, scale, B: tl.constexpr, C: tl.constexpr,
        W: tl.constexpr,
    ):  # fmt: skip
        """Scores of a block of queries and keys, -inf where a key is not seen.

        `near`, `far`: products of the queries with the block's distances, the lower half and the upper.
        """
        s = tl.dot(qu, tl.trans(k)) + _shift(near, far, B)
        seen = _sees(queries[:, None] + shift - keys[None, :], C, W)
        seen = seen & (queries < count_q)[:, None] & (keys < count_k)[None, :]
        return tl.where(seen, s * scale, float("-inf"))

    @triton.jit  # type: ignore[untyped-decorator]
    def _forward(  # type: ignore[no-untyped-def]
        qu_, qv_, k_, v_, r_, out, sums, cu_q, cu_k, tokens, distances, lowest, scale,
        HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, B: tl.constexpr, C: tl.constexpr,
        W: tl.constexpr,
    ):  # fmt: skip
        head = tl.program_id(2)
        first, count = _bounds(cu_q, tl.program_id(0))
        first_k, count_k = _bounds(cu_k, tl.program_id(0))
        begin = tl.program_id(1) * B
        if begin >= count:
            return
        shift = count_k - count
        rows = begin + tl.arange(0, B)
        qu = _rows(qu_, first, rows, count, head, HEADS, WIDTH, PADDED)
        qv = _rows(qv_, first, rows, count, head, HEADS, WIDTH, PADDED)
        high = tl.full([B], float("-inf"), tl.float32)
        total = tl.zeros([B], tl.float32)
        mixed = tl.zeros([B, PADDED], tl.float32)
        stop = count_k
        if C:
            stop = tl.minimum(count_k, begin + B + shift)
        apart = begin + shift + 1 - lowest + tl.arange(0, B)
        far = tl.dot(qv, tl.trans(_rows(r_, 0, apart, distances, head, HEADS, WIDTH, PADDED)))
        for start in range(0, stop, B):
            keys = start + tl.arange(0, B)
            k = _rows(k_, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
            v = _rows(v_, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
            near = tl.dot(qv, tl.trans(_rows(r_, 0, apart - start - B, distances, head, HEADS, WIDTH, PADDED)))
            s = _scores(qu, k, near, far, rows, keys, shift, count, count_k, scale, B, C, W)
            far = near
            higher = tl.maximum(high, tl.max(s, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            p = tl.exp2(s - base[:, None])
            shrink = tl.exp2(high - base)
            total = total * shrink + tl.sum(p, 1)
            mixed = mixed * shrink[:, None] + tl.dot(p.to(v.dtype), v)
            high = higher
        _put(out, mixed / total[:, None], first, rows, count, head, HEADS, WIDTH, PADDED)
        tl.store(sums + head * tokens + first + rows, high + tl.log2(total), mask=rows < count)

    @triton.jit  # type: ignore[untyped-decorator]
    def _queries(  # type: ignore[no-untyped-def]
        grad, qu_, qv_, k_, v_, r_, out, sums, deltas, to_qu, to_qv, cu_q, cu_k, tokens, distances, lowest, scale,
        natural, HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, B: tl.constexpr, C: tl.constexpr,
        W: tl.constexpr,
    ):  # fmt: skip
        """Gradients of a block of queries, and the row sums that the other gradients need."""
        head = tl.program_id(2)
        first, count = _bounds(cu_q, tl.program_id(0))
        first_k, count_k = _bounds(cu_k, tl.program_id(0))
        begin = tl.program_id(1) * B
        if begin >= count:
            return
        shift = count_k - count
        rows = begin + tl.arange(0, B)
        qu = _rows(qu_, first, rows, count, head, HEADS, WIDTH, PADDED)
        qv = _rows(qv_, first, rows, count, head, HEADS, WIDTH, PADDED)
        do = _rows(grad, first, rows, count, head, HEADS, WIDTH, PADDED)
        o = _rows(out, first, rows, count, head, HEADS, WIDTH, PADDED)
        delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
        tl.store(deltas + head * tokens + first + rows, delta, mask=rows < count)
        norm = tl.load(sums + head * tokens + first + rows, mask=rows < count, other=0.0)
        dqu = tl.zeros([B, PADDED], tl.float32)
        dqv = tl.zeros([B, PADDED], tl.float32)
        i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
        stop = count_k
        if C:
            stop = tl.minimum(count_k, begin + B + shift)
        apart = begin + shift + 1 - lowest + tl.arange(0, B)
        r_far = _rows(r_, 0, apart, distances, head, HEADS, WIDTH, PADDED)
        far = tl.dot(qv, tl.trans(r_far))
        for start in range(0, stop, B):
            keys = start + tl.arange(0, B)
            k = _rows(k_, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
            v = _rows(v_, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
            r_near = _rows(r_, 0, apart - start - B, distances, head, HEADS, WIDTH, PADDED)
            near = tl.dot(qv, tl.trans(r_near))
            s = _scores(qu, k, near, far, rows, keys, shift, count, count_k, scale, B, C, W)
            ds = (tl.exp2(s - norm[:, None]) * (tl.dot(do, tl.trans(v)) - delta[:, None])).to(k.dtype)
            dqu += tl.dot(ds, k)
            by_distance = tl.gather(ds, (i - j - 1 + B) % B, 1)  # the way back of _shift
            dqv += tl.dot(tl.where(j >= i, by_distance, 0.0).to(k.dtype), r_near)
            dqv += tl.dot(tl.where(j < i, by_distance, 0.0).to(k.dtype), r_far)
            far = near
            r_far = r_near
        _put(to_qu, dqu * natural, first, rows, count, head, HEADS, WIDTH, PADDED)
        _put(to_qv, dqv * natural, first, rows, count, head, HEADS, WIDTH, PADDED)

    @triton.jit  # type: ignore[untyped-decorator]
    def _keys(  # type: ignore[no-untyped-def]
        grad, qu_, qv_, k_, v_, r_, sums, deltas, to_k, to_v, cu_q, cu_k, tokens, distances, lowest, scale, natural,
        HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, B: tl.constexpr, C: tl.constexpr,
        W: tl.constexpr,
    ):  # fmt: skip
        """Gradients of a block of keys and values."""
        head = tl.program_id(2)
        first, count = _bounds(cu_q, tl.program_id(0))
        first_k, count_k = _bounds(cu_k, tl.program_id(0))
        start = tl.program_id(1) * B
        if start >= count_k:
            return
        shift = count_k - count
        keys = start + tl.arange(0, B)
        k = _rows(k_, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
        v = _rows(v_, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
        dk = tl.zeros([B, PADDED], tl.float32)
        dv = tl.zeros([B, PADDED], tl.float32)
        low = start * 0
        if C:  # the first block of queries that sees one of these keys
            low = tl.maximum(start - shift, 0) // B * B
        for begin in range(low, count, B):
            rows = begin + tl.arange(0, B)
            qu = _rows(qu_, first, rows, count, head, HEADS, WIDTH, PADDED)
            qv = _rows(qv_, first, rows, count, head, HEADS, WIDTH, PADDED)
            do = _rows(grad, first, rows, count, head, HEADS, WIDTH, PADDED)
            apart = begin + shift - start + 1 - lowest + tl.arange(0, B)
            near = tl.dot(qv, tl.trans(_rows(r_, 0, apart - B, distances, head, HEADS, WIDTH, PADDED)))
            far = tl.dot(qv, tl.trans(_rows(r_, 0, apart, distances, head, HEADS, WIDTH, PADDED)))
            norm = tl.load(sums + head * tokens + first + rows, mask=rows < count, other=0.0)
            delta = tl.load(deltas + head * tokens + first + rows, mask=rows < count, other=0.0)
            s = _scores(qu, k, near, far, rows, keys, shift, count, count_k, scale, B, C, W)
            p = tl.exp2(s - norm[:, None])
            dv += tl.dot(tl.trans(p.to(do.dtype)), do)
            ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
            dk += tl.dot(tl.trans(ds.to(qu.dtype)), qu)
        _put(to_k, dk * natural, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
        _put(to_v, dv, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)

    @triton.jit  # type: ignore[untyped-decorator]
    def _distances(  # type: ignore[no-untyped-def]
        grad, qu_, qv_, k_, v_, r_, sums, deltas, to_r, cu_q, cu_k, tokens, distances, sequences, lowest, scale,
        natural, HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, B: tl.constexpr, C: tl.constexpr,
        W: tl.constexpr, SPLITS: tl.constexpr,
    ):  # fmt: skip
        """Gradient of a block of distances, from every SPLITS-th sequence. Columns are distances instead of keys."""
        head = tl.program_id(2)
        split = tl.program_id(1)
        low = tl.program_id(0) * B
        rows_r = low + tl.arange(0, B)
        r = _rows(r_, 0, rows_r, distances, head, HEADS, WIDTH, PADDED)
        dr = tl.zeros([B, PADDED], tl.float32)
        apart = lowest + rows_r
        for sequence in range(split, sequences, SPLITS):
            first, count = _bounds(cu_q, sequence)
            first_k, count_k = _bounds(cu_k, sequence)
            shift = count_k - count
            for begin in range(0, count, B):
                rows = begin + tl.arange(0, B)
                start = begin + shift - lowest - low - (B - 1)
                if (start < count_k) & (start + 2 * B > 0):
                    keys = start + tl.arange(0, B)  # the lower half of the keys at these distances
                    qu = _rows(qu_, first, rows, count, head, HEADS, WIDTH, PADDED)
                    qv = _rows(qv_, first, rows, count, head, HEADS, WIDTH, PADDED)
                    do = _rows(grad, first, rows, count, head, HEADS, WIDTH, PADDED)
                    k = _rows(k_, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
                    near = tl.dot(qu, tl.trans(k))
                    k = _rows(k_, first_k, keys + B, count_k, head, HEADS, WIDTH, PADDED)
                    s = _shift(near, tl.dot(qu, tl.trans(k)), B) + tl.dot(qv, tl.trans(r))
                    v = _rows(v_, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
                    near = tl.dot(do, tl.trans(v))
                    v = _rows(v_, first_k, keys + B, count_k, head, HEADS, WIDTH, PADDED)
                    dp = _shift(near, tl.dot(do, tl.trans(v)), B)
                    norm = tl.load(sums + head * tokens + first + rows, mask=rows < count, other=0.0)
                    delta = tl.load(deltas + head * tokens + first + rows, mask=rows < count, other=0.0)
                    key = rows[:, None] + shift - apart[None, :]
                    seen = _sees(apart[None, :], C, W) & (key >= 0) & (key < count_k) & (rows < count)[:, None]
                    p = tl.exp2(tl.where(seen, s * scale, float("-inf")) - norm[:, None])
                    dr += tl.dot(tl.trans((p * (dp - delta[:, None])).to(qv.dtype)), qv)
        _put(to_r, dr * natural, split * distances, rows_r, distances, head, HEADS, WIDTH, PADDED)


def _constants(
    heads: int, width: int, causal: bool, window: int, block: int, warps: int, stages: int
) -> dict[str, Any]:
    sizes = {"HEADS": heads, "WIDTH": width, "PADDED": max(16, 1 << (width - 1).bit_length()), "B": block}
    return sizes | {"C": causal, "W": window, "num_warps": warps, "num_stages": stages}


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
    causal: bool,
    window: int,
) -> tuple[Tensor, Tensor]:
    tokens, heads, width = qu_tnd.shape
    out_tnd = torch.empty_like(qu_tnd)
    sums_nt = torch.empty(heads, tokens, dtype=torch.float32, device=qu_tnd.device)
    _forward[(cu_q.numel() - 1, -(-longest_q // FORWARD[0]), heads)](
        *(qu_tnd, qv_tnd, k_und, v_und, r_xnd, out_tnd, sums_nt, cu_q, cu_k),
        *(tokens, len(r_xnd), lowest, LOG2_E * width**-0.5),
        **_constants(heads, width, causal, window, *FORWARD),
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
    causal: bool,
    window: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    tokens, heads, width = qu_tnd.shape
    sequences, distances = cu_q.numel() - 1, len(r_xnd)
    dqu, dqv, dk, dv = (torch.empty_like(x) for x in (qu_tnd, qv_tnd, k_und, v_und))
    splits = min(SPLITS, max(1, sequences))
    dr_sxnd = r_xnd.new_empty(splits, *r_xnd.shape, dtype=torch.float32)
    deltas_nt = torch.empty_like(sums_nt)
    inputs = (grad_tnd.contiguous(), qu_tnd, qv_tnd, k_und, v_und, r_xnd)
    scales = (lowest, LOG2_E * width**-0.5, width**-0.5)
    shape = (heads, width, causal, window)
    _queries[(sequences, -(-longest_q // QUERIES[0]), heads)](
        *(*inputs, out_tnd, sums_nt, deltas_nt, dqu, dqv, cu_q, cu_k, tokens, distances, *scales),
        **_constants(*shape, *QUERIES),
    )
    _keys[(sequences, -(-longest_k // KEYS[0]), heads)](
        *(*inputs, sums_nt, deltas_nt, dk, dv, cu_q, cu_k, tokens, distances, *scales), **_constants(*shape, *KEYS)
    )
    _distances[(-(-distances // DISTANCES[0]), splits, heads)](
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
    *tensors, cu_q, cu_k, longest_q, longest_k, lowest, causal, window = inputs
    ctx.settings = (longest_q, longest_k, lowest, causal, window)
    ctx.save_for_backward(*tensors, *output, cu_q, cu_k)


def _back(ctx: Any, grad_tnd: Tensor, grad_sums: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*_attend_backward(grad_tnd, *ctx.saved_tensors, *ctx.settings), *[None] * 7)


_attend.register_autograd(_back, setup_context=_keep)
