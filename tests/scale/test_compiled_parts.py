"""Compiled parts of a sharded network: few graphs, none of them broken, and the losses of one device.

The first half of the compiler runs here (tracing, gradients); kernels are PyTorch's own, which takes seconds.
"""

from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from bertree.config.sections import OptimSettings
from bertree.objectives.pretraining import pretraining_objective
from bertree.scale.distribute import distribute
from bertree.scale.launch import Launch
from bertree.scale.world import World, join
from bertree.train.loop import Loop
from bertree.train.optimizer import build_optimizer
from tests.support.batches import fresh, joined, make_step, sequences

PARTS = 5  # embeddings, attention, feed-forward, last norm, head with loss


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    counters.clear()


def make_loop(world: World) -> Loop:
    network = fresh(residual="pre-norm", layers=4)
    distribution = distribute(network, world, zero=3, compiled=True) if world.joined else None
    optimizer = build_optimizer(network, OptimSettings(lr=1e-2), distribution=distribution)
    objective = pretraining_objective(mlm=1.0, nsp=1.0)
    return Loop(network, objective, optimizer, clip=1.0, distribution=distribution)


@pytest.mark.usefixtures("traced")
def test_each_kind_of_part_is_compiled_once_and_evaluation_not_at_all() -> None:
    train, held = joined(sequences(6)), joined(sequences(3, seed=1))
    steps = [make_step(train, number=number, lr=1e-2) for number in range(5)]
    plain = make_loop(World.alone())
    wanted = [plain.step(step).loss for step in steps]
    with join(Launch(), zero=3) as world:
        loop = make_loop(world)
        losses = [loop.step(step).loss for step in steps]
        assert counters["stats"]["unique_graphs"] == PARTS
        with torch.no_grad():
            loss = loop.without_gradients(lambda: loop.objective(loop.network, held).losses["mlm"].sum)
        assert counters["stats"]["unique_graphs"] == PARTS
        assert not counters["graph_break"]
    with torch.no_grad():
        assert float(loss) == pytest.approx(float(plain.objective(plain.network, held).losses["mlm"].sum), rel=1e-5)
    assert losses == pytest.approx(wanted, rel=1e-5)
    assert wanted[-1] < wanted[0]
