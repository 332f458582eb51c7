"""Hashing and the line of slots on a GPU: a kernel for each factor, one sort for all heads and rounds, a kernel for the
line. Nothing is read on the host.

Shape letters: t tokens, s sequences, n heads, d head width, r rounds, x axes, l slots of all rounds.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from bertree.model.kernels.chunks import triton_attend_jit
from bertree.model.kernels.chunks.triton_attend_jit import EMPTY_POSITION, MISSING, refusal

__all__ = ["EMPTY_POSITION", "MISSING", "hash_buckets", "line", "refusal", "sort_rows"]

ROWS, COLUMNS, WARPS = 128, 64, 4  # tokens and axes of a block of hashing
FILLED = 1024  # tokens that a program puts into slots


def hash_buckets(
    qk_tnd: Tensor, rotations: tuple[Tensor, ...], counts: tuple[Tensor, ...], sequence_ids_t: Tensor
) -> Tensor:
    """Return the bucket of each token in each round (n x r x t, int64).

    `rotations`: of each factor (n x d x r x x); `counts`: buckets of each sequence by that factor.
    """
    buckets_nrt: Tensor = _hash(qk_tnd.detach(), list(rotations), list(counts), sequence_ids_t)
    return buckets_nrt


def line(
    buckets_nrt: Tensor,
    sequence_ids_t: Tensor,
    positions_t: Tensor,
    slots_t: Tensor,
    sequences: int,
    most: int,
    size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sort tokens by sequence, bucket (below `most`) and position, and put them into the `size` slots of a round.

    Return the tokens (n x l) and positions (n x l) of the slots, and the slots of the tokens (n x r x t).
    """
    filled: tuple[Tensor, Tensor, Tensor] = _line(
        buckets_nrt, sequence_ids_t, positions_t, slots_t, sequences, most, size
    )
    return filled


def sort_rows(buckets_nrt: Tensor, sequence_ids_t: Tensor, sequences: int, most: int) -> Tensor:
    """Return the order of the tokens of each head and round, as row numbers of all of them together.

    One sort of many small keys is much faster than a sort for each head and round.
    """
    heads, rounds, _ = buckets_nrt.shape
    kind = torch.int32 if heads * rounds * sequences * most < 2**31 else torch.int64
    keys_t = sequence_ids_t.to(kind) * most
    segments_nr1 = torch.arange(heads * rounds, dtype=kind, device=keys_t.device).view(heads, rounds, 1)
    keys_nrt = segments_nr1 * (sequences * most) + keys_t + buckets_nrt.to(kind)
    return torch.sort(keys_nrt.flatten(), stable=True)[1]


@custom_op("bertree::triton_hash_buckets", mutates_args=())
def _hash(qk_tnd: Tensor, rotations: list[Tensor], counts: list[Tensor], sequence_ids_t: Tensor) -> Tensor:
    tokens, heads, width = qk_tnd.shape
    rounds = rotations[0].shape[2]
    if qk_tnd.stride()[1:] != (width, 1):
        qk_tnd = qk_tnd.contiguous()
    buckets_nrt = torch.empty(heads, rounds, tokens, dtype=torch.int64, device=qk_tnd.device)
    before = counts[0]
    for number, (rotation, count_s) in enumerate(zip(rotations, counts, strict=True)):
        axes = rotation.shape[3]
        hash_factor[(-(-tokens // ROWS), heads, rounds)](
            *(qk_tnd, rotation.contiguous(), count_s, before, sequence_ids_t, buckets_nrt, tokens, qk_tnd.stride(0)),
            ROUNDS=rounds,
            AXES=axes,
            WIDTH=width,
            PADDED=max(16, 1 << (width - 1).bit_length()),
            ROWS=ROWS,
            COLUMNS=min(COLUMNS, max(16, 1 << (axes - 1).bit_length())),
            FIRST=number == 0,
            num_warps=WARPS,
        )
        before = count_s if number == 0 else before * count_s
    return buckets_nrt


@custom_op("bertree::triton_line", mutates_args=())
def _line(
    buckets_nrt: Tensor,
    sequence_ids_t: Tensor,
    positions_t: Tensor,
    slots_t: Tensor,
    sequences: int,
    most: int,
    size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    heads, rounds, tokens = buckets_nrt.shape
    order = sort_rows(buckets_nrt, sequence_ids_t, sequences, most)
    tokens_nl = torch.zeros(heads, rounds * size, dtype=torch.int64, device=order.device)
    positions_nl = torch.full((heads, rounds * size), EMPTY_POSITION, dtype=torch.int32, device=order.device)
    slots_nrt = torch.empty_like(buckets_nrt)
    fill_line[(-(-tokens // FILLED), heads * rounds)](
        order, positions_t, slots_t, tokens_nl, positions_nl, slots_nrt, tokens, size, ROUNDS=rounds, ROWS=FILLED
    )
    return tokens_nl, positions_nl, slots_nrt


@_hash.register_fake
def _(qk_tnd: Tensor, rotations: list[Tensor], *rest: Any) -> Tensor:
    tokens, heads, _ = qk_tnd.shape
    return qk_tnd.new_empty(heads, rotations[0].shape[2], tokens, dtype=torch.int64)


@_line.register_fake
def _(
    buckets_nrt: Tensor,
    sequence_ids_t: Tensor,
    positions_t: Tensor,
    slots_t: Tensor,
    sequences: int,
    most: int,
    size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    heads, rounds, _ = buckets_nrt.shape
    tokens_nl = buckets_nrt.new_empty(heads, rounds * size)
    return tokens_nl, tokens_nl.new_empty(tokens_nl.shape, dtype=torch.int32), torch.empty_like(buckets_nrt)


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
            valid = (depth < WIDTH)[:, None] & (axis < AXES)[None, :]
            turned = tl.dot(x, tl.load(rotations + at, mask=valid, other=0.0).to(x.dtype))
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
        order,
        positions_t,
        slots_t,
        to_tokens,
        to_positions,
        to_slots,
        tokens,
        size,
        ROUNDS: tl.constexpr,
        ROWS: tl.constexpr,
    ):
        """Put some of a head's tokens, sorted in a round, into its slots; `order`: rows of all heads and rounds."""
        segment = tl.program_id(1).to(tl.int64)  # head * ROUNDS + round
        rank = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        live = rank < tokens
        token = tl.load(order + segment * tokens + rank, mask=live, other=0) - segment * tokens
        slot = tl.load(slots_t + rank, mask=live, other=0)
        position = tl.load(positions_t + token, mask=live, other=0)
        tl.store(to_tokens + segment * size + slot, token, mask=live)
        tl.store(to_positions + segment * size + slot, position.to(tl.int32), mask=live)
        tl.store(to_slots + segment * tokens + token, segment % ROUNDS * size + slot, mask=live)
