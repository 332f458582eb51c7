"""norm(x + dropout(f + bias)) in one kernel each way on a GPU: the end of a block in a post-norm layer.

layers/residual.py uses it. With PyTorch's operators, dropout writes its mask, a compiler fuses the sum and the norm,
and the gradients of the norm's parameters and of the bias, which are sums over tokens, read everything again. Here a
row is read once and written once. The mask is not stored: both passes draw it from a seed, by Philox with 7 rounds
(Salmon et al. 2011), 16 bits for each number; a share of p is dropped, rounded to a multiple of 2^-16, and the rest is
scaled by that share. Sums over tokens are added up block by block, then over the blocks: no atomic additions, the same
bytes every time. Arithmetic is in float32.

Bytes for t x h numbers of two bytes, in units of 2 t h. Forward: x and f are read, the result is written: 3. Backward:
x, f and two gradients are read, two are written: 6. PyTorch: 2.5 for dropout, at least 3 for sum and norm; backward at
least 5.5 (two gradients, sum, half for the mask; two written), 3 for the gradients of the norm's parameters and 1 for
that of the bias.

The result is used twice: by the next block's component, and by its residual sum. Autograd would add up both gradients
in a kernel of its own. So the result comes with a carrier: a tensor of the same shape that has no values. It is passed
to the next sum, whose gradient comes back as the gradient of the carrier, and this backward pass reads both.

Shape letters: t tokens, h width.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch's CUDA builds
    triton = None

PART = 128  # columns of a part of a row; a draw of 128 bits decides on one column of each of up to 8 parts
ROUNDS = 7  # of Philox
STEPS = 1 << 16  # a probability is a multiple of 1 / STEPS
WIDEST = 8 * PART  # 16 bits for each
# Rows that a program of 4 warps computes at once: a thread loads 16 or 8 bytes. Backwards it has sums to keep.
FORWARD_ROWS, BACKWARD_ROWS = 8, 4
PROGRAMS = 2  # for each multiprocessor in the backward pass, as many as run at once: each adds up its own rows
REGISTERS = 255  # of a thread in the backward pass, at most


class Normed(NamedTuple):
    """Normed states, and the carrier of the gradient of the next residual sum; it has no values."""

    states: Tensor
    carrier: Tensor


def add_norm(
    x_th: Tensor,
    carrier_th: Tensor | None,
    f_th: Tensor,
    bias_h: Tensor | None,
    weight_h: Tensor,
    norm_bias_h: Tensor,
    eps: float,
    dropout: float,
) -> Normed:
    """Return norm(x + dropout(f + bias)) in the precision of x; `carrier_th`: that of x, if x came from here."""
    # Drawn by PyTorch, so that its seed and its state are those of dropout everywhere.
    seed = torch.randint(0, 2**63 - 1, (1,), device=x_th.device)
    rows = (x_th.contiguous(), carrier_th, f_th.contiguous(), bias_h)
    out_th, carrier_th, _ = _add_norm(*rows, weight_h, norm_bias_h, seed, eps, round(dropout * STEPS))
    return Normed(out_th, carrier_th)


def usable(x_th: Tensor, dropout: float) -> bool:
    """Return whether the kernels compute this: only where there is something to drop."""
    fits = x_th.dim() == 2 and x_th.shape[1] % PART == 0 and 0 < x_th.shape[1] <= WIDEST
    return fits and 0 < round(dropout * STEPS) < STEPS and _has_kernels(x_th)


def _has_kernels(x_th: Tensor) -> bool:
    return triton is not None and x_th.is_cuda and x_th.dtype != torch.float64


def kept(seed: Tensor, tokens: int, width: int, dropped: int) -> Tensor:
    """Return which numbers dropout keeps (t x h): the definition of the kernels' drawing, by PyTorch's operators."""
    key = int(seed)
    low, high = key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF
    zero = torch.zeros(tokens * PART, dtype=torch.int64)
    words = [torch.arange(tokens * PART), zero, zero, zero]
    for _ in range(ROUNDS):
        products = [words[2] * 0xCD9E8D57, words[0] * 0xD2511F53]
        highs, lows = ([_high(words[2], 0xCD9E8D57), _high(words[0], 0xD2511F53)]), [p & 0xFFFFFFFF for p in products]
        words = [highs[0] ^ words[1] ^ low, lows[0], highs[1] ^ words[3] ^ high, lows[1]]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    halves = [half for word in words for half in (word & 0xFFFF, word >> 16)]
    return (torch.stack(halves).view(-1, tokens, PART) >= dropped).transpose(0, 1).reshape(tokens, -1)[:, :width]


def _high(a: Tensor, b: int) -> Tensor:
    """Return the upper 32 bits of the product of 32-bit numbers, without overflow of 64."""
    upper, lower = (a >> 16) * b, (a & 0xFFFF) * b
    return (upper + (lower >> 16)) >> 16


def _plain_sum(x_th: Tensor, f_th: Tensor, bias_h: Tensor | None, seed: Tensor, dropped: int) -> tuple[Tensor, Tensor]:
    """Return the residual sum and the factors of dropout."""
    factors_th = kept(seed.cpu(), len(x_th), x_th.shape[1], dropped).to(x_th) * (STEPS / (STEPS - dropped))
    return x_th + factors_th * (f_th if bias_h is None else f_th + bias_h.to(f_th.dtype)), factors_th


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _row(values, columns, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
        """Load a part of a parameter for every row, each thread what it needs: nothing is exchanged."""
        at = tl.broadcast_to(values + columns[None, :], (ROWS, 128))
        return tl.load(at, eviction_policy="evict_last").to(tl.float32)

    @triton.jit  # type: ignore[untyped-decorator]
    def _factors(words, NUMBER: tl.constexpr, DROPPED: tl.constexpr):  # type: ignore[no-untyped-def]
        """What dropout multiplies a part by: words are four drawings of 32 bits, for two parts each."""
        word = words[NUMBER // 2]
        if NUMBER % 2 == 0:
            word = word << 16
        scale: tl.constexpr = 65536.0 / (65536 - DROPPED)
        limit: tl.constexpr = DROPPED << 16
        return tl.where(word >= tl.full(word.shape, limit, tl.uint32), scale, 0.0)

    @triton.jit  # type: ignore[untyped-decorator]
    def _forward(  # type: ignore[no-untyped-def]
        x, f, bias, weight, norm_bias, seed, out, stats, count, eps, WIDTH: tl.constexpr, BIASED: tl.constexpr,
        DROPPED: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        parts: tl.constexpr = WIDTH // 128
        rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        columns = tl.arange(0, 128)
        live = (rows < count)[:, None]
        offset = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        words = tl.randint4x(tl.load(seed), rows[:, None] * 128 + columns[None, :], 7)
        total = tl.zeros((ROWS, 128), tl.float32)
        sums = ()
        for i in tl.static_range(parts):
            change = tl.load(f + offset + i * 128, mask=live, other=0.0).to(tl.float32)
            if BIASED:
                change += _row(bias + i * 128, columns, ROWS)
            s = tl.load(x + offset + i * 128, mask=live, other=0.0).to(tl.float32)
            s += change * _factors(words, i, DROPPED)
            total += s
            sums = sums + (s,)  # type: ignore[assignment]  # noqa: RUF005
        mean = tl.sum(total, 1) / WIDTH
        squares = tl.zeros((ROWS, 128), tl.float32)
        for i in tl.static_range(parts):
            apart = sums[i] - mean[:, None]
            squares += apart * apart
        scale = tl.math.rsqrt(tl.sum(squares, 1) / WIDTH + eps)
        for i in tl.static_range(parts):
            normed = (sums[i] - mean[:, None]) * scale[:, None]
            w = _row(weight + i * 128, columns, ROWS)
            b = _row(norm_bias + i * 128, columns, ROWS)
            tl.store(out + offset + i * 128, normed * w + b, mask=live)
        tl.store(stats + rows, mean, mask=rows < count)
        tl.store(stats + count + rows, scale, mask=rows < count)

    @triton.jit  # type: ignore[untyped-decorator]
    def _backward(  # type: ignore[no-untyped-def]
        grad, grad_carrier, x, f, bias, weight, seed, stats, d_x, d_f, sums, count, WIDTH: tl.constexpr,
        BIASED: tl.constexpr, TWICE: tl.constexpr, DROPPED: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        parts: tl.constexpr = WIDTH // 128
        columns = tl.arange(0, 128)
        key = tl.load(seed)
        zero = tl.zeros((ROWS, 128), tl.float32)
        zeros = ()
        for _ in tl.static_range(parts):
            zeros = zeros + (zero,)  # type: ignore[assignment]  # noqa: RUF005
        d_weight, d_norm_bias, d_bias = zeros, zeros, zeros
        first = tl.program_id(0) * ROWS
        while first < count:
            rows = first + tl.arange(0, ROWS)
            first += tl.num_programs(0) * ROWS
            live = (rows < count)[:, None]
            offset = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
            mean = tl.load(stats + rows, mask=rows < count, other=0.0)[:, None]
            scale = tl.load(stats + count + rows, mask=rows < count, other=0.0)[:, None]
            words = tl.randint4x(key, rows[:, None] * 128 + columns[None, :], 7)
            by_normed, by_one = zero, zero
            normed, rest, new_weight, new_norm_bias = (), (), (), ()
            for i in tl.static_range(parts):
                g = tl.load(grad + offset + i * 128, mask=live, other=0.0).to(tl.float32)
                if TWICE:
                    g += tl.load(grad_carrier + offset + i * 128, mask=live, other=0.0).to(tl.float32)
                change = tl.load(f + offset + i * 128, mask=live, other=0.0).to(tl.float32)
                if BIASED:
                    change += _row(bias + i * 128, columns, ROWS)
                s = tl.load(x + offset + i * 128, mask=live, other=0.0).to(tl.float32)
                s += change * _factors(words, i, DROPPED)
                n = (s - mean) * scale
                new_weight = new_weight + (d_weight[i] + g * n,)  # type: ignore[assignment]  # noqa: RUF005
                new_norm_bias = new_norm_bias + (d_norm_bias[i] + g,)  # type: ignore[assignment]  # noqa: RUF005
                g *= _row(weight + i * 128, columns, ROWS)
                by_normed += g * n
                by_one += g
                normed = normed + (n,)  # type: ignore[assignment]  # noqa: RUF005
                rest = rest + (g,)  # type: ignore[assignment]  # noqa: RUF005
            d_weight, d_norm_bias = new_weight, new_norm_bias
            by_normed = (tl.sum(by_normed, 1) / WIDTH)[:, None]
            by_one = (tl.sum(by_one, 1) / WIDTH)[:, None]
            new_bias = ()
            for i in tl.static_range(parts):
                d_s = (rest[i] - by_one - normed[i] * by_normed) * scale  # 0 beyond the last row, as scale is
                tl.store(d_x + offset + i * 128, d_s, mask=live)
                d_s *= _factors(words, i, DROPPED)
                tl.store(d_f + offset + i * 128, d_s, mask=live)
                new_bias = new_bias + (d_bias[i] + d_s,)  # type: ignore[assignment]  # noqa: RUF005
            d_bias = new_bias
        at = sums + tl.program_id(0) * (3 * WIDTH) + columns
        for i in tl.static_range(parts):
            tl.store(at + i * 128, tl.sum(d_weight[i], 0))
            tl.store(at + WIDTH + i * 128, tl.sum(d_norm_bias[i], 0))
            if BIASED:
                tl.store(at + 2 * WIDTH + i * 128, tl.sum(d_bias[i], 0))


@cache
def _programs(device: torch.device) -> int:
    """Return how many programs run at once in the backward pass."""
    return PROGRAMS * (torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1)


@custom_op("bertree::add_norm", mutates_args=())
def _add_norm(
    x_th: Tensor,
    carrier_th: Tensor | None,
    f_th: Tensor,
    bias_h: Tensor | None,
    weight_h: Tensor,
    norm_bias_h: Tensor,
    seed: Tensor,
    eps: float,
    dropped: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normed states, the carrier of the next sum's gradient, and each row's mean and factor."""
    tokens, width = x_th.shape
    stats = x_th.new_empty(2, tokens, dtype=torch.float32)
    if not _has_kernels(x_th):
        s_th, _ = _plain_sum(x_th, f_th, bias_h, seed, dropped)
        out_th, mean_t, scale_t = torch.native_layer_norm(s_th, (width,), weight_h, norm_bias_h, eps)
        stats = torch.stack([mean_t[:, 0], scale_t[:, 0]])
        return out_th.to(x_th.dtype), torch.zeros_like(x_th), stats
    out_th = torch.empty_like(x_th)
    arguments = (x_th, f_th, bias_h, weight_h, norm_bias_h, seed, out_th, stats, tokens, eps, width)
    _forward[(triton.cdiv(tokens, FORWARD_ROWS),)](*arguments, bias_h is not None, dropped, FORWARD_ROWS)
    return out_th, torch.empty_like(x_th), stats


