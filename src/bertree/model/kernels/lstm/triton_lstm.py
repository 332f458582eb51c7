"""The cell of an LSTM step in one kernel each way on a GPU: gates, clipping, cell and output. Arithmetic is in float32.

A step is a few rows of large buffers that hold all steps (see `layer`), read and written where they lie. Steps differ
in where they start and how many rows they have, and one compiled kernel serves all of them.

Shape letters: d directions, t tokens, n sequences of a step, c cells, g four gates of each cell.
"""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch's CUDA builds
    triton = None

ENABLED = True  # False: PyTorch's kernels, for comparisons
BLOCK = 1024


def usable(x: Tensor) -> bool:
    """Return whether the kernels compute this."""
    return ENABLED and triton is not None and x.is_cuda and x.dtype != torch.float64


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


def cell(
    gates_dtg: Tensor, cells_dtc: Tensor, raw_dtc: Tensor, before: int, start: int, count: int, clip: float
) -> None:
    """See `layer._cell`."""
    directions, tokens, cells = cells_dtc.shape
    _values[(directions * count, triton.cdiv(cells, BLOCK))](
        gates_dtg, cells_dtc, raw_dtc, before, start, count, tokens, clip, CELLS=cells, FIRST=start == 0,
        CLIPPED=clip > 0, BLOCK=BLOCK,
    )  # fmt: skip


def cell_gradients(
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
    """See `layer._cell_gradients`."""
    directions, tokens, cells = cells_dtc.shape
    _gradients[(directions * count, triton.cdiv(cells, BLOCK))](
        grad_raw_dnc, gates_dtg, cells_dtc, grad_gates_dtg, grad_cells_dtc, before, start, count, after, tokens, clip,
        CELLS=cells, FIRST=start == 0, CLIPPED=clip > 0, BLOCK=BLOCK,
    )  # fmt: skip
