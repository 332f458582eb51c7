"""Triton code of hashing, and of the line of slots that follows from sorted buckets."""

from bertree.model.kernels.chunks import triton_attend_jit

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch's CUDA builds; without it other kernels are used
    triton = None

if triton is not None:
    _rows = triton_attend_jit.load_rows

    @triton.jit  # type: ignore[untyped-decorator]
    def hash_factor(  # type: ignore[no-untyped-def]
        qk, rotations, counts, before, sequences, buckets, tokens, stride, ROUNDS: tl.constexpr, AXES: tl.constexpr,
        WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FIRST: tl.constexpr,
    ):  # fmt: skip
        """Hash some tokens of a head in a round by one factor; add the result to that of the factors before."""
        head, number = tl.program_id(1), tl.program_id(2)
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        live, depth = row < tokens, tl.arange(0, PADDED)
        x = _rows(qk, row, live, stride, head, WIDTH, PADDED)
        sequence = tl.load(sequences + row, mask=live, other=0)
        half = (tl.load(counts + sequence) // 2).to(tl.int32)
        largest = tl.full([ROWS], -1.0, tl.float32)
        bucket = tl.zeros([ROWS], tl.int32)
        for begin in range(0, AXES, COLUMNS):
            axis = begin + tl.arange(0, COLUMNS)
            at = ((head * WIDTH + depth[:, None]) * ROUNDS + number) * AXES + axis[None, :]
            there = (depth < WIDTH)[:, None] & (axis < AXES)[None, :]
            turned = tl.dot(x, tl.load(rotations + at, mask=there, other=0.0).to(x.dtype))
            size = tl.where(axis[None, :] < tl.maximum(half, 1)[:, None], tl.abs(turned), -2.0)
            top, index = tl.max(size, 1, return_indices=True)
            value = tl.sum(tl.where(axis[None, :] == (begin + index)[:, None], turned, 0.0), 1)
            bucket = tl.where(top > largest, begin + index + tl.where(value < 0.0, half, 0), bucket)
            largest = tl.maximum(largest, top)
        bucket = tl.where(half > 0, bucket, 0).to(tl.int64)
        to = buckets + (head * ROUNDS + number).to(tl.int64) * tokens + row
        if not FIRST:
            bucket = bucket * tl.load(before + sequence) + tl.load(to, mask=live, other=0)
        tl.store(to, bucket, mask=live)

    @triton.jit  # type: ignore[untyped-decorator]
    def fill_line(  # type: ignore[no-untyped-def]
        order, places_t, slots_t, to_tokens, to_places, to_slots, tokens, size, ROUNDS: tl.constexpr, ROWS: tl.constexpr
    ):
        """Put some of a head's tokens, sorted in a round, into its slots; `order`: rows of all heads and rounds."""
        segment = tl.program_id(1).to(tl.int64)  # head * ROUNDS + round
        rank = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        live = rank < tokens
        token = tl.load(order + segment * tokens + rank, mask=live, other=0) - segment * tokens
        slot = tl.load(slots_t + rank, mask=live, other=0)
        place = tl.load(places_t + token, mask=live, other=0)
        tl.store(to_tokens + segment * size + slot, token, mask=live)
        tl.store(to_places + segment * size + slot, place.to(tl.int32), mask=live)
        tl.store(to_slots + segment * tokens + token, segment % ROUNDS * size + slot, mask=live)
