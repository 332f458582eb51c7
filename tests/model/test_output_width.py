"""Heads of an encoder whose last states are wider than its layers, and heads with an output matrix of their own."""

import pytest
import torch
from torch import nn

from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.heads import BeamSpanHead, ClassHead, MaskHead
from bertree.model.network import build, build_head
from bertree.model.pooling import PoolingConfig
from bertree.model.readout import Readout, build_features


def wide(**axes: object) -> Transformer:
    small = {"vocab_size": 50, "width": 16, "heads": 2, "layers": 2, "residual": "reversible", "embedding_width": 16}
    changed = Transformer().with_values(small | axes)
    assert isinstance(changed, Transformer)
    return changed


@pytest.mark.parametrize(("kind", "shapes"), [
    ("tanh", [(16, 32), (3, 16)]), ("relu", [(16, 32), (3, 16)]), ("summary", [(16, 32), (3, 16)]),
    ("linear", [(3, 32)]), ("pooler", [(3, 16)]),
])  # fmt: skip
def test_classifiers_read_both_streams(kind: str, shapes: list[tuple[int, ...]]) -> None:
    head = build_head(wide(sequence_head=kind), "sequence", 3)
    assert [tuple(p.shape) for name, p in head.named_parameters() if name.endswith("weight")] == shapes


def test_heads_of_tokens_read_both_streams() -> None:
    for name, classes in (("token", 5), ("span", 2)):
        head = build_head(wide(), name, classes)
        assert isinstance(head, ClassHead)
        assert head.out.weight.shape == (classes, 32)
    beam = build_head(wide(), "beam-span")
    assert isinstance(beam, BeamSpanHead)
    assert beam.start.in_features == 32


@pytest.mark.parametrize(("layers", "width"), [("last", 32), ("sum-all", 32), ("second-to-last", 32)])
def test_a_readout_has_the_width_of_both_streams(layers: str, width: int) -> None:
    assert build_features(wide(), Readout(layers=layers))[1] == width
    frozen = build_head(wide(), "sequence", 3, Readout(frozen=True))
    assert isinstance(frozen, ClassHead)
    assert frozen.out.in_features == 32


@pytest.mark.parametrize(("transform", "tied", "matrix"), [
    (True, True, None), (True, False, (50, 16)), (False, False, (50, 32)),
])  # fmt: skip
def test_the_output_matrix_is_tied_or_its_own(transform: bool, tied: bool, matrix: tuple[int, int] | None) -> None:
    head = build_head(wide(mask_transform=transform, tied_output=tied), "mask")
    assert isinstance(head, MaskHead)
    assert (None if head.output is None else tuple(head.output.weight.shape)) == matrix
    tokens, states = nn.Embedding(50, 16), torch.randn(4, 32)
    head(states, tokens).sum().backward()
    assert (tokens.weight.grad is None) is not tied
    if head.output is not None:
        assert head.output.weight.std() < 0.05
        assert torch.allclose(head.matrix(tokens), head.output.weight)


def test_an_own_matrix_decides_what_a_model_predicts() -> None:
    a = Transformer(vocab_size=50, heads=2, layers=1, tied_output=False).with_values({"width": 16})
    network = build(a, {"mask": 0}, vector=PoolingConfig())
    states = torch.randn(3, 16)
    head = network.heads["mask"]
    assert isinstance(head, MaskHead)
    assert head.dense is not None
    assert head.norm is not None
    assert head.output is not None
    transformed = head.norm(head.activation(head.dense(states)))
    expected = transformed @ head.output.weight.T + head.bias
    assert torch.allclose(network.mask_logits(states, torch.arange(3)), expected, atol=1e-6)


BATCH = Batch.pack([[5, 6, 7, 8], [9, 10], [11]])


@pytest.mark.parametrize(("head", "rows"), [("sequence", 3), ("token", 7), ("span", 7), ("choice", 3), ("pair", 3)])
@pytest.mark.parametrize("kind", ["pooler", "tanh", "normed"])
def test_every_head_reads_a_reversible_encoder(head: str, rows: int, kind: str) -> None:
    network = build(wide(sequence_head=kind), {head: 3})
    hidden = network(BATCH)
    assert hidden.shape == (7, 32)
    logits = network.class_logits(head, hidden, BATCH)
    assert len(logits) == rows
    logits.sum().backward()
    assert all(p.grad is not None for p in network.heads.parameters())


@pytest.mark.parametrize("layers", ["last", "embeddings", "second-to-last", "sum-all"])
@pytest.mark.parametrize("lstm", [0, 6])
def test_every_readout_reads_a_reversible_encoder(layers: str, lstm: int) -> None:
    network = build(
        wide(), {"token": 4}, Readout(layers=layers, lstm=lstm, frozen=True, crf=True), PoolingConfig("mean+max")
    )
    hidden = network(BATCH)
    assert hidden.shape == (7, network.width)
    assert network.class_logits("token", hidden, BATCH).shape == (7, 4)
    assert network.vectors(hidden, BATCH).shape == (3, 2 * network.width)


def test_the_states_of_a_reversible_encoder_have_one_width() -> None:
    network = build(wide(positions="axial", axial_shape="4,4")).eval()
    states = list(network.encoder.states(BATCH))
    assert {state.shape for state in states} == {(7, 32)}
    assert torch.equal(states[0][:, :16], states[0][:, 16:])
    assert torch.allclose(states[-1], network(BATCH), atol=1e-6)
    assert network.encoder.width == 32
