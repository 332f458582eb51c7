"""Axial positions: the vectors of transformers, for any lengths up to the product of the shape, also in training."""

import pytest
import torch
from transformers.models.reformer.configuration_reformer import ReformerConfig
from transformers.models.reformer.modeling_reformer import AxialPositionEmbeddings

from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.layers.positions import POSITIONS, AxialPositions
from bertree.model.network import build

SHAPE, WIDTHS = (4, 6), (8, 24)


def axial() -> AxialPositions:
    torch.manual_seed(0)
    a = Transformer().with_values(
        {"width": 32, "heads": 4, "positions": "axial", "axial_shape": "4,6", "axial_widths": "8,24"}
    )
    assert isinstance(a, Transformer)
    positions = POSITIONS[a.positions].embedded(a)
    assert isinstance(positions, AxialPositions)
    return positions


@pytest.mark.parametrize("length", [1, 5, 6, 7, 13, 24])
def test_vectors_are_those_of_transformers(length: int) -> None:
    ours = axial()
    config = ReformerConfig(hidden_size=32, axial_pos_shape=SHAPE, axial_pos_embds_dim=WIDTHS)
    theirs = AxialPositionEmbeddings(config).eval()
    with torch.no_grad():
        theirs.weights[0].copy_(ours.rows.weight[:, None])
        theirs.weights[1].copy_(ours.columns.weight[None])
        expected = theirs(torch.arange(length)[None])[0]
        vectors = ours.embed(Batch.pack([[1] * length]))
    assert torch.equal(vectors, expected)


def test_every_sequence_of_a_batch_starts_at_the_first_place() -> None:
    ours, lengths = axial(), (24, 1, 9)
    vectors = ours.embed(Batch.pack([[1] * n for n in lengths])).split(lengths)
    for part, n in zip(vectors, lengths, strict=True):
        assert torch.equal(part, ours.embed(Batch.pack([[2] * n])))
    assert len({tuple(row.tolist()) for row in vectors[0]}) == 24


def test_any_length_can_be_trained_and_only_its_places_learn() -> None:
    ours = axial()
    ours.embed(Batch.pack([[1] * 8])).sum().backward()
    assert ours.rows.weight.grad is not None
    assert ours.columns.weight.grad is not None
    assert ours.rows.weight.grad[:, 0].tolist() == [6, 2, 0, 0]
    assert ours.columns.weight.grad[:, 0].tolist() == [2, 2, 1, 1, 1, 1]


def test_a_network_has_them_in_its_embeddings() -> None:
    axes = {"width": 32, "heads": 4, "layers": 1, "positions": "axial", "axial_shape": "4,6", "vocab_size": 50}
    a = Transformer(dropout=0.0, attention_dropout=0.0).with_values(axes)
    network = build(a).eval()
    batch = Batch.pack([[7] * 24])
    assert len({tuple(row.tolist()) for row in network.encoder.embeddings(batch)}) == 24
    with torch.no_grad():
        table = network.encoder.embeddings.positions
        assert isinstance(table, AxialPositions)
        assert table.rows.weight.std() < 0.05  # drawn like the other tables, not PyTorch's standard normal
    assert network(batch).shape == (24, 32)