@custom_op("bertree::add_norm_backward", mutates_args=())
def _add_norm_backward(
    grad_th: Tensor,
    grad_carrier_th: Tensor | None,
    x_th: Tensor,
    f_th: Tensor,
    bias_h: Tensor | None,
    weight_h: Tensor,
    seed: Tensor,
    stats: Tensor,
    dropped: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x and of f and, as three rows, of the norm's weight, the norm's bias and the bias."""
    tokens, width = x_th.shape
    if not _has_kernels(x_th):
        s_th, factors_th = _plain_sum(x_th, f_th, bias_h, seed, dropped)
        grad_th = grad_th if grad_carrier_th is None else grad_th + grad_carrier_th
        normed_th = (s_th - stats[0][:, None]) * stats[1][:, None]
        g_th = grad_th * weight_h
        d_s_th = g_th - g_th.mean(1, keepdim=True) - normed_th * (g_th * normed_th).mean(1, keepdim=True)
        d_s_th = (d_s_th * stats[1][:, None]).to(x_th.dtype)
        d_f_th = (d_s_th * factors_th).to(f_th.dtype)
        return d_s_th, d_f_th, torch.stack([(grad_th * normed_th).sum(0), grad_th.sum(0), d_f_th.sum(0)])
    d_x_th, d_f_th = torch.empty_like(x_th), torch.empty_like(f_th)
    programs = min(_programs(x_th.device), triton.cdiv(tokens, BACKWARD_ROWS))
    sums = x_th.new_empty(programs, 3, width, dtype=torch.float32)
    inputs = (grad_th, grad_carrier_th, x_th, f_th, bias_h, weight_h, seed, stats)
    flags = (bias_h is not None, grad_carrier_th is not None, dropped, BACKWARD_ROWS)
    _backward[(programs,)](*inputs, d_x_th, d_f_th, sums, tokens, width, *flags, maxnreg=REGISTERS)
    return d_x_th, d_f_th, sums.sum(0)


@_add_norm.register_fake
def _(x_th: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    stats = x_th.new_empty(2, len(x_th), dtype=torch.promote_types(x_th.dtype, torch.float32))
    return torch.empty_like(x_th), torch.empty_like(x_th), stats


@_add_norm_backward.register_fake
def _(grad_th: Tensor, carrier: Tensor | None, x_th: Tensor, f_th: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(x_th.dtype, torch.float32)
    return torch.empty_like(x_th), torch.empty_like(f_th), x_th.new_empty(3, x_th.shape[1], dtype=dtype)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x_th, carrier_th, f_th, bias_h, weight_h, norm_bias_h, seed, _, ctx.dropped = inputs
    ctx.save_for_backward(x_th, f_th, bias_h, weight_h, seed, output[2])
    ctx.has_carrier, ctx.norm_bias_dtype = carrier_th is not None, norm_bias_h.dtype
    ctx.set_materialize_grads(False)


def _back(
    ctx: Any, grad_th: Tensor | None, grad_carrier_th: Tensor | None, grad_stats: Tensor | None
) -> tuple[Tensor | None, ...]:
    if grad_th is None:
        grad_th, grad_carrier_th = grad_carrier_th, None
    if grad_th is None:
        return (None,) * 9
    saved = ctx.saved_tensors
    _, _, bias_h, weight_h, *_ = saved
    grads = grad_th.contiguous(), None if grad_carrier_th is None else grad_carrier_th.contiguous()
    d_x_th, d_f_th, sums = _add_norm_backward(*grads, *saved, ctx.dropped)
    d_weight, d_norm_bias = sums[0].to(weight_h.dtype), sums[1].to(ctx.norm_bias_dtype)
    d_bias = None if bias_h is None else sums[2].to(bias_h.dtype)
    d_x_and_carrier = (None, d_x_th) if ctx.has_carrier else (d_x_th, None)
    return *d_x_and_carrier, d_f_th, d_bias, d_weight, d_norm_bias, None, None, None


_add_norm.register_autograd(_back, setup_context=_keep)
