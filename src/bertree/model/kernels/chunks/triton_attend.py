"""Attention over chunks on a GPU: no sorted copies of queries, keys and values, and no scores in memory.

Each program takes some slots of a chunk, finds the rows of their tokens and those of the chunks they see, and writes
its results at the tokens' own rows, once for each round; rounds are added up afterwards. The backward pass computes the
scores again, by queries and by keys. Nothing is added up by atomic additions, so the result is the same to the bit
every time. The kernels are in `triton_attend_jit`.

Shape letters: t tokens, n heads, d head width, a lines, r rounds, c chunks, l slots, w chunks that a chunk sees.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from bertree.model.kernels.chunks import triton_attend_jit as jit
from bertree.model.kernels.chunks.order import ChunkOrder, ChunkSettings
from bertree.model.kernels.triton_short import LOG2_E

Tuned = tuple[int, int, int, int, int | None]
# Most queries and keys of a block, warps, pipeline stages, registers of a thread (None: the compiler's choice).
# For heads up to a width of 64, and for wider ones.
FORWARD: list[Tuned] = [(64, 32, 4, 1, None), (64, 32, 4, 2, None)]
QUERIES: list[Tuned] = [(64, 32, 4, 1, None), (64, 32, 4, 2, None)]
KEYS: list[Tuned] = [(32, 64, 4, 2, 168), (32, 32, 4, 2, None)]
ROWS = 32  # of the kernels that go through rows in order
ADDED = 4096  # numbers that a program adds up


def refusal(q_tnd: Tensor, dropout: float) -> str:
    """Return why a call is not supported; empty if it is."""
    return "has no dropout" if dropout else jit.refusal(q_tnd)


def attend(q_tnd: Tensor, k_tnd: Tensor | None, v_tnd: Tensor, order: ChunkOrder, settings: ChunkSettings) -> Tensor:
    """Queries, keys and values in the order of the stream -> mixed values (t x n x d).

    `k_tnd`: None: the queries, scaled to unit length.
    """
    q_tnd, v_tnd = _whole_rows(q_tnd), _whole_rows(v_tnd)
    k_tnd = None if k_tnd is None else _whole_rows(k_tnd)
    flags = (settings.length, settings.causal, settings.hides_self, settings.counts_once)
    mixed_tnd: Tensor = _attend(q_tnd, k_tnd, v_tnd, *order, *flags)[0]
    return mixed_tnd


def _whole_rows(x_tnd: Tensor) -> Tensor:
    """Return a tensor whose rows are whole, but may be apart."""
    return x_tnd if x_tnd.stride()[1:] == (x_tnd.shape[2], 1) else x_tnd.contiguous()


def _padded(width: int) -> int:
    return max(16, 1 << (width - 1).bit_length())


class _Call:
    """What the kernels of one call must know."""

    def __init__(
        self, q_tnd: Tensor, k_tnd: Tensor | None, v_tnd: Tensor, order: ChunkOrder, flags: tuple[int, bool, bool, bool]
    ) -> None:
        self.tokens, self.heads, self.width = q_tnd.shape
        self.length, causal, hides_self, counts_once = flags
        self.rounds, self.shared = order.rounds, k_tnd is None
        self.qkv = (q_tnd, q_tnd if k_tnd is None else k_tnd, v_tnd)
        self.order, self.chunks = order, len(order.neighbors_cw)
        once = counts_once and self.rounds > 1
        chunks_art = order.slots_art // self.length if once else order.slots_art[:, :, :0]
        self.met_tar = chunks_art.to(torch.int32).permute(2, 0, 1).contiguous()
        line = 0 if len(order.tokens_al) == 1 else order.tokens_al.shape[1]
        strides = tuple(x_tnd.stride(0) for x_tnd in self.qkv)
        self.sizes = (self.tokens, self.chunks // self.rounds, line, *strides, LOG2_E * self.width**-0.5)
        self._flags = {"SHARED": self.shared, "CAUSAL": causal, "HIDES": hides_self, "ONCE": once}

    def constants(self, tuned: list[Tuned]) -> dict[str, Any]:
        """Return what the kernels are compiled for."""
        rows, keys, warps, stages, registers = tuned[self.width > 64]
        window = self.order.neighbors_cw.shape[1]
        chunk, seen = _padded(self.length), _padded(self.length * window)
        return {
            "HEADS": self.heads,
            "WIDTH": self.width,
            "PADDED": _padded(self.width),
            "LENGTH": self.length,
            "ROWS": min(rows, seen if tuned is KEYS else chunk),
            "KEYS": min(keys, chunk if tuned is KEYS else seen),
            "ROUNDS": self.rounds,
            "WINDOW": window,
            **self._flags,
            "num_warps": warps,
            "num_stages": stages,
            "maxnreg": registers,
        }

    def grid(self, block: int) -> tuple[int, int]:
        """Return the programs for blocks of that many slots."""
        return self.chunks * -(-self.length // block), self.heads

    def rows(self) -> tuple[tuple[int], dict[str, int]]:
        """Return the programs and constants of a kernel that goes through rows in order."""
        constants = {"WIDTH": self.width, "PADDED": _padded(self.width), "ROWS": ROWS}
        return (-(-self.tokens * self.heads // ROWS),), constants

    def seers(self) -> Tensor:
        """Return the chunks that see a chunk (c x w): column by column no two chunks see the same."""
        seen_cw = self.order.neighbors_cw
        seers_cw = seen_cw.new_full((self.chunks + 1, seen_cw.shape[1]), -1)  # the last row takes those of no chunk
        numbers_cw = torch.arange(self.chunks, device=seen_cw.device)[:, None].expand_as(seen_cw)
        return seers_cw.scatter_(0, torch.where(seen_cw < 0, self.chunks, seen_cw), numbers_cw)

    def new(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return an empty tensor."""
        return self.qkv[0].new_empty(shape, dtype=dtype)


