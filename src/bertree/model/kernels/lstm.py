"""LSTM layers with a projection, over sequences of any lengths without padding, in one or two directions at once.

PyTorch's LSTM has no clipping, and runs two directions one after the other. Here the directions share every product,
the inputs of all steps are multiplied at once, and so are the gradients of all weights; what remains in the loop over
the steps is the recurrent product, the cell and the projection. Cells are float32 whatever the precision of the rest:
their errors add up along a text. On a GPU a cell is one Triton kernel each way: gates, clipping, cell and output, with
the arithmetic in float32. Steps differ in where they start and how many rows they have, and one compiled kernel serves
all of them.

Tokens lie step by step: the first tokens of all sequences, the longest first, then all second tokens. So the sequences
of a step are the first ones of the step before.

Shape letters: d directions, t tokens, n sequences of a step, w width of the input, p width of the projection, c cells,
g four gates of each cell: input, forget, candidate, output.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch's CUDA builds
    triton = None

BLOCK = 1024  # cells of a program


class LstmWeights(NamedTuple):
    """The weights of a layer, of all directions."""

    inputs_dgw: Tensor
    recurrent_dgp: Tensor
    bias_dg: Tensor
    projection_dpc: Tensor


def lstm(
    x_dtw: Tensor, weights: LstmWeights, sizes: Sequence[int], cell_clip: float = 0.0, projection_clip: float = 0.0
) -> Tensor:
    """Return the projected outputs of a layer (d x t x p); `sizes` are the numbers of sequences of the steps.

    Clips are the largest magnitudes of cells and outputs; 0: any."""
    kind = x_dtw.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weights.inputs_dgw.dtype
    tensors = [tensor.to(dtype) for tensor in (x_dtw, *weights)]
    with torch.autocast(kind, enabled=False):
        out_dtp: Tensor = _Lstm.apply(*tensors, tuple(sizes), cell_clip, projection_clip)
    return out_dtp


def permute(x_tw: Tensor, order_t: Tensor, back_t: Tensor) -> Tensor:
    """Return the rows in an order, given the order that leads back: its gradient needs no additions."""
    rows_tw: Tensor = _Permuted.apply(x_tw, order_t, back_t)
    return rows_tw


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_tw: Tensor, order_t: Tensor, back_t: Tensor) -> Tensor:
        ctx.save_for_backward(order_t, back_t)
        return x_tw[order_t]

    @staticmethod
    def backward(ctx: Any, grad_tw: Tensor) -> tuple[Tensor, None, None]:
        order_t, back_t = ctx.saved_tensors
        return permute(grad_tw, back_t, order_t), None, None


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_dtw: Tensor,
        inputs_dgw: Tensor,
        recurrent_dgp: Tensor,
        bias_dg: Tensor,
        projection_dpc: Tensor,
        sizes: tuple[int, ...],
        cell_clip: float,
        projection_clip: float,
    ) -> Tensor:
        directions, tokens, _ = x_dtw.shape
        width, cells = projection_dpc.shape[1:]
        gates_dtg = torch.baddbmm(bias_dg[:, None], x_dtw, inputs_dgw.transpose(1, 2))
        wide = torch.promote_types(x_dtw.dtype, torch.float32)
        cells_dtc = x_dtw.new_empty(directions, tokens, cells, dtype=wide)
        raw_dtc = x_dtw.new_empty(directions, tokens, cells)
        out_dtp = x_dtw.new_empty(directions, tokens, width)
        recurrent_dpg, projection_dcp = recurrent_dgp.transpose(1, 2), projection_dpc.transpose(1, 2)
        for before, start, count in _steps(sizes):
            step = slice(start, start + count)
            gates_dng = gates_dtg[:, step]
            if start:
                gates_dng.baddbmm_(out_dtp[:, before : before + count], recurrent_dpg)
            _cell(gates_dtg, cells_dtc, raw_dtc, before, start, count, cell_clip)
            out_dnp = torch.bmm(raw_dtc[:, step], projection_dcp, out=out_dtp[:, step])
            if projection_clip:
                out_dnp.clamp_(-projection_clip, projection_clip)
        ctx.save_for_backward(x_dtw, inputs_dgw, recurrent_dgp, projection_dpc, gates_dtg, cells_dtc, raw_dtc, out_dtp)
        ctx.settings = sizes, cell_clip, projection_clip
        return out_dtp

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_dtp: Tensor) -> tuple[Tensor | None, ...]:
        x_dtw, inputs_dgw, recurrent_dgp, projection_dpc, gates_dtg, cells_dtc, raw_dtc, out_dtp = ctx.saved_tensors
        sizes, cell_clip, projection_clip = ctx.settings
        grad_out_dtp = grad_dtp.clone(memory_format=torch.contiguous_format)
        grad_gates_dtg, grad_cells_dtc = torch.empty_like(gates_dtg), torch.empty_like(cells_dtc)
        steps = list(_steps(sizes))
        after = 0  # sequences of the step after
        for before, start, count in reversed(steps):
            step = slice(start, start + count)
            if after:
                later = slice(start + count, start + count + after)
                grad_out_dtp[:, start : start + after].baddbmm_(grad_gates_dtg[:, later], recurrent_dgp)
            if projection_clip:
                grad_out_dtp[:, step].mul_(out_dtp[:, step].abs() < projection_clip)
            grad_raw_dnc = torch.bmm(grad_out_dtp[:, step], projection_dpc)
            _cell_gradients(
                grad_raw_dnc,
                gates_dtg,
                cells_dtc,
                grad_gates_dtg,
                grad_cells_dtc,
                before,
                start,
                count,
                after,
                cell_clip,
            )
            after = count
        first = sizes[0] if sizes else 0
        source_t = torch.cat(
            [torch.arange(before, before + n) for before, start, n in steps if start] or [torch.arange(0)]
        )
        earlier_dtp = out_dtp[:, source_t.to(out_dtp.device)]
        turned_dgt = grad_gates_dtg.transpose(1, 2)
        return (
            torch.bmm(grad_gates_dtg, inputs_dgw) if ctx.needs_input_grad[0] else None,
            torch.bmm(turned_dgt, x_dtw),
            torch.bmm(turned_dgt[:, :, first:], earlier_dtp),
            grad_gates_dtg.sum(1, dtype=cells_dtc.dtype).to(grad_dtp.dtype),
            torch.bmm(grad_out_dtp.transpose(1, 2), raw_dtc),
            None,
            None,
            None,
        )


def _steps(sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return for each step where the step before starts, where it starts itself, and its number of sequences."""
    steps, before, start = [], 0, 0
    for count in sizes:
        steps.append((before, start, count))
        before, start = start, start + count
    return steps


