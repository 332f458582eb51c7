"""Triton's kernels for chunks follow the dense definition. Without a GPU they run with TRITON_INTERPRET=1."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from bertree.model.kernels.chunks import triton_attend
from bertree.model.kernels.chunks.order import ChunkOrder, ChunkSettings
from tests.support.attention import with_gradients
from tests.support.chunks import as_written, definition, hashed, unit_keys
from tests.support.interpreter import DEVICE, DTYPE, INTERPRETED, needs_triton

pytestmark = needs_triton
HEADS, TOLERANCE = 2, 1e-5 if INTERPRETED else 2e-2


class Call(NamedTuple):
    lengths: list[int]
    rounds: int  # 0: in the order of the text
    settings: ChunkSettings
    width: int = 16


CALLS = {
    "one round": Call([11, 0, 3, 9], 1, ChunkSettings(4, 1, 0, causal=True, hides_self=True)),
    "two rounds": Call([11, 3, 9], 2, ChunkSettings(4, 1, 0, causal=True, hides_self=True)),
    "two rounds, a chunk on both sides": Call([11, 1, 5], 2, ChunkSettings(4, 1, 1, hides_self=True), 24),
    "two rounds, each time": Call([11, 3], 2, ChunkSettings(4, 1, 0, hides_self=True, counts_once=False)),
    "four rounds": Call([13], 4, ChunkSettings(4, 1, 0, hides_self=True)),
    "four rounds, causal, each time": Call([9], 4, ChunkSettings(4, 1, 0, True, hides_self=True, counts_once=False)),
    "four rounds, chunks of 32": Call([150], 4, ChunkSettings(32, 1, 0, causal=True, hides_self=True)),
    "nine rounds": Call([5], 9, ChunkSettings(4, 1, 0, hides_self=True)),
    "more slots than a block": Call([150], 1, ChunkSettings(70, 1, 0, causal=True, hides_self=True)),
    "text": Call([11, 3, 9], 0, ChunkSettings(4, 1, 1)),
    "text, causal": Call([40, 7], 0, ChunkSettings(16, 2, 0, causal=True)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_chunks_and_their_gradients_follow_the_definition(call: Call) -> None:
    draw = torch.Generator().manual_seed(1)
    is_shared = call.rounds > 0
    shape = (sum(call.lengths), 2 if is_shared else 3, HEADS, call.width)
    inputs = torch.randn(shape, generator=draw).to(DTYPE)
    if is_shared:
        order, buckets = hashed(inputs[:, 0].float(), call.lengths, call.settings, call.rounds, (4,))
    else:
        order, buckets = as_written(call.lengths, call.settings)
    order_on_device = ChunkOrder(*(x.to(DEVICE) for x in order))

    def ours(qkv: Tensor) -> Tensor:
        q, *k, v = qkv.unbind(1)
        return triton_attend.attend(q, k[0] if k else None, v, order_on_device, call.settings)

    def exact(qkv: Tensor) -> Tensor:
        q, *k, v = qkv.unbind(1)
        keys = k[0] if k else unit_keys(q)
        return definition(q, keys, v, call.lengths, buckets.expand(HEADS, -1, -1), call.settings)

    output = with_gradients(ours, [inputs.to(DEVICE)])
    for name, tensor, true in zip(("mixed", "gradient"), output, with_gradients(exact, [inputs.double()]), strict=True):
        assert (tensor.cpu() - true).norm() <= TOLERANCE * true.norm(), name


@pytest.mark.parametrize("shared", [False, True])
def test_compilers_know_the_operator(shared: bool) -> None:
    settings = ChunkSettings(4, 1, 0, causal=True, hides_self=True)
    q, k, v = (torch.randn(5, 1, 16) for _ in range(3))
    order, _ = hashed(q, [5], settings, 2, (4,))
    inputs = [x.to(DEVICE, DTYPE).requires_grad_() for x in (q, k, v)]
    keys = None if shared else inputs[1]
    order_on_device = (x.to(DEVICE) for x in order)
    torch.library.opcheck(triton_attend._attend, (inputs[0], keys, inputs[2], *order_on_device, 4, True, True, True))


@pytest.mark.skipif(INTERPRETED, reason="the interpreter takes programs in turn")
def test_gradients_are_the_same_every_time() -> None:
    lengths, settings = [5000, 3001], ChunkSettings(64, 1, 0, causal=True, hides_self=True)
    q, v = torch.randn(2, sum(lengths), 4, 64).to(DTYPE)
    order, _ = hashed(q.float(), lengths, settings, 4)
    order_on_device = ChunkOrder(*(x.to(DEVICE) for x in order))
    inputs = [q.to(DEVICE), v.to(DEVICE)]
    first, *others = (
        with_gradients(lambda q, v: triton_attend.attend(q, None, v, order_on_device, settings), inputs)
        for _ in range(5)
    )
    for other in others:
        assert all(torch.equal(left, right) for left, right in zip(first, other, strict=True))
