"""Layer-wise learning rates: which parameter has which, and that the optimizers follow them."""

import pytest
import torch

from bertree.config.sections import OPTIMIZERS, OptimSettings
from bertree.objectives.pretraining import pretraining_objective
from bertree.train.adamw_muon import layer_factors
from bertree.train.loop import Loop
from bertree.train.optimizer import build_optimizer
from tests.support.batches import fresh, joined, make_step, sequences


def test_rates_fall_from_the_heads_to_the_embeddings() -> None:
    network = fresh(layers=3, residual="pre-norm")
    factors = layer_factors([name for name, _ in network.named_parameters()], 0.5)
    assert factors["heads.mask.bias"] == factors["encoder.norm.weight"] == factors["encoder.pooler.weight"] == 1.0
    assert factors["encoder.stack.ffn.2.part.up.weight"] == factors["encoder.stack.attention.2.norm.weight"] == 0.5
    assert factors["encoder.stack.attention.1.part.qkv.weight"] == 0.25
    assert factors["encoder.stack.attention.0.part.qkv.bias"] == 0.125
    assert {factor for name, factor in factors.items() if "embeddings" in name} == {0.0625}


@pytest.mark.parametrize(("sharing", "groups", "expected"), [("all", 1, {0.5}), ("attention", 1, {0.5, 0.125})])
def test_layers_that_share_a_part_have_one_rate(sharing: str, groups: int, expected: set[float]) -> None:
    network = fresh(layers=3, sharing=sharing, groups=groups)
    factors = layer_factors([name for name, _ in network.named_parameters()], 0.5)
    assert {factor for name, factor in factors.items() if ".ffn." in name} >= {0.5}
    shared = {factor for name, factor in factors.items() if "stack.attention." in name}
    assert len(shared) == 1
    assert shared <= expected


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_moves_by_its_rate(name: str) -> None:
    def moved(decay: float) -> dict[str, torch.Tensor]:
        network = fresh()
        before = {key: p.detach().clone() for key, p in network.named_parameters()}
        settings = OptimSettings(name=name, weight_decay=0.0, layer_decay=decay)
        loop = Loop(network, pretraining_objective(mlm=1.0, nsp=1.0), build_optimizer(network, settings))
        loop.step(make_step(joined(sequences(6)), lr=1e-2))
        return {key: p.detach() - before[key] for key, p in network.named_parameters()}

    plain, decayed = moved(1.0), moved(0.5)
    factors = layer_factors(list(plain), 0.5)
    assert len(set(factors.values())) == 4
    for key, change in plain.items():
        assert torch.allclose(decayed[key], factors[key] * change, atol=2e-6, rtol=1e-3), key
