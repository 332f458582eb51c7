"""Steps that are recorded and replayed give the same bytes as steps that are taken one by one."""

from dataclasses import replace

import pytest
import torch

from bertree.config.sections import OptimSettings, Phase, ScheduleSettings
from bertree.finetuning.feed import ShapeBuckets, UnitFeed
from bertree.model.network import Network
from bertree.objectives.supervised import supervised_objective
from bertree.train.device import set_deterministic
from bertree.train.feed import StepBatches
from bertree.train.loop import Loop
from bertree.train.optim import build_optimizer
from bertree.train.schedule import TrainingPlan
from bertree.train.steps.cuda_graph import CudaGraphLaunch
from bertree.train.steps.eager import EagerLaunch, Launch
from tests.support.units import HEADS, OPTIONS, network, regression_network, units

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
STEPS, SIZE = 30, 8
DROPOUT = {"dropout": 0.1, "classifier_dropout": 0.1}


def works(head: str, regression: bool) -> list[StepBatches]:
    plan = TrainingPlan([Phase(steps=STEPS)], ScheduleSettings(warmup=5), 1e-3)
    some = [unit for unit in units(head, 60, 0, regression) if unit.answer is not None]
    shapes = ShapeBuckets(head, SIZE, OPTIONS if head == "choice" else 1)
    feed = UnitFeed(plan, some, SIZE, head, regression=regression, shapes=shapes)
    # Replay reads the rate from the GPU, in fp32: one that fp32 cannot hold would be another rate.
    rates = [torch.tensor(update.lr).item() for update in plan.updates]
    steps = (feed[number] for number in range(STEPS))
    return [replace(work, update=replace(work.update, lr=lr)) for work, lr in zip(steps, rates, strict=True)]


def made(launch: type[Launch], head: str, regression: bool, half: bool) -> Loop:
    net: Network = (regression_network if regression else network)(**DROPOUT).to("cuda")
    mover = build_optimizer(net, OptimSettings(lr=1e-3), capturable=True)
    return Loop(net, supervised_objective(head, regression), mover, clip=1.0, seed=3, bf16=half, launch=launch)


def state(loop: Loop) -> list[torch.Tensor]:
    moments = [value for p in loop.learner.trainable for value in loop.optimizer.state[p].values()]
    return [p.detach().cpu() for p in loop.network.parameters()] + [value.cpu() for value in moments]


@cuda
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("head", "regression"), HEADS)
def test_the_same_bytes_as_step_by_step(head: str, regression: bool, half: bool) -> None:
    set_deterministic(True)
    steps = works(head, regression)
    one, other = made(EagerLaunch, head, regression, half), made(CudaGraphLaunch, head, regression, half)
    losses: list[list[float]] = [[], []]
    for loop, seen in zip((one, other), losses, strict=True):
        loop.run(steps, [lambda result, seen=seen: seen.append(result.loss)])
    assert losses[0] == losses[1]
    assert len(set(losses[0])) > STEPS // 2
    assert all(map(torch.equal, state(one), state(other)))


@cuda
def test_a_bad_step_moves_nothing_and_recording_moves_nothing() -> None:
    set_deterministic(True)
    loop = made(CudaGraphLaunch, "sequence", False, False)
    steps = works("sequence", False)
    loop.step(steps[0])
    before = state(loop)
    with torch.no_grad():
        kept = loop.network.encoder.embeddings.tokens.weight[5].clone()
        loop.network.encoder.embeddings.tokens.weight[5] = float("nan")
    result = loop.step(next(work for work in steps if 5 in work.batches[0].ids))
    assert result.skipped
    with torch.no_grad():
        loop.network.encoder.embeddings.tokens.weight[5] = kept
    assert all(map(torch.equal, before, state(loop)))