def _cell(
    gates_dtg: Tensor, cells_dtc: Tensor, raw_dtc: Tensor, before: int, start: int, count: int, clip: float
) -> None:
    """Compute a step's cells and outputs before the projection; gates are replaced by their activations."""
    if _on_gpu(gates_dtg):
        directions, tokens, cells = cells_dtc.shape
        _values[(directions * count, triton.cdiv(cells, BLOCK))](
            gates_dtg, cells_dtc, raw_dtc, before, start, count, tokens, clip, CELLS=cells, FIRST=start == 0,
            CLIPPED=clip > 0, BLOCK=BLOCK,
        )  # fmt: skip
        return
    step = slice(start, start + count)
    cell_dnc = cells_dtc[:, step]
    into, forget, candidate, out = gates_dtg[:, step].chunk(4, -1)
    into.sigmoid_(), forget.sigmoid_(), candidate.tanh_(), out.sigmoid_()
    torch.mul(into, candidate, out=cell_dnc)
    if start:
        cell_dnc.addcmul_(forget, cells_dtc[:, before : before + count])
    if clip:
        cell_dnc.clamp_(-clip, clip)
    raw_dtc[:, step] = out * cell_dnc.tanh()


def _cell_gradients(
    grad_raw_dnc: Tensor,
    gates_dtg: Tensor,
    cells_dtc: Tensor,
    grad_gates_dtg: Tensor,
    grad_cells_dtc: Tensor,
    before: int,
    start: int,
    count: int,
    after: int,
    clip: float,
) -> None:
    """Compute the gradients of a step's gates before their activations, and those of the cells of the step before: they
    are kept in the rows of this step. `after`: sequences of the step after, whose rows hold those of this one."""
    if _on_gpu(gates_dtg):
        directions, tokens, cells = cells_dtc.shape
        _gradients[(directions * count, triton.cdiv(cells, BLOCK))](
            grad_raw_dnc, gates_dtg, cells_dtc, grad_gates_dtg, grad_cells_dtc, before, start, count, after, tokens,
            clip, CELLS=cells, FIRST=start == 0, CLIPPED=clip > 0, BLOCK=BLOCK,
        )  # fmt: skip
        return
    step = slice(start, start + count)
    cell_dnc, grad_dng = cells_dtc[:, step], grad_gates_dtg[:, step]
    into, forget, candidate, out = gates_dtg[:, step].chunk(4, -1)
    squashed_dnc = cell_dnc.tanh()
    grad_cell_dnc = grad_raw_dnc * out * (1 - squashed_dnc * squashed_dnc)
    if after:
        grad_cell_dnc[:, :after] += grad_cells_dtc[:, start + count : start + count + after]
    if clip:
        grad_cell_dnc = grad_cell_dnc * (cell_dnc.abs() < clip)
    grad_into, grad_forget, grad_candidate, grad_out = grad_dng.chunk(4, -1)
    grad_into.copy_(grad_cell_dnc * candidate * into * (1 - into))
    grad_candidate.copy_(grad_cell_dnc * into * (1 - candidate * candidate))
    grad_out.copy_(grad_raw_dnc * squashed_dnc * out * (1 - out))
    if start:
        grad_forget.copy_(grad_cell_dnc * cells_dtc[:, before : before + count] * forget * (1 - forget))
        torch.mul(grad_cell_dnc, forget, out=grad_cells_dtc[:, step])
    else:
        grad_forget.zero_()


