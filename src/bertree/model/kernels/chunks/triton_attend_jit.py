"""Triton code of attention by chunks: forward, the sum over rounds, and the gradients of queries and keys.

A program takes some slots of a chunk. It finds the rows of their tokens, and those of the chunks they see or are seen
by. What it computes it writes at the tokens' own rows, once for each round.

SHARED: keys are the queries at unit length. HIDES: a token sees itself only where it sees nothing else.
ONCE: a key that a query meets in several rounds counts once. `met` says in which chunk each token is in each round.
"""

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch's CUDA builds; without it other kernels are used
    triton = None

MISSING = "needs Triton" if triton is None else ""
WIDEST = 128  # head
EMPTY_POSITION = 2**30  # of an empty slot, as in `order`


def refusal(x_tnd: torch.Tensor) -> str:
    """Return why queries are not supported; empty if they are."""
    if not x_tnd.is_cuda:
        return "needs cuda"
    if MISSING:
        return MISSING
    if x_tnd.dtype not in (torch.float16, torch.bfloat16):
        return "needs half precision"
    return f"only for heads up to a width of {WIDEST}" if x_tnd.shape[-1] > WIDEST else ""


if triton is not None:
    EMPTY = tl.constexpr(EMPTY_POSITION)
    ALONE = tl.constexpr(-16384.0)  # score of a token with itself: nothing beside any other score, but not nothing
    EPSILON = tl.constexpr(1e-6)
    LN_2 = tl.constexpr(0.6931471805599453)

    @triton.jit  # type: ignore[untyped-decorator]
    def _slots(  # type: ignore[no-untyped-def]
        tokens, places, line, head, chunk, begin, LENGTH: tl.constexpr, ROWS: tl.constexpr
    ):
        """Numbers of some slots of a chunk, and their tokens; -1: none."""
        place = begin + tl.arange(0, ROWS)
        slot, live = chunk * LENGTH + place, place < LENGTH
        token = tl.load(tokens + head * line + slot, mask=live, other=0).to(tl.int32)
        is_empty = tl.load(places + head * line + slot, mask=live, other=EMPTY) == EMPTY
        return slot, tl.where(is_empty, -1, token)

    @triton.jit  # type: ignore[untyped-decorator]
    def _window(  # type: ignore[no-untyped-def]
        tokens, places, near, line, head, chunk, begin, LENGTH: tl.constexpr, WINDOW: tl.constexpr, COUNT: tl.constexpr
    ):
        """Numbers of some slots of the chunks that `near` has for a chunk, and their tokens; -1: none."""
        place = begin + tl.arange(0, COUNT)
        other = tl.load(near + chunk * WINDOW + place // LENGTH, mask=place < WINDOW * LENGTH, other=-1).to(tl.int32)
        slot, live = other * LENGTH + place % LENGTH, other >= 0
        token = tl.load(tokens + head * line + slot, mask=live, other=0).to(tl.int32)
        is_empty = tl.load(places + head * line + slot, mask=live, other=EMPTY) == EMPTY
        return slot, tl.where(is_empty, -1, token)

    @triton.jit  # type: ignore[untyped-decorator]
    def load_rows(  # type: ignore[no-untyped-def]
        x, row, live, stride, head, WIDTH: tl.constexpr, PADDED: tl.constexpr
    ):
        """Load rows of one head, with zeros where there are none."""
        columns = tl.arange(0, PADDED)
        at = x + row.to(tl.int64)[:, None] * stride + head * WIDTH + columns[None, :]
        return tl.load(at, mask=live[:, None] & (columns < WIDTH)[None, :], other=0.0)

    @triton.jit  # type: ignore[untyped-decorator]
    def _put(  # type: ignore[no-untyped-def]
        x, values, row, live, stride, head, WIDTH: tl.constexpr, PADDED: tl.constexpr
    ):
        """Store rows of one head."""
        columns = tl.arange(0, PADDED)
        at = x + row.to(tl.int64)[:, None] * stride + head * WIDTH + columns[None, :]
        tl.store(at, values.to(x.dtype.element_ty), mask=live[:, None] & (columns < WIDTH)[None, :])

    @triton.jit  # type: ignore[untyped-decorator]
    def _factor(k, scale, WIDTH: tl.constexpr, SHARED: tl.constexpr):  # type: ignore[no-untyped-def]
        """What the products with each key are multiplied by."""
        factor = tl.zeros([k.shape[0]], tl.float32) + scale
        if SHARED:
            k = k.to(tl.float32)
            factor = scale * tl.rsqrt(tl.sum(k * k, 1) / WIDTH + EPSILON)
        return factor

    @triton.jit  # type: ignore[untyped-decorator]
    def _meets(  # type: ignore[no-untyped-def]
        met, near, own, row, row_k, number, ROUNDS: tl.constexpr, WINDOW: tl.constexpr
    ):
        """1 where queries meet keys in a round other than `own`, given their rows of `met`."""
        number += (number >= own).to(tl.int32)
        chunk = tl.load(met + row * ROUNDS + number)
        chunk_k = tl.load(met + row_k * ROUNDS + number)
        times = tl.zeros_like(row + row_k).to(tl.int32)
        for column in tl.static_range(WINDOW):
            times += (tl.load(near + chunk * WINDOW + column).to(tl.int32) == chunk_k).to(tl.int32)
        return times

    @triton.jit  # type: ignore[untyped-decorator]
    def _share(  # type: ignore[no-untyped-def]
        met, near, own, row, row_k, ROUNDS: tl.constexpr, WINDOW: tl.constexpr
    ):
        """The logarithm (base 2) of the number of rounds in which queries meet keys; they do in round `own`."""
        more = tl.zeros_like(row + row_k).to(tl.int32)
        if ROUNDS <= 8:
            for number in tl.static_range(ROUNDS - 1):
                more += _meets(met, near, own, row, row_k, number, ROUNDS, WINDOW)
        else:  # too many to be written out
            for number in range(ROUNDS - 1):
                more += _meets(met, near, own, row, row_k, number, ROUNDS, WINDOW)
        share = more.to(tl.float32)
        if ROUNDS > 2:
            share = tl.log2(share + 1.0)
        return share

    @triton.jit  # type: ignore[untyped-decorator]
    def _bias(  # type: ignore[no-untyped-def]
        met, near, own, token, token_k, head, HEADS: tl.constexpr, ROUNDS: tl.constexpr, WINDOW: tl.constexpr,
        CAUSAL: tl.constexpr, HIDES: tl.constexpr, ONCE: tl.constexpr,
    ):  # fmt: skip
        """What is added to scores (base 2): minus infinity where a query does not see a key.

        Tokens are rows or columns, as the scores have them. Before the product of queries and keys, so that all loads
        are under way at once.
        """
        seen = (token >= 0) & (token_k >= 0)
        if CAUSAL:
            seen = seen & (token >= token_k)
        if HIDES:
            seen = seen & (token != token_k)
        bias = tl.where(seen, 0.0, float("-inf"))
        if ONCE:
            row = tl.maximum(token, 0).to(tl.int64) * HEADS + head
            row_k = tl.maximum(token_k, 0).to(tl.int64) * HEADS + head
            bias -= _share(met, near, own, row, row_k, ROUNDS, WINDOW)
        return bias

    @triton.jit  # type: ignore[untyped-decorator]
    def forward(  # type: ignore[no-untyped-def]
        q_, k_, v_, out, sums, tokens, places, near, met, count, chunks, line, stride, stride_k, stride_v, scale,
        HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, LENGTH: tl.constexpr, ROWS: tl.constexpr,
        KEYS: tl.constexpr, ROUNDS: tl.constexpr, WINDOW: tl.constexpr, SHARED: tl.constexpr, CAUSAL: tl.constexpr,
        HIDES: tl.constexpr, ONCE: tl.constexpr,
    ):  # fmt: skip
        """Mix the values for some queries of a chunk; keep the logarithm (base 2) of each row's sum."""
        head, chunk = tl.program_id(1), tl.program_id(0) // tl.cdiv(LENGTH, ROWS)
        begin = tl.program_id(0) % tl.cdiv(LENGTH, ROWS) * ROWS
        slot, token = _slots(tokens, places, line, head, chunk, begin, LENGTH, ROWS)
        live = token >= 0
        q = load_rows(q_, token, live, stride, head, WIDTH, PADDED)
        high = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, PADDED], tl.float32)
        for first in range(0, WINDOW * LENGTH, KEYS):
            slot_k, token_k = _window(tokens, places, near, line, head, chunk, first, LENGTH, WINDOW, KEYS)
            k = load_rows(k_, token_k, token_k >= 0, stride_k, head, WIDTH, PADDED)
            v = load_rows(v_, token_k, token_k >= 0, stride_v, head, WIDTH, PADDED)
            bias = _bias(
                met, near, chunk // chunks, token[:, None], token_k[None, :], head, HEADS, ROUNDS, WINDOW, CAUSAL,
                HIDES, ONCE,
            )  # fmt: skip
            s = tl.dot(q, tl.trans(k)) * _factor(k, scale, WIDTH, SHARED)[None, :] + bias
            if HIDES:
                s = tl.where(slot[:, None] == slot_k[None, :], ALONE, s)
            higher = tl.maximum(high, tl.max(s, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            p = tl.exp2(s - base[:, None])
            shrink = tl.exp2(high - base)
            total = total * shrink + tl.sum(p, 1)
            mixed = mixed * shrink[:, None] + tl.dot(p.to(v.dtype), v)
            high = higher
        row = chunk // chunks * count + token
        _put(out, mixed / tl.where(live, total, 1.0)[:, None], row, live, HEADS * WIDTH, head, WIDTH, PADDED)
        tl.store(sums + row.to(tl.int64) * HEADS + head, high + tl.log2(tl.where(live, total, 1.0)), mask=live)

    @triton.jit  # type: ignore[untyped-decorator]
    def combine(  # type: ignore[no-untyped-def]
        parts, sums, out, total, count, ROUNDS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
        ROWS: tl.constexpr,
    ):  # fmt: skip
        """Add up the rounds of some rows, each by its share of the sum."""
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        live = row < count
        high = tl.full([ROWS], float("-inf"), tl.float32)
        for number in range(ROUNDS):
            high = tl.maximum(high, tl.load(sums + number * count + row, mask=live, other=0.0))
        share = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, PADDED], tl.float32)
        for number in range(ROUNDS):
            weight = tl.exp2(tl.load(sums + number * count + row, mask=live, other=0.0) - high)
            share += weight
            mixed += weight[:, None] * load_rows(parts, number * count + row, live, WIDTH, 0, WIDTH, PADDED)
        _put(out, mixed / share[:, None], row, live, WIDTH, 0, WIDTH, PADDED)
        tl.store(total + row, high + tl.log2(share), mask=live)

    @triton.jit  # type: ignore[untyped-decorator]
    def add_rounds(parts, out, count, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """Add up some numbers of all rounds."""
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros([BLOCK], tl.float32)
        for _ in range(ROUNDS):
            total += tl.load(parts + at, mask=at < count, other=0.0).to(tl.float32)
            parts += count  # numbers of all rounds may be more than 32 bits can count
        tl.store(out + at, total.to(out.dtype.element_ty), mask=at < count)

    @triton.jit  # type: ignore[untyped-decorator]
    def row_products(  # type: ignore[no-untyped-def]
        x, y, out, count, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr
    ):
        """The product of each row of x and the same row of y."""
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        live = row < count
        product = load_rows(x, row, live, WIDTH, 0, WIDTH, PADDED).to(tl.float32)
        product *= load_rows(y, row, live, WIDTH, 0, WIDTH, PADDED).to(tl.float32)
        tl.store(out + row, tl.sum(product, 1), mask=live)

    @triton.jit  # type: ignore[untyped-decorator]
    def query_gradients(  # type: ignore[no-untyped-def]
        grad, q_, k_, v_, sums, deltas, to_q, tokens, places, near, met, count, chunks, line, stride, stride_k,
        stride_v, scale,
        HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, LENGTH: tl.constexpr, ROWS: tl.constexpr,
        KEYS: tl.constexpr, ROUNDS: tl.constexpr, WINDOW: tl.constexpr, SHARED: tl.constexpr, CAUSAL: tl.constexpr,
        HIDES: tl.constexpr, ONCE: tl.constexpr,
    ):  # fmt: skip
        """Gradients of some queries of a chunk."""
        head, chunk = tl.program_id(1), tl.program_id(0) // tl.cdiv(LENGTH, ROWS)
        begin = tl.program_id(0) % tl.cdiv(LENGTH, ROWS) * ROWS
        token = _slots(tokens, places, line, head, chunk, begin, LENGTH, ROWS)[1]
        live = token >= 0
        q = load_rows(q_, token, live, stride, head, WIDTH, PADDED)
        do = load_rows(grad, token, live, HEADS * WIDTH, head, WIDTH, PADDED)
        row = tl.maximum(token, 0).to(tl.int64) * HEADS + head
        norm = tl.load(sums + row, mask=live, other=0.0)
        delta = tl.load(deltas + row, mask=live, other=0.0)
        dq = tl.zeros([ROWS, PADDED], tl.float32)
        for first in range(0, WINDOW * LENGTH, KEYS):
            token_k = _window(tokens, places, near, line, head, chunk, first, LENGTH, WINDOW, KEYS)[1]
            k = load_rows(k_, token_k, token_k >= 0, stride_k, head, WIDTH, PADDED)
            v = load_rows(v_, token_k, token_k >= 0, stride_v, head, WIDTH, PADDED)
            bias = _bias(
                met, near, chunk // chunks, token[:, None], token_k[None, :], head, HEADS, ROUNDS, WINDOW, CAUSAL,
                HIDES, ONCE,
            )  # fmt: skip
            factor = _factor(k, scale, WIDTH, SHARED)
            p = tl.exp2(tl.dot(q, tl.trans(k)) * factor[None, :] + bias - norm[:, None])
            ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None]) * (factor * LN_2)[None, :]
            dq += tl.dot(ds.to(k.dtype), k)
        to = chunk // chunks * count + token
        _put(to_q, dq, to, live, HEADS * WIDTH, head, WIDTH, PADDED)

    @triton.jit  # type: ignore[untyped-decorator]
    def key_gradients(  # type: ignore[no-untyped-def]
        grad, q_, k_, v_, sums, deltas, to_k, to_v, tokens, places, near, seers, met, count, chunks, line, stride,
        stride_k, stride_v, scale, HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
        LENGTH: tl.constexpr, ROWS: tl.constexpr,
        KEYS: tl.constexpr, ROUNDS: tl.constexpr, WINDOW: tl.constexpr, SHARED: tl.constexpr, CAUSAL: tl.constexpr,
        HIDES: tl.constexpr, ONCE: tl.constexpr,
    ):  # fmt: skip
        """Gradients of some keys and values of a chunk, from the chunks that see it.

        SHARED: those of the same tokens as queries are there already, and are added to.
        """
        head, chunk = tl.program_id(1), tl.program_id(0) // tl.cdiv(LENGTH, KEYS)
        begin = tl.program_id(0) % tl.cdiv(LENGTH, KEYS) * KEYS
        slot_k, token_k = _slots(tokens, places, line, head, chunk, begin, LENGTH, KEYS)
        live_k = token_k >= 0
        k = load_rows(k_, token_k, live_k, stride_k, head, WIDTH, PADDED)
        v = load_rows(v_, token_k, live_k, stride_v, head, WIDTH, PADDED)
        factor = _factor(k, scale, WIDTH, SHARED)
        dk = tl.zeros([KEYS, PADDED], tl.float32)
        dv = tl.zeros([KEYS, PADDED], tl.float32)
        for first in range(0, WINDOW * LENGTH, ROWS):
            slot, token = _window(tokens, places, seers, line, head, chunk, first, LENGTH, WINDOW, ROWS)
            live = token >= 0
            q = load_rows(q_, token, live, stride, head, WIDTH, PADDED)
            do = load_rows(grad, token, live, HEADS * WIDTH, head, WIDTH, PADDED)
            row = tl.maximum(token, 0).to(tl.int64) * HEADS + head
            norm = tl.load(sums + row, mask=live, other=0.0)
            delta = tl.load(deltas + row, mask=live, other=0.0)
            bias = _bias(
                met, near, chunk // chunks, token[None, :], token_k[:, None], head, HEADS, ROUNDS, WINDOW, CAUSAL,
                HIDES, ONCE,
            )  # fmt: skip
            s = tl.dot(k, tl.trans(q)) * factor[:, None] + bias
            if HIDES:
                s = tl.where(slot[None, :] == slot_k[:, None], ALONE, s)
            p = tl.exp2(s - norm[None, :])
            dv += tl.dot(p.to(do.dtype), do)
            if HIDES:  # a token that sees itself alone has no choice
                p = tl.where(bias > float("-inf"), p, 0.0)
            ds = p * (tl.dot(v, tl.trans(do)) - delta[None, :])
            dk += tl.dot(ds.to(q.dtype), q)
        to = chunk // chunks * count + token_k
        natural = (factor * LN_2)[:, None]
        if SHARED:
            k = k.to(tl.float32)
            share = tl.sum(dk * k, 1) / (tl.sum(k * k, 1) + WIDTH * EPSILON)
            dk = natural * (dk - share[:, None] * k)
            dk += load_rows(to_k, to, live_k, HEADS * WIDTH, head, WIDTH, PADDED).to(tl.float32)
        else:
            dk *= natural
        _put(to_k, dk, to, live_k, HEADS * WIDTH, head, WIDTH, PADDED)
        _put(to_v, dv, to, live_k, HEADS * WIDTH, head, WIDTH, PADDED)
