"""The feed-forward part in chunks: the same numbers, and what is inside exists for one chunk at a time."""

import pytest
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.layers.feed_forward import FEED_FORWARD
from bertree.model.network import build_encoder

WIDTH, INNER, TOKENS = 16, 512, 100
BATCH = Batch.pack([[1] * TOKENS])


@pytest.mark.parametrize("kind", FEED_FORWARD)
@pytest.mark.parametrize("chunk", [1, 7, 50, 99, 100, 1000])
def test_chunks_change_nothing(kind: str, chunk: int) -> None:
    torch.manual_seed(0)
    part = FEED_FORWARD[kind](WIDTH, INNER, "gelu", True, 0).double()
    x_th = torch.randn(TOKENS, WIDTH, dtype=torch.float64)
    outputs: list[list[Tensor]] = []
    for size in (0, chunk):
        part.chunk = size
        x_th = x_th.detach().requires_grad_()
        part.zero_grad()
        out_th = part(x_th, BATCH)
        out_th.sin().sum().backward()
        with torch.no_grad():
            assert torch.equal(part(x_th, BATCH), out_th)
        outputs.append([out_th.detach(), *(t.grad for t in (x_th, *part.parameters()) if t.grad is not None)])
    assert len(outputs[0]) == 6
    assert all(torch.allclose(left, right, atol=1e-12) for left, right in zip(*outputs, strict=True))


@pytest.mark.parametrize("kind", FEED_FORWARD)
def test_inner_states_exist_for_one_chunk_at_a_time(kind: str) -> None:
    part = FEED_FORWARD[kind](WIDTH, INNER, "gelu", True, 10)
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    x_th = torch.randn(TOKENS, WIDTH, requires_grad=True)
    rows: list[int] = []
    part.up.register_forward_hook(lambda module, args, out: rows.append(len(out)))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out_th = part(x_th, BATCH)
    assert all(numbers < TOKENS * INNER / 2 for numbers in kept)
    assert rows == [10] * 10
    out_th.sum().backward()
    assert rows == [10] * 20  # each once more
    with torch.no_grad():
        part(x_th, BATCH)
    assert rows == [10] * 30


def test_an_architecture_sets_the_size_of_chunks() -> None:
    small = {"vocab_size": 50, "width": 16, "heads": 2, "layers": 2, "dropout": 0.0, "attention_dropout": 0.0}
    states = []
    for size in (0, 3):
        torch.manual_seed(0)
        encoder = build_encoder(Transformer().with_values(small | {"ffn_chunk": size}))
        assert [block.part.chunk for block in encoder.stack.ffn] == [size, size]
        states.append(encoder(Batch.pack([[4, 9, 2, 33, 7], [5, 6, 7]])))
    assert torch.allclose(*states, atol=1e-6)
