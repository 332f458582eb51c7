"""The exact GELU of a tensor, or of its sum with a bias, and activation(a) * gate, in one kernel each way on a GPU.

PyTorch's GELU kernels reach two thirds of the memory's speed: the error function takes more instructions than the
memory takes time. Here the normal distribution is one exponential and a polynomial, which the gradient shares. The
gradient of a bias is the sum over tokens of what the backward kernel writes anyway, so it is added up there: block by
block, then over the blocks, the same bytes every time. Arithmetic is in float32.

Bytes for t x f numbers of two bytes: 4 t f forwards, 6 t f backwards. A bias in the layer before, whose gradient is a
sum of its own, costs 2 t f more.

In a gated feed-forward layer a and gate lie side by side in one tensor. A compiler's gradient kernel computes both
halves of the result everywhere and reads at 40 % of the memory's speed. These read every number once and write every
number once.

Shape letters: t tokens, f inner width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import custom_op

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch's CUDA builds
    triton = None

# A program computes TURNS tiles of ROWS x COLUMNS numbers below each other; a thread of 4 warps loads 16 bytes at once.
ROWS, COLUMNS = 8, 256
FORWARD_TURNS, BACKWARD_TURNS = 4, 16
GATE_ACTIVATIONS = ("gelu", "silu")
GATE_BLOCK = 1024  # columns of a program: 8 for each thread, 16 bytes in half precision


def gelu(x: Tensor, bias_f: Tensor | None = None) -> Tensor:
    """The exact GELU of x, or of x + bias.

    On a GPU it is an operator that compilers leave alone. They would compute it again in the backward pass to save
    memory; there it is the widest tensor of all, and writing it twice costs more time than the memory is worth.
    """
    if not x.is_cuda or not torch.is_grad_enabled():
        return F.gelu(x if bias_f is None else x + bias_f.to(x.dtype))
    out: Tensor = _gelu(x.contiguous(), bias_f)
    return out


def gelu_usable(x: Tensor) -> bool:
    """Return whether the kernels compute this."""
    return triton is not None and x.is_cuda and x.dtype != torch.float64


if triton is not None:

    @triton.jit
    def normal(x):  # type: ignore[no-untyped-def]
        """The standard normal distribution at x, below it and its density: relative errors below 5e-6 from -9 on."""
        bell = tl.exp2(x * x * -0.7213475204444817)  # exp(-x^2 / 2)
        root = tl.math.rsqrt(1.0 + 0.25 * tl.abs(x))
        t = root * root
        # The tail below -|x| divided by the bell, on [0, 9.5]: a minimax polynomial in 1 / (1 + |x| / 4).
        tail = -0.09818292506280511 * t + 0.37375457426325975
        tail = tail * t - 0.3324685050118511
        tail = tail * t + 0.3529882659684276
        tail = tail * t - 0.02080302768596709
        tail = tail * t + 0.12886245331775742
        tail = tail * t + 0.09559765359845371
        tail = (tail * t + 0.00025159743187224467) * bell
        return tl.where(x > 0, 1.0 - tail, tail), bell * 0.3989422804014327

    @triton.jit  # type: ignore[untyped-decorator]
    def _gelu_values(  # type: ignore[no-untyped-def]
        x, bias, out, count, WIDTH: tl.constexpr, BIASED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        TURNS: tl.constexpr,
    ):  # fmt: skip
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        if BIASED:
            added = tl.load(bias + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)[None, :]
        for turn in range(TURNS):
            rows = (tl.program_id(0) * TURNS + turn) * ROWS + tl.arange(0, ROWS)
            live = (rows < count)[:, None] & (columns < WIDTH)[None, :]
            offset = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
            a = tl.load(x + offset, mask=live, other=0.0).to(tl.float32)
            if BIASED:
                a += added
            below, _ = normal(a)
            tl.store(out + offset, a * below, mask=live)

    @triton.jit  # type: ignore[untyped-decorator]
    def _gelu_gradients(  # type: ignore[no-untyped-def]
        grad, x, bias, out, sums, count, WIDTH: tl.constexpr, BIASED: tl.constexpr, ROWS: tl.constexpr,
        COLUMNS: tl.constexpr, TURNS: tl.constexpr,
    ):  # fmt: skip
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        if BIASED:
            added = tl.load(bias + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)[None, :]
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for turn in range(TURNS):
            rows = (tl.program_id(0) * TURNS + turn) * ROWS + tl.arange(0, ROWS)
            live = (rows < count)[:, None] & (columns < WIDTH)[None, :]
            offset = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
            incoming = tl.load(grad + offset, mask=live, other=0.0).to(tl.float32)
            a = tl.load(x + offset, mask=live, other=0.0).to(tl.float32)
            if BIASED:
                a += added
            below, density = normal(a)
            change = incoming * (below + a * density)
            tl.store(out + offset, change, mask=live)
            if BIASED:
                total += change
        if BIASED:
            tl.store(sums + tl.program_id(0) * WIDTH + columns, tl.sum(total, 0), mask=columns < WIDTH)


@custom_op("bertree::gelu", mutates_args=())
def _gelu(x: Tensor, bias_f: Tensor | None) -> Tensor:
    if not gelu_usable(x):
        return F.gelu(x if bias_f is None else x + bias_f.to(x.dtype))
    out, width = torch.empty_like(x), x.shape[-1]
    count = x.numel() // width
    grid = (triton.cdiv(count, ROWS * FORWARD_TURNS), triton.cdiv(width, COLUMNS))
    _gelu_values[grid](x, bias_f, out, count, width, bias_f is not None, ROWS, COLUMNS, FORWARD_TURNS)
    return out


@custom_op("bertree::gelu_backward", mutates_args=())
def _gelu_backward(grad: Tensor, x: Tensor, bias_f: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the bias, which is empty if there is none."""
    width = x.shape[-1]
    if not gelu_usable(x):
        out = torch.ops.aten.gelu_backward(grad, x if bias_f is None else x + bias_f.to(x.dtype))
        return out, x.new_empty(0) if bias_f is None else out.view(-1, width).sum(0).to(bias_f.dtype)
    out, count = torch.empty_like(x), x.numel() // width
    grid = (triton.cdiv(count, ROWS * BACKWARD_TURNS), triton.cdiv(width, COLUMNS))
    sums = None if bias_f is None else x.new_empty(grid[0], width, dtype=torch.float32)
    constants = (width, bias_f is not None, ROWS, COLUMNS, BACKWARD_TURNS)
    _gelu_gradients[grid](grad, x, bias_f, out, sums, count, *constants)
    return out, x.new_empty(0) if bias_f is None or sums is None else sums.sum(0).to(bias_f.dtype)


