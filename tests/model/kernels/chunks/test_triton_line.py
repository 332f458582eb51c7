"""Hashing and the line of slots by Triton are those of the plain path. Without a GPU: TRITON_INTERPRET=1."""

import pytest
import torch

from bertree.model.kernels.chunks import triton_line
from bertree.model.kernels.chunks.order import (
    ChunkSettings,
    Rings,
    bucket_counts,
    bucket_order,
    fixed_rotations,
    hash_buckets,
)
from tests.support.chunks import bounds
from tests.support.interpreter import DEVICE, DTYPE, INTERPRETED, needs_triton

LENGTHS, HEADS, WIDTH, ROUNDS = [70, 5, 0, 23], 2, 16, 2


@needs_triton
@pytest.mark.parametrize("buckets", [None, (6,), (4, 6), (200,)])
def test_buckets_are_those_of_the_plain_path(buckets: tuple[int, ...] | None) -> None:
    cu_seqlens = bounds(LENGTHS)
    counts = bucket_counts(cu_seqlens.diff(), max(LENGTHS), 2, buckets)
    assert buckets or len(counts.axes) == 2, "some sequences have two factors, others one"
    rotations = fixed_rotations(0, 0, HEADS, WIDTH, ROUNDS, counts.axes)
    ids = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
    fused = torch.randn(sum(LENGTHS), 2, HEADS, WIDTH, generator=torch.Generator().manual_seed(0)).to(DTYPE)
    qk = fused[:, 0]  # rows that are apart
    on_device = [tuple(x.to(DEVICE) for x in tensors) for tensors in (rotations, counts.of_s)]
    ours = triton_line.hash_buckets(qk.to(DEVICE), *on_device, ids.to(DEVICE)).cpu()
    rounded = tuple(rotation.to(DTYPE).double() for rotation in rotations)
    theirs = hash_buckets(qk.double(), rounded, counts, ids)
    assert (ours != theirs).float().mean() <= (0 if INTERPRETED else 0.01)


@needs_triton
def test_the_line_is_that_of_the_plain_path() -> None:
    settings, most = ChunkSettings(4, 1, 0), 8
    rings = Rings.of(bounds(LENGTHS), sum(LENGTHS), settings, ROUNDS)
    buckets = torch.randint(most, (HEADS, ROUNDS, sum(LENGTHS)), generator=torch.Generator().manual_seed(0))
    plain = bucket_order(rings, buckets, most, settings.length)
    inputs = [x.to(DEVICE) for x in (buckets, rings.sequence_ids_t, rings.positions_t, rings.slots_t)]
    ours = triton_line.line(*inputs, len(LENGTHS), most, plain.tokens_al.shape[1] // ROUNDS)
    for name, left, right in zip(plain._fields, ours, plain[:3], strict=False):
        assert torch.equal(left.cpu(), right), name


@pytest.mark.parametrize("most", [8, 2**29])
def test_one_sort_of_all_heads_and_rounds_is_a_sort_of_each(most: int) -> None:
    ids = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
    buckets = torch.randint(8, (HEADS, ROUNDS, len(ids)), generator=torch.Generator().manual_seed(0))
    rows = triton_line.sort_rows(buckets, ids, len(LENGTHS), most).view(HEADS * ROUNDS, -1)
    each = (ids * 8 + buckets).argsort(dim=-1, stable=True).flatten(0, 1)
    assert torch.equal(rows - torch.arange(HEADS * ROUNDS)[:, None] * len(ids), each)
