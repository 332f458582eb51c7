"""Triton code of relative attention: forward, and the gradients of queries and keys.

The score of query i and key j is (q_i + u) k_j + (q_i + v) r_(position of i - j) and, where their segments differ, a
number of the query. A block of 64 queries at consecutive positions and 64 keys has 127 distances: the second product is
computed for those, and each row is shifted by its own position, in registers. Queries at other positions (PLACED) have
too many distances: their products with all distances are an argument.

What a query sees: keys at distances from -RIGHT to LEFT (a negative side has no limit) and, if RANKED, keys whose rank
is below the query's bound. Blocks of keys that no query of a block sees by its distance are left out.

A table has a row for each query and a column for each distance, from the farthest to the lowest, so that the keys of a
block are neighbors in it. The gradients of scores are written to such a table. Memory is fast in aligned groups of 8
columns only, and the distances of a row's neighbor are one column further. So row i is stored with i % 8 more columns
in front (`_row`), and blocks of keys start up to 7 keys earlier (`_lead`): then all rows of a block are aligned.
"""

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch's CUDA builds; without it other kernels are used
    triton = None

if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _rows(  # type: ignore[no-untyped-def]
        x, first, rows, count, stride, head, WIDTH: tl.constexpr, PADDED: tl.constexpr
    ):
        """Load rows of one head, with zeros where there are none."""
        columns = tl.arange(0, PADDED)
        at = x + (first + rows).to(tl.int64)[:, None] * stride + head * WIDTH + columns[None, :]
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

    @triton.jit  # type: ignore[untyped-decorator]
    def _bounds(cu_q, cu_k, starts, sequence, STARTED: tl.constexpr):  # type: ignore[no-untyped-def]
        """Where the queries and the keys of a sequence start, how many there are, and the first query's position."""
        first, first_k = tl.load(cu_q + sequence), tl.load(cu_k + sequence)
        count, count_k = tl.load(cu_q + sequence + 1) - first, tl.load(cu_k + sequence + 1) - first_k
        position = count_k - count
        if STARTED:
            position = tl.load(starts + sequence)
        return first, count, first_k, count_k, position

    @triton.jit  # type: ignore[untyped-decorator]
    def _range(  # type: ignore[no-untyped-def]
        position, count, size, B: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr
    ):
        """First block and end of what `size` positions see, or are seen from, among `count`: BEFORE and AFTER them."""
        low, stop = position * 0, count
        if BEFORE >= 0:
            low = tl.maximum(position - BEFORE, 0) // B * B
        if AFTER >= 0:
            stop = tl.minimum(count, position + size + AFTER)
        return low, stop

    @triton.jit  # type: ignore[untyped-decorator]
    def _shift(near, far, B: tl.constexpr):  # type: ignore[no-untyped-def]
        """Turn columns of distances into columns of keys: key j of row i is column i - j + B - 1 of both together.

        Row i needs the columns from i of `near` and those below i of `far`: one block, rotated by its row.
        """
        i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
        return tl.gather(tl.where(j >= i, near, far), (i - j + B - 1) % B, 1)

    @triton.jit  # type: ignore[untyped-decorator]
    def _lead(first, shift, farthest, PLACED: tl.constexpr):  # type: ignore[no-untyped-def]
        """How many keys earlier blocks start, so that the columns of their keys are aligned."""
        lead = first * 0
        if not PLACED:
            lead = (first - shift + farthest + (1 << 20)) % 8
        return lead

    @triton.jit  # type: ignore[untyped-decorator]
    def _columns(  # type: ignore[no-untyped-def]
        row, position, start, padded, pitch, farthest, live, seen, head, PART: tl.constexpr, KEYS: tl.constexpr,
        PLACED: tl.constexpr,
    ):  # fmt: skip
        """Where a block's queries and keys are in a table, and which of them: whole groups of 8 columns."""
        begin = ((row % 8 * PART + head).to(tl.int64) * (padded // 8) + row // 8) * pitch
        first = farthest + 8 + row % 8 - position + start
        keys = tl.arange(0, KEYS)[None, :]
        if PLACED:
            return begin[:, None] + first[:, None] + keys, seen
        column = tl.multiple_of(first, 8)[:, None] + keys
        group = (column + 1024) // 8  # blocks may reach beyond the columns of a row, to both sides
        valid = live[:, None] & (group >= 128) & (group < 128 + pitch // 8)
        return tl.multiple_of(begin, 8)[:, None] + column, valid

    @triton.jit  # type: ignore[untyped-decorator]
    def _queries(  # type: ignore[no-untyped-def]
        positions, bounds, segments, apart, first, rows, count, shift, head, HEADS: tl.constexpr, PLACED: tl.constexpr,
        RANKED: tl.constexpr, SEGMENTS: tl.constexpr,
    ):  # fmt: skip
        """What a block of queries is compared by: their positions, bounds, segments and scores of other segments."""
        live = rows < count
        position, bound, segment, other = rows + shift, rows, rows, rows * 0.0
        if PLACED:
            position = tl.load(positions + first + rows, mask=live, other=0)
        if RANKED:
            bound = tl.load(bounds + first + rows, mask=live, other=-(1 << 30))
        if SEGMENTS:
            segment = tl.load(segments + first + rows, mask=live, other=0)
            at = (first + rows).to(tl.int64) * HEADS + head
            other = tl.load(apart + at, mask=live, other=0.0).to(tl.float32)
        return position, bound, segment, other

    @triton.jit  # type: ignore[untyped-decorator]
    def _seen(  # type: ignore[no-untyped-def]
        position, bound, ranks, first_k, rows, keys, count, count_k, LEFT: tl.constexpr, RIGHT: tl.constexpr,
        RANKED: tl.constexpr,
    ):  # fmt: skip
        """Whether each query of a block sees each key of another."""
        live = (keys >= 0) & (keys < count_k)
        if RANKED:  # rows and keys beyond the sequence have bounds and ranks that nothing fits
            rank = tl.load(ranks + first_k + keys, mask=live, other=1 << 30)
            seen = rank[None, :] < bound[:, None]
        else:
            seen = (rows < count)[:, None] & live[None, :]
        distance = position[:, None] - keys[None, :]
        if LEFT >= 0:
            seen = seen & (distance <= LEFT)
        if RIGHT >= 0:
            seen = seen & (distance >= -RIGHT)
        return seen

    @triton.jit
    def _apart(segment, segments_k, first_k, keys, count_k):  # type: ignore[no-untyped-def]
        """Whether the segments of queries and keys differ."""
        segment_k = tl.load(segments_k + first_k + keys, mask=(keys >= 0) & (keys < count_k), other=0)
        return segment[:, None] != segment_k[None, :]

    @triton.jit  # type: ignore[untyped-decorator]
    def forward(  # type: ignore[no-untyped-def]
        qu_, qv_, k_, v_, r_, products, out, sums, cu_q, cu_k, starts, positions, bounds, ranks, segments, segments_k,
        apart, tokens, padded, pitch, distances, farthest, head0, stride_k, scale, HEADS: tl.constexpr,
        PART: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
        LEFT: tl.constexpr, RIGHT: tl.constexpr, PLACED: tl.constexpr, RANKED: tl.constexpr, SEGMENTS: tl.constexpr,
        STARTED: tl.constexpr,
    ):  # fmt: skip
        """Mix the values for a block of queries; keep the logarithm (base 2) of each row's sum."""
        head = head0 + tl.program_id(2)
        first, count, first_k, count_k, shift = _bounds(cu_q, cu_k, starts, tl.program_id(0), STARTED)
        begin = tl.program_id(1) * ROWS
        if begin >= count:
            return
        rows = begin + tl.arange(0, ROWS)
        position, bound, segment, other = _queries(
            positions, bounds, segments, apart, first, rows, count, shift, head, HEADS, PLACED, RANKED, SEGMENTS
        )
        qu = _rows(qu_, first, rows, count, HEADS * WIDTH, head, WIDTH, PADDED)
        high = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, PADDED], tl.float32)
        low, stop = _range(begin + shift, count_k, ROWS, KEYS, LEFT, RIGHT)
        if not PLACED:
            qv = _rows(qv_, first, rows, count, HEADS * WIDTH, head, WIDTH, PADDED)
            row_r = begin + shift + 1 - (farthest + 1 - distances) + tl.arange(0, KEYS)
            far = tl.dot(qv, tl.trans(_rows(r_, 0, row_r - low, distances, HEADS * WIDTH, head, WIDTH, PADDED)))
        for start in range(low, stop, KEYS):
            keys = start + tl.arange(0, KEYS)
            k = _rows(k_, first_k, keys, count_k, stride_k, head, WIDTH, PADDED)
            v = _rows(v_, first_k, keys, count_k, stride_k, head, WIDTH, PADDED)
            seen = _seen(position, bound, ranks, first_k, rows, keys, count, count_k, LEFT, RIGHT, RANKED)
            s = tl.dot(qu, tl.trans(k))
            if PLACED:
                at, valid = _columns(
                    first + rows, position, start, padded, pitch, farthest, rows < count, seen, tl.program_id(2), PART,
                    KEYS, PLACED,
                )  # fmt: skip
                s += tl.load(products + at, mask=valid, other=0.0).to(tl.float32)
            else:
                row = _rows(r_, 0, row_r - start - KEYS, distances, HEADS * WIDTH, head, WIDTH, PADDED)
                near = tl.dot(qv, tl.trans(row))
                s += _shift(near, far, KEYS)
                far = near
            if SEGMENTS:
                s += tl.where(_apart(segment, segments_k, first_k, keys, count_k), other[:, None], 0.0)
            s = tl.where(seen, s * scale, float("-inf"))
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
        grad, qu_, qv_, k_, v_, r_, products, out, sums, to_qu, changes, weights, to_apart, cu_q, cu_k, starts,
        positions, bounds, ranks, segments, segments_k, apart, tokens, padded, pitch, distances, farthest, head0,
        stride_k, scale, natural, HEADS: tl.constexpr, PART: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
        ROWS: tl.constexpr, KEYS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, PLACED: tl.constexpr,
        RANKED: tl.constexpr, SEGMENTS: tl.constexpr, STARTED: tl.constexpr,
    ):  # fmt: skip
        """Gradients of a block of queries; tables of the weights of their keys, and of the gradients of the scores."""
        head = head0 + tl.program_id(2)
        first, count, first_k, count_k, shift = _bounds(cu_q, cu_k, starts, tl.program_id(0), STARTED)
        begin = tl.program_id(1) * ROWS
        if begin >= count:
            return
        rows = begin + tl.arange(0, ROWS)
        position, bound, segment, other = _queries(
            positions, bounds, segments, apart, first, rows, count, shift, head, HEADS, PLACED, RANKED, SEGMENTS
        )
        lead = _lead(first, shift, farthest, PLACED)
        qu = _rows(qu_, first, rows, count, HEADS * WIDTH, head, WIDTH, PADDED)
        do = _rows(grad, first, rows, count, HEADS * WIDTH, head, WIDTH, PADDED)
        o = _rows(out, first, rows, count, HEADS * WIDTH, head, WIDTH, PADDED)
        delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
        norm = tl.load(sums + head * tokens + first + rows, mask=rows < count, other=0.0)
        dqu = tl.zeros([ROWS, PADDED], tl.float32)
        dother = tl.zeros([ROWS], tl.float32)
        low, stop = _range(begin + shift, count_k, ROWS, KEYS, LEFT, RIGHT)
        if not PLACED:
            qv = _rows(qv_, first, rows, count, HEADS * WIDTH, head, WIDTH, PADDED)
            row_r = begin + shift + 1 - (farthest + 1 - distances) + tl.arange(0, KEYS)
            far = tl.dot(qv, tl.trans(_rows(r_, 0, row_r - low + lead, distances, HEADS * WIDTH, head, WIDTH, PADDED)))
        for block in range(low, stop + lead, KEYS):
            start = block - lead
            keys = start + tl.arange(0, KEYS)
            k = _rows(k_, first_k, keys, count_k, stride_k, head, WIDTH, PADDED)
            v = _rows(v_, first_k, keys, count_k, stride_k, head, WIDTH, PADDED)
            seen = _seen(position, bound, ranks, first_k, rows, keys, count, count_k, LEFT, RIGHT, RANKED)
            at, valid = _columns(
                first + rows, position, start, padded, pitch, farthest, rows < count, seen, tl.program_id(2), PART,
                KEYS, PLACED,
            )  # fmt: skip
            s = tl.dot(qu, tl.trans(k))
            if PLACED:
                s += tl.load(products + at, mask=valid, other=0.0).to(tl.float32)
            else:
                row = _rows(r_, 0, row_r - start - KEYS, distances, HEADS * WIDTH, head, WIDTH, PADDED)
                near = tl.dot(qv, tl.trans(row))
                s += _shift(near, far, KEYS)
                far = near
            if SEGMENTS:
                s += tl.where(_apart(segment, segments_k, first_k, keys, count_k), other[:, None], 0.0)
            p = tl.exp2(tl.where(seen, s * scale, float("-inf")) - norm[:, None])
            ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None]) * natural
            tl.store(weights + at, p.to(weights.dtype.element_ty), mask=valid)
            tl.store(changes + at, ds.to(changes.dtype.element_ty), mask=valid)
            if SEGMENTS:
                dother += tl.sum(tl.where(_apart(segment, segments_k, first_k, keys, count_k), ds, 0.0), 1)
            dqu += tl.dot(ds.to(k.dtype), k)
        _put(to_qu, dqu, first, rows, count, head, HEADS, WIDTH, PADDED)
        if SEGMENTS:
            tl.store(to_apart + (first + rows).to(tl.int64) * HEADS + head, dother, mask=rows < count)

    @triton.jit  # type: ignore[untyped-decorator]
    def key_gradients(  # type: ignore[no-untyped-def]
        grad, qu_, changes, weights, to_k, to_v, cu_q, cu_k, starts, positions, bounds, ranks, padded, pitch, farthest,
        head0, HEADS: tl.constexpr, PART: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
        KEYS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, PLACED: tl.constexpr, RANKED: tl.constexpr,
        SEGMENTS: tl.constexpr, STARTED: tl.constexpr,
    ):  # fmt: skip
        """Gradients of a block of keys and values, from the tables."""
        head = head0 + tl.program_id(2)
        first, count, first_k, count_k, shift = _bounds(cu_q, cu_k, starts, tl.program_id(0), STARTED)
        lead = _lead(first, shift, farthest, PLACED)
        block = tl.program_id(1) * KEYS
        if block >= count_k + lead:
            return
        start = block - lead
        keys = start + tl.arange(0, KEYS)
        dk = tl.zeros([KEYS, PADDED], tl.float32)
        dv = tl.zeros([KEYS, PADDED], tl.float32)
        low, stop = _range(start - shift, count, KEYS, ROWS, RIGHT, LEFT)
        for begin in range(low, stop, ROWS):
            rows = begin + tl.arange(0, ROWS)
            position, bound, _, _ = _queries(
                positions, bounds, bounds, bounds, first, rows, count, shift, head, HEADS, PLACED, RANKED, False
            )
            qu = _rows(qu_, first, rows, count, HEADS * WIDTH, head, WIDTH, PADDED)
            do = _rows(grad, first, rows, count, HEADS * WIDTH, head, WIDTH, PADDED)
            seen = _seen(position, bound, ranks, first_k, rows, keys, count, count_k, LEFT, RIGHT, RANKED)
            at, valid = _columns(
                first + rows, position, start, padded, pitch, farthest, rows < count, seen, tl.program_id(2), PART,
                KEYS, PLACED,
            )  # fmt: skip
            p = tl.load(weights + at, mask=valid, other=0.0)
            ds = tl.load(changes + at, mask=valid, other=0.0)
            if (LEFT >= 0) | (RIGHT >= 0):
                p = tl.where(seen, p, 0.0).to(p.dtype)  # blocks that no query sees have no weights
            dv += tl.dot(tl.trans(p), do)
            dk += tl.dot(tl.trans(ds), qu)
        _put(to_k, dk, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
        _put(to_v, dv, first_k, keys, count_k, head, HEADS, WIDTH, PADDED)
