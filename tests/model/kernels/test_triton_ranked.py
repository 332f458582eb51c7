"""Triton's kernel of relative attention follows the definition for orders, segments and queries anywhere.

Without a GPU it runs with TRITON_INTERPRET=1.
"""

import pytest
import torch
from torch import Tensor

from bertree.model.kernels import triton_relative
from bertree.model.kernels.layout import Layout, RelativeScores, SegmentScores
from bertree.model.masks import Full
from tests.support.attention import (
    definition,
    layout_of,
    order,
    random_qkv,
    random_relative,
    random_segments,
    with_gradients,
)
from tests.support.interpreter import DEVICE, INTERPRETED, needs_triton

DTYPE, TOLERANCE = (torch.float32, 1e-5) if INTERPRETED else (torch.bfloat16, 2e-2)
NAMES = ("mixed", "q", "k", "v", "r", "bias u", "bias v", "other segments")


def moved(layout: Layout, device: str) -> Layout:
    """The same layout on another device."""

    def move(value: object) -> object:
        if isinstance(value, tuple):
            return type(value)(*map(move, value))
        return value.to(device) if isinstance(value, Tensor) else value

    return Layout(*map(move, layout))


@needs_triton
@pytest.mark.parametrize("table_bytes", [1, 2**31], ids=["head by head", "all heads"])
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(("lengths", "memory"), [([20, 0, 70], [9, 3, 65]), ([64, 16], [64, 16])])
def test_orders_segments_and_places_follow_the_definition(
    monkeypatch: pytest.MonkeyPatch,
    lengths: list[int],
    memory: list[int],
    scattered: bool,
    segments: bool,
    table_bytes: int,
) -> None:
    monkeypatch.setattr(triton_relative, "TABLE_BYTES", table_bytes)
    layout = order(layout_of(lengths, memory, Full()), 3, scattered)
    if not scattered:
        assert layout.positions is not None
        first = layout.cu_q[:-1].long().clamp(max=len(layout.positions) - 1)
        layout = layout._replace(starts=layout.positions[first])
    tables, lowest = random_relative(layout, 1, 16)
    apart, of_t, of_k = random_segments(layout, 2)
    inputs = [x.to(DTYPE) for x in (*random_qkv(layout, 0, 16, spare=3), *tables, apart)]

    def attention(device: str, q: Tensor, k: Tensor, v: Tensor, *scores: Tensor) -> Tensor:
        kinds = SegmentScores(scores[3], of_t.to(device), of_k.to(device)) if segments else None
        relative = RelativeScores(*scores[:3], lowest, kinds)
        if device == DEVICE and q.dtype == DTYPE:
            return triton_relative.attend(q, k, v, moved(layout, device), 0.0, relative)
        return definition(q, k, v, layout, relative)

    on_device = [x.to(DEVICE) for x in inputs]
    ours, again = (with_gradients(lambda *x: attention(str(DEVICE), *x), on_device) for _ in range(2))
    exact = with_gradients(lambda *x: attention("cpu", *x), [x.cpu().double() for x in inputs])
    for name, left, right, true in zip(NAMES, ours, again, exact, strict=True):
        assert torch.equal(left, right), f"{name}: not the same every time"
        assert torch.isfinite(left).all(), name
        assert (left.cpu() - true).norm() <= TOLERANCE * (true.norm() + 1e-3), name