@custom_op("bertree::triton_chunk_attention", mutates_args=())
def _attend(
    q_tnd: Tensor,
    k_tnd: Tensor | None,
    v_tnd: Tensor,
    tokens_al: Tensor,
    positions_al: Tensor,
    slots_art: Tensor,
    neighbors_cw: Tensor,
    length: int,
    causal: bool,
    hides_self: bool,
    counts_once: bool,
) -> tuple[Tensor, Tensor]:
    order = ChunkOrder(tokens_al, positions_al, slots_art, neighbors_cw)
    call = _Call(q_tnd, k_tnd, v_tnd, order, (length, causal, hides_self, counts_once))
    parts = call.new(call.rounds, *q_tnd.shape)
    sums = call.new(call.rounds, *q_tnd.shape[:2], dtype=torch.float32)
    constants, seen = call.constants(FORWARD), (tokens_al, positions_al, neighbors_cw, call.met_tar)
    jit.forward[call.grid(constants["ROWS"])](*call.qkv, parts, sums, *seen, *call.sizes, **constants)
    if call.rounds == 1:
        return parts[0], sums[0]
    out, total = torch.empty_like(parts[0]), torch.empty_like(sums[0])
    grid, constants = call.rows()
    jit.combine[grid](parts, sums, out, total, total.numel(), ROUNDS=call.rounds, **constants)
    return out, total


@custom_op("bertree::triton_chunk_attention_backward", mutates_args=())
def _attend_backward(
    grad_tnd: Tensor,
    out_tnd: Tensor,
    sums_tn: Tensor,
    q_tnd: Tensor,
    k_tnd: Tensor | None,
    v_tnd: Tensor,
    tokens_al: Tensor,
    positions_al: Tensor,
    slots_art: Tensor,
    neighbors_cw: Tensor,
    length: int,
    causal: bool,
    hides_self: bool,
    counts_once: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    order = ChunkOrder(tokens_al, positions_al, slots_art, neighbors_cw)
    call = _Call(q_tnd, k_tnd, v_tnd, order, (length, causal, hides_self, counts_once))
    grad_tnd, deltas = grad_tnd.contiguous(), torch.empty_like(sums_tn)
    grid, constants = call.rows()
    jit.row_products[grid](grad_tnd, out_tnd, deltas, deltas.numel(), **constants)
    dq, dv = (call.new(call.rounds, *q_tnd.shape) for _ in range(2))
    dk = dq if call.shared else torch.empty_like(dq)
    inputs, seen = (grad_tnd, *call.qkv, sums_tn, deltas), (tokens_al, positions_al, neighbors_cw)
    constants = call.constants(QUERIES)
    jit.query_gradients[call.grid(constants["ROWS"])](*inputs, dq, *seen, call.met_tar, *call.sizes, **constants)
    constants = call.constants(KEYS)
    jit.key_gradients[call.grid(constants["KEYS"])](
        *inputs, dk, dv, *seen, call.seers(), call.met_tar, *call.sizes, **constants
    )
    return _over_rounds(dq), call.new(0) if call.shared else _over_rounds(dk), _over_rounds(dv)


def _over_rounds(parts_rtnd: Tensor) -> Tensor:
    if len(parts_rtnd) == 1:
        return parts_rtnd[0]
    out = torch.empty_like(parts_rtnd[0])
    jit.add_rounds[(-(-out.numel() // ADDED),)](parts_rtnd, out, out.numel(), ROUNDS=len(parts_rtnd), BLOCK=ADDED)
    return out


@_attend.register_fake
def _(q_tnd: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
    return q_tnd.new_empty(q_tnd.shape), q_tnd.new_empty(q_tnd.shape[:2], dtype=torch.float32)


@_attend_backward.register_fake
def _(
    grad_tnd: Tensor, out_tnd: Tensor, sums_tn: Tensor, q_tnd: Tensor, k_tnd: Tensor | None, *inputs: Any
) -> tuple[Tensor, Tensor, Tensor]:
    dk = q_tnd.new_empty(0 if k_tnd is None else q_tnd.shape)
    return q_tnd.new_empty(q_tnd.shape), dk, q_tnd.new_empty(q_tnd.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[:7])
    ctx.settings = inputs[7:]


def _back(ctx: Any, grad_tnd: Tensor, grad_sums: Tensor | None) -> tuple[Tensor | None, ...]:
    dq, dk, dv = _attend_backward(grad_tnd, *ctx.saved_tensors, *ctx.settings)
    return dq, None if ctx.saved_tensors[3] is None else dk, dv, *[None] * 8


_attend.register_autograd(_back, setup_context=_keep)