def _on_gpu(x: Tensor) -> bool:
    """Return whether the kernels compute this."""
    return triton is not None and x.is_cuda and x.dtype != torch.float64


if triton is not None:

    @triton.jit
    def _tanh(x):  # type: ignore[no-untyped-def]
        return 2.0 * tl.sigmoid(2.0 * x) - 1.0

    @triton.jit(do_not_specialize=("before", "start", "count", "tokens"))  # type: ignore[untyped-decorator]
    def _values(  # type: ignore[no-untyped-def]
        gates, cells, raw, before, start, count, tokens, clip, CELLS: tl.constexpr, FIRST: tl.constexpr,
        CLIPPED: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0)
        first = (row // count).to(tl.int64) * tokens  # of its direction
        own, earlier = first + start + row % count, first + before + row % count
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        live = columns < CELLS
        at = gates + own * 4 * CELLS + columns
        into = tl.sigmoid(tl.load(at, mask=live, other=0.0).to(tl.float32))
        forget = tl.sigmoid(tl.load(at + CELLS, mask=live, other=0.0).to(tl.float32))
        candidate = _tanh(tl.load(at + 2 * CELLS, mask=live, other=0.0).to(tl.float32))
        out = tl.sigmoid(tl.load(at + 3 * CELLS, mask=live, other=0.0).to(tl.float32))
        cell = into * candidate
        if not FIRST:
            cell += forget * tl.load(cells + earlier * CELLS + columns, mask=live, other=0.0)
        if CLIPPED:
            cell = tl.minimum(tl.maximum(cell, -clip), clip)
        tl.store(at, into, mask=live)
        tl.store(at + CELLS, forget, mask=live)
        tl.store(at + 2 * CELLS, candidate, mask=live)
        tl.store(at + 3 * CELLS, out, mask=live)
        tl.store(cells + own * CELLS + columns, cell, mask=live)
        tl.store(raw + own * CELLS + columns, out * _tanh(cell), mask=live)

    @triton.jit(do_not_specialize=("before", "start", "count", "after", "tokens"))  # type: ignore[untyped-decorator]
    def _gradients(  # type: ignore[no-untyped-def]
        grad_raw, gates, cells, grad_gates, grad_cells, before, start, count, after, tokens, clip,
        CELLS: tl.constexpr, FIRST: tl.constexpr, CLIPPED: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0)
        first = (row // count).to(tl.int64) * tokens
        sequence = row % count
        own, earlier, later = first + start + sequence, first + before + sequence, first + start + count + sequence
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        live = columns < CELLS
        at = gates + own * 4 * CELLS + columns
        into = tl.load(at, mask=live, other=0.0).to(tl.float32)
        forget = tl.load(at + CELLS, mask=live, other=0.0).to(tl.float32)
        candidate = tl.load(at + 2 * CELLS, mask=live, other=0.0).to(tl.float32)
        out = tl.load(at + 3 * CELLS, mask=live, other=0.0).to(tl.float32)
        cell = tl.load(cells + own * CELLS + columns, mask=live, other=0.0)
        incoming = tl.load(grad_raw + row.to(tl.int64) * CELLS + columns, mask=live, other=0.0).to(tl.float32)
        squashed = _tanh(cell)
        grad = incoming * out * (1.0 - squashed * squashed)
        continued = columns < tl.where(sequence < after, CELLS, 0)
        grad += tl.load(grad_cells + later * CELLS + columns, mask=continued, other=0.0)
        if CLIPPED:
            grad = tl.where(tl.abs(cell) < clip, grad, 0.0)
        grad_forget = tl.zeros((BLOCK,), tl.float32)
        if not FIRST:
            old = tl.load(cells + earlier * CELLS + columns, mask=live, other=0.0)
            grad_forget = grad * old * forget * (1.0 - forget)
            tl.store(grad_cells + own * CELLS + columns, grad * forget, mask=live)
        to = grad_gates + own * 4 * CELLS + columns
        tl.store(to, grad * candidate * into * (1.0 - into), mask=live)
        tl.store(to + CELLS, grad_forget, mask=live)
        tl.store(to + 2 * CELLS, grad * into * (1.0 - candidate * candidate), mask=live)
        tl.store(to + 3 * CELLS, incoming * squashed * out * (1.0 - out), mask=live)
