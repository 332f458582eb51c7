"""Triton code of relative attention: forward, and the gradients of queries, keys and distances.

The score of query i and key j is (q_i + u) k_j + (q_i + v) r_(i - j): a product with the key, and one with a vector
for their distance. A block of 64 queries and 64 keys has 127 distances. So the second product is computed for those
and each row is shifted by its own place, in registers.

A query sees keys at distances from -RIGHT to LEFT; a negative side has no limit. Blocks of keys that no query of a
block sees are left out.
"""

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch's CUDA builds; without it other kernels are used
    triton = None

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
    def _bounds(cu_q, cu_k, sequence):  # type: ignore[no-untyped-def]
        """Where the queries and the keys of a sequence start, how many there are, and the first query's place."""
        first, first_k = tl.load(cu_q + sequence), tl.load(cu_k + sequence)
        count, count_k = tl.load(cu_q + sequence + 1) - first, tl.load(cu_k + sequence + 1) - first_k
        return first, count, first_k, count_k, count_k - count

    @triton.jit  # type: ignore[untyped-decorator]
    def _sees(distance, LEFT: tl.constexpr, RIGHT: tl.constexpr):  # type: ignore[no-untyped-def]
        """Whether a query sees a key at that distance."""
        seen = distance == distance
        if LEFT >= 0:
            seen = seen & (distance <= LEFT)
        if RIGHT >= 0:
            seen = seen & (distance >= -RIGHT)
        return seen

    @triton.jit  # type: ignore[untyped-decorator]
    def _range(place, count, B: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr):  # type: ignore[no-untyped-def]
        """First block and end of what B places see, or are seen from, among `count`: BEFORE and AFTER them."""
        low, stop = place * 0, count
        if BEFORE >= 0:
            low = tl.maximum(place - BEFORE, 0) // B * B
        if AFTER >= 0:
            stop = tl.minimum(count, place + B + AFTER)
        return low, stop

    @triton.jit  # type: ignore[untyped-decorator]
    def _shift(near, far, B: tl.constexpr):  # type: ignore[no-untyped-def]
        """Turn columns of distances into columns of keys: key j of row i is column i - j + B - 1 of both together.

        Row i needs the columns from i of `near` and those below i of `far`: one block, rotated by its row.
        """
        i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
        return tl.gather(tl.where(j >= i, near, far), (i - j + B - 1) % B, 1)

    @triton.jit  # type: ignore[untyped-decorator]
    def _scores(  # type: ignore[no-untyped-def]
        qu, k, near, far, queries, keys, shift, count_q, count_k, scale, B: tl.constexpr, LEFT: tl.constexpr,
        RIGHT: tl.constexpr,
    ):  # fmt: skip
        """Scores of a block of queries and keys, -inf where a key is not seen.

        `near`, `far`: products of the queries with the block's distances, the lower half and the upper.
        """
        s = tl.dot(qu, tl.trans(k)) + _shift(near, far, B)
        seen = _sees(queries[:, None] + shift - keys[None, :], LEFT, RIGHT)
        seen = seen & (queries < count_q)[:, None] & (keys < count_k)[None, :]
        return tl.where(seen, s * scale, float("-inf"))

    @triton.jit  # type: ignore[untyped-decorator]
    def forward(  # type: ignore[no-untyped-def]
        qu_, qv_, k_, v_, r_, out, sums, cu_q, cu_k, tokens, distances, lowest, scale,
        HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, B: tl.constexpr, LEFT: tl.constexpr,
        RIGHT: tl.constexpr,
    ):  # fmt: skip
        head = tl.program_id(2)
        first, count, first_k, count_k, shift = _bounds(cu_q, cu_k, tl.program_id(0))
        begin = tl.program_id(1) * B
        if begin >= count:
            return
        rows = begin + tl.arange(0, B)
        qu = _rows(qu_, first, rows, count, head, HEADS, WIDTH, PADDED)
        qv = _rows(qv_, first, rows, count, head, HEADS, WIDTH, PADDED)
        high = tl.full([B], float("-inf"), tl.float32)
        total = tl.zeros([B], tl.float32)
        mixed = tl.zeros([B, PADDED], tl.float32)
        low, stop = _range(begin + shift, count_k, B, LEFT, RIGHT)
        apart = begin + shift + 1 - lowest + tl.arange(0, B)
        far = tl.dot(qv, tl.trans(_rows(r_, 0, apart - low, distances, head, HEADS, WIDTH, PADDED)))
        for start in range(low, stop, B):
            keys = start + tl.arange(0, B)
            k = _rows(k_, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
            v = _rows(v_, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
            near = tl.dot(qv, tl.trans(_rows(r_, 0, apart - start - B, distances, head, HEADS, WIDTH, PADDED)))
            s = _scores(qu, k, near, far, rows, keys, shift, count, count_k, scale, B, LEFT, RIGHT)
            far = near
            higher = tl.maximum(high, tl.max(s, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            p = tl.exp2(s - base[:, None])
            shrink = tl.exp2(high - base)
            total = total * shrink + tl.sum(p, 1)
            mixed = mixed * shrink[:, None] + tl.dot(p.to(v.dtype), v)
            high = higher
        high = tl.where(total > 0.0, high + tl.log2(total), 0.0)  # a query that sees no key gets nothing
        mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
        _put(out, mixed, first, rows, count, head, HEADS, WIDTH, PADDED)
        tl.store(sums + head * tokens + first + rows, high, mask=rows < count)

    @triton.jit  # type: ignore[untyped-decorator]
    def query_gradients(  # type: ignore[no-untyped-def]
        grad, qu_, qv_, k_, v_, r_, out, sums, deltas, to_qu, to_qv, cu_q, cu_k, tokens, distances, lowest, scale,
        natural, HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, B: tl.constexpr, LEFT: tl.constexpr,
        RIGHT: tl.constexpr,
    ):  # fmt: skip
        """Gradients of a block of queries, and the row sums that the other gradients need."""
        head = tl.program_id(2)
        first, count, first_k, count_k, shift = _bounds(cu_q, cu_k, tl.program_id(0))
        begin = tl.program_id(1) * B
        if begin >= count:
            return
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
        low, stop = _range(begin + shift, count_k, B, LEFT, RIGHT)
        apart = begin + shift + 1 - lowest + tl.arange(0, B)
        r_far = _rows(r_, 0, apart - low, distances, head, HEADS, WIDTH, PADDED)
        far = tl.dot(qv, tl.trans(r_far))
        for start in range(low, stop, B):
            keys = start + tl.arange(0, B)
            k = _rows(k_, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
            v = _rows(v_, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
            r_near = _rows(r_, 0, apart - start - B, distances, head, HEADS, WIDTH, PADDED)
            near = tl.dot(qv, tl.trans(r_near))
            s = _scores(qu, k, near, far, rows, keys, shift, count, count_k, scale, B, LEFT, RIGHT)
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
    def key_gradients(  # type: ignore[no-untyped-def]
        grad, qu_, qv_, k_, v_, r_, sums, deltas, to_k, to_v, cu_q, cu_k, tokens, distances, lowest, scale, natural,
        HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, B: tl.constexpr, LEFT: tl.constexpr,
        RIGHT: tl.constexpr,
    ):  # fmt: skip
        """Gradients of a block of keys and values."""
        head = tl.program_id(2)
        first, count, first_k, count_k, shift = _bounds(cu_q, cu_k, tl.program_id(0))
        start = tl.program_id(1) * B
        if start >= count_k:
            return
        keys = start + tl.arange(0, B)
        k = _rows(k_, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
        v = _rows(v_, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
        dk = tl.zeros([B, PADDED], tl.float32)
        dv = tl.zeros([B, PADDED], tl.float32)
        low, stop = _range(start - shift, count, B, RIGHT, LEFT)
        for begin in range(low, stop, B):
            rows = begin + tl.arange(0, B)
            qu = _rows(qu_, first, rows, count, head, HEADS, WIDTH, PADDED)
            qv = _rows(qv_, first, rows, count, head, HEADS, WIDTH, PADDED)
            do = _rows(grad, first, rows, count, head, HEADS, WIDTH, PADDED)
            apart = begin + shift - start + 1 - lowest + tl.arange(0, B)
            near = tl.dot(qv, tl.trans(_rows(r_, 0, apart - B, distances, head, HEADS, WIDTH, PADDED)))
            far = tl.dot(qv, tl.trans(_rows(r_, 0, apart, distances, head, HEADS, WIDTH, PADDED)))
            norm = tl.load(sums + head * tokens + first + rows, mask=rows < count, other=0.0)
            delta = tl.load(deltas + head * tokens + first + rows, mask=rows < count, other=0.0)
            s = _scores(qu, k, near, far, rows, keys, shift, count, count_k, scale, B, LEFT, RIGHT)
            p = tl.exp2(s - norm[:, None])
            dv += tl.dot(tl.trans(p.to(do.dtype)), do)
            ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
            dk += tl.dot(tl.trans(ds.to(qu.dtype)), qu)
        _put(to_k, dk * natural, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
        _put(to_v, dv, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)

    @triton.jit  # type: ignore[untyped-decorator]
    def distance_gradients(  # type: ignore[no-untyped-def]
        grad, qu_, qv_, k_, v_, r_, sums, deltas, to_r, cu_q, cu_k, tokens, distances, sequences, lowest, scale,
        natural, HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, B: tl.constexpr, LEFT: tl.constexpr,
        RIGHT: tl.constexpr, SPLITS: tl.constexpr,
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
            first, count, first_k, count_k, shift = _bounds(cu_q, cu_k, sequence)
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
                    seen = _sees(apart[None, :], LEFT, RIGHT) & (key >= 0) & (key < count_k) & (rows < count)[:, None]
                    p = tl.exp2(tl.where(seen, s * scale, float("-inf")) - norm[:, None])
                    dr += tl.dot(tl.trans((p * (dp - delta[:, None])).to(qv.dtype)), qv)
        _put(to_r, dr * natural, split * distances, rows_r, distances, head, HEADS, WIDTH, PADDED)
