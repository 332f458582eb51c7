"""The slots of a stack: residual connections with other streams, positions that rotate, recomputation."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.layers.attention import Attention
from bertree.model.layers.basic import NORMS
from bertree.model.layers.feed_forward import FEED_FORWARD
from bertree.model.layers.positions import Positions, RotaryPositions
from bertree.model.layers.residual import Block, PostNorm, PreNorm, Residual
from bertree.model.layers.stack import Stack
from bertree.model.masks import Full, SlidingWindow
from bertree.model.network import build

WIDTH, HEADS = 16, 2
BATCH = Batch.pack([[1] * n for n in (5, 9, 1, 3)])


@dataclass(frozen=True)
class TwoStreams:
    """As reversible layers: attention and feed-forward write to one stream each and read the other."""

    norms_last = True

    def open(self, x_th: Tensor) -> tuple[Tensor, Tensor]:
        return x_th, x_th

    def read(self, stream: tuple[Tensor, Tensor], block: Block) -> Tensor:
        return block.norm(stream[1])

    def apply(self, stream: tuple[Tensor, Tensor], block: Block, *arguments: Any) -> tuple[Tensor, Tensor]:
        return stream[1], stream[0] + block.branch(self.read(stream, block), *arguments)

    def close(self, stream: tuple[Tensor, Tensor]) -> Tensor:
        return (stream[0] + stream[1]) / 2


def stack(residual: Residual, positions: Positions | None = None, layers: int = 3, ffn: str = "plain") -> Stack:
    torch.manual_seed(0)
    masks = [SlidingWindow(2, 2) if i else Full() for i in range(layers)]
    attention = [
        Block(Attention(WIDTH, HEADS, 0.0, mask, positions), NORMS["layer"](WIDTH, 1e-5, True), 0) for mask in masks
    ]
    parts = [
        Block(FEED_FORWARD[ffn](WIDTH, 24, "gelu", True, 0), NORMS["rms"](WIDTH, 1e-5, False), 0) for _ in attention
    ]
    return Stack(attention, parts, [(i, i) for i in range(layers)], residual)


def gradients(layers: Stack, x: Tensor) -> list[Tensor]:
    layers.zero_grad()
    *_, last = layers(x, BATCH)
    last.square().sum().backward()
    return [last.detach(), *(p.grad.clone() for p in layers.parameters() if p.grad is not None)]


@pytest.mark.parametrize("residual", [PostNorm(), PreNorm(), TwoStreams()], ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("positions", [None, RotaryPositions(8, 100.0)], ids=type)
def test_recomputed_layers_give_the_same_gradients(residual: Residual, positions: Positions | None) -> None:
    model, x = stack(residual, positions), torch.randn(18, WIDTH)
    kept = gradients(model, x)
    model.recompute = True
    again = gradients(model, x)
    assert len(kept) == 1 + len(list(model.parameters()))
    assert all(torch.equal(left, right) for left, right in zip(kept, again, strict=True))


def test_a_connection_may_carry_two_streams() -> None:
    model, x = stack(TwoStreams(), layers=2), torch.randn(18, WIDTH)
    left, right = x, x
    expected = []
    for attention, ffn in zip(model.attention, model.ffn, strict=True):
        left = left + attention.part(attention.norm(right), BATCH)
        right = right + ffn.part(ffn.norm(left), BATCH)
        expected.append((left + right) / 2)
    for ours, other in zip(model(x, BATCH), expected, strict=True):
        assert torch.allclose(ours, other, atol=1e-6)


def test_angles_are_computed_once_for_layers_with_the_same_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = RotaryPositions.prepare
    monkeypatch.setattr(RotaryPositions, "prepare", lambda self, tokens: asked.append(self) or real(self, tokens))
    left, right = RotaryPositions(8, 100.0), RotaryPositions(8, 10.0)
    model = stack(PreNorm(), left, layers=4)
    for block in model.attention[::2]:
        block.part.positions = right
    model = Stack(list(model.attention), list(model.ffn), model.sharing, model.residual)
    list(model(torch.randn(18, WIDTH), BATCH))
    assert asked == [right, left]


@pytest.mark.parametrize("kind", NORMS)
def test_norms_by_their_formula_also_in_half_precision(kind: str) -> None:
    norm, x = NORMS[kind](8, 1e-3, False), torch.randn(5, 8) + 1
    with torch.no_grad():
        norm.weight.normal_()
    centred = x - x.mean(-1, keepdim=True) if kind == "layer" else x
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight
    assert torch.allclose(norm(x), expected, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(norm(x.bfloat16()).float(), expected, atol=0.1)


def test_attention_called_alone_rotates_too() -> None:
    model, x = stack(PreNorm(), RotaryPositions(8, 100.0), layers=1), torch.randn(18, WIDTH)
    part = model.attention[0].part
    assert torch.equal(part(x, BATCH), part(x, BATCH, part.positions.prepare(part.token_positions(BATCH))))
    part.positions.base = 10.0
    (changed,) = model(x, BATCH)
    part.positions.base = 100.0
    (before,) = model(x, BATCH)
    assert (changed - before).abs().max() > 1e-3


def test_an_encoder_without_memory_returns_no_state() -> None:
    network = build(Transformer(vocab_size=50, width=16, heads=2, ffn_width=8, embedding_width=16, layers=1)).eval()
    hidden, state = network.encode(BATCH, {"memory": torch.zeros(1)})
    assert state is None
    assert torch.equal(hidden, network(BATCH))


@pytest.mark.proof  # tests/model/layers/test_attention.py compiles other layers
def test_compiles_whole_with_rotary_positions_and_windows() -> None:
    torch._dynamo.reset()
    model = stack(PreNorm(), RotaryPositions(8, 100.0), layers=2, ffn="gated")
    compiled = torch.compile(lambda x, batch: list(model(x, batch))[-1], fullgraph=True, dynamic=True, backend="eager")
    for sizes in ((5, 9, 1, 3), (6, 7), (18,)):
        batch, x = Batch.pack([[1] * n for n in sizes]), torch.randn(sum(sizes), WIDTH)
        assert torch.allclose(compiled(x, batch), list(model(x, batch))[-1], atol=1e-5)