@_gelu.register_fake
def _(x: Tensor, bias_f: Tensor | None) -> Tensor:
    return torch.empty_like(x)


@_gelu_backward.register_fake
def _(grad: Tensor, x: Tensor, bias_f: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(0) if bias_f is None else torch.empty_like(bias_f)


def _keep_gelu(ctx: Any, inputs: tuple[Tensor, Tensor | None], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _back_gelu(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    x, bias_f = ctx.saved_tensors
    d_x, d_bias = _gelu_backward(grad.contiguous(), x, bias_f)
    return d_x, None if bias_f is None else d_bias


_gelu.register_autograd(_back_gelu, setup_context=_keep_gelu)


def gated(both_tf: Tensor, activation: str) -> Tensor:
    """Return activation(first half) * second half of each row (t x f)."""
    out: Tensor = _gated(both_tf.contiguous(), activation)
    return out


def gated_usable(both_tf: Tensor, activation: str) -> bool:
    """Return whether the kernels compute this."""
    exact = both_tf.dtype == torch.float64
    return triton is not None and both_tf.is_cuda and not exact and activation in GATE_ACTIVATIONS


def _plain_gated(both_tf: Tensor, activation: str) -> Tensor:
    a, gate = both_tf.chunk(2, -1)
    return (F.gelu(a) if activation == "gelu" else F.silu(a)) * gate


def _plain_gated_backward(grad_tf: Tensor, both_tf: Tensor, activation: str) -> Tensor:
    a, gate = both_tf.chunk(2, -1)
    if activation == "gelu":
        return torch.cat([torch.ops.aten.gelu_backward(grad_tf * gate, a), grad_tf * F.gelu(a)], -1)
    return torch.cat([torch.ops.aten.silu_backward(grad_tf * gate, a), grad_tf * F.silu(a)], -1)


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _activated(a, GELU: tl.constexpr):  # type: ignore[no-untyped-def]
        """The activation and its derivative."""
        if GELU:
            share, density = normal(a)
            slope = share + a * density
        else:
            share = tl.sigmoid(a)
            slope = share * (1.0 + a * (1.0 - share))
        return a * share, slope

    @triton.jit  # type: ignore[untyped-decorator]
    def _gated_values(both, out, INNER: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        live = columns < INNER
        at = both + row * (2 * INNER) + columns
        a = tl.load(at, mask=live).to(tl.float32)
        gate = tl.load(at + INNER, mask=live).to(tl.float32)
        value, _ = _activated(a, GELU)
        tl.store(out + row * INNER + columns, value * gate, mask=live)

    @triton.jit  # type: ignore[untyped-decorator]
    def _gated_gradients(grad, both, out, INNER: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        live = columns < INNER
        offset = row * (2 * INNER) + columns
        a = tl.load(both + offset, mask=live).to(tl.float32)
        gate = tl.load(both + offset + INNER, mask=live).to(tl.float32)
        incoming = tl.load(grad + row * INNER + columns, mask=live).to(tl.float32)
        value, slope = _activated(a, GELU)
        tl.store(out + offset, incoming * gate * slope, mask=live)
        tl.store(out + offset + INNER, incoming * value, mask=live)


@custom_op("bertree::gated", mutates_args=())
def _gated(both_tf: Tensor, activation: str) -> Tensor:
    if not gated_usable(both_tf, activation):
        return _plain_gated(both_tf, activation)
    inner = both_tf.shape[-1] // 2
    out_tf = both_tf.new_empty(*both_tf.shape[:-1], inner)
    grid = (out_tf.numel() // inner, triton.cdiv(inner, GATE_BLOCK))
    _gated_values[grid](both_tf, out_tf, inner, activation == "gelu", GATE_BLOCK)
    return out_tf


@custom_op("bertree::gated_backward", mutates_args=())
def _gated_backward(grad_tf: Tensor, both_tf: Tensor, activation: str) -> Tensor:
    if not gated_usable(both_tf, activation):
        return _plain_gated_backward(grad_tf, both_tf, activation)
    inner = both_tf.shape[-1] // 2
    out_tf = torch.empty_like(both_tf)
    grid = (grad_tf.numel() // inner, triton.cdiv(inner, GATE_BLOCK))
    _gated_gradients[grid](grad_tf, both_tf, out_tf, inner, activation == "gelu", GATE_BLOCK)
    return out_tf


@_gated.register_fake
def _(both_tf: Tensor, activation: str) -> Tensor:
    return both_tf.new_empty(*both_tf.shape[:-1], both_tf.shape[-1] // 2)


@_gated_backward.register_fake
def _(grad_tf: Tensor, both_tf: Tensor, activation: str) -> Tensor:
    return torch.empty_like(both_tf)


def _keep_gated(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.activation = inputs[1]


def _back_gated(ctx: Any, grad_tf: Tensor) -> tuple[Tensor, None]:
    return _gated_backward(grad_tf.contiguous(), ctx.saved_tensors[0], ctx.activation), None


_gated.register_autograd(_back_gated, setup_context=_keep_gated)
