"""Steps that are recorded and replayed give the same bytes as steps that are taken one by one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bertree.config.sections import OptimSettings, Phase, ScheduleSettings
from bertree.data.stream import Stream
from bertree.finetuning.feed import ShapeBuckets, UnitFeed
from bertree.model.network import Network, build
from bertree.model.presets import preset
from bertree.objectives.distill_task import task_distillation_objective
from bertree.objectives.pretraining import pretraining_objective
from bertree.objectives.supervised import supervised_objective
from bertree.tasks.batches import logit_rows
from bertree.tasks.task import Unit
from bertree.train.device_setup import set_deterministic
from bertree.train.feed import StepBatches, StreamFeed, TrainingSchedule
from bertree.train.loop import Loop, StepRecorder
from bertree.train.optimizer import build_optimizer
from bertree.train.strategies import CudaGraphRecorder
from tests.support.memory_store import memory_store
from tests.support.units import CLASSES, HEADS, OPTIONS, network, regression_network, units

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
STEPS, SIZE = 30, 8
DROPOUT = {"dropout": 0.1, "classifier_dropout": 0.1}


def with_teacher(unit: Unit, head: str) -> Unit:
    """The unit with made-up logits of a teacher."""
    shape = logit_rows(unit, head), CLASSES[head]
    return unit._replace(
        teacher_logits=np.random.default_rng(len(unit.sequences[0].ids)).normal(size=shape).astype(np.float32)
    )


def works(head: str, regression: bool, soft: bool = False) -> list[StepBatches]:
    schedule = TrainingSchedule([Phase(steps=STEPS)], ScheduleSettings(warmup=5), 1e-3)
    some = [unit for unit in units(head, 60, 0, regression) if unit.answer is not None]
    some = [with_teacher(unit, head) for unit in some] if soft else some
    shapes = ShapeBuckets(head, SIZE, OPTIONS if head == "choice" else 1)
    feed = UnitFeed(schedule, some, SIZE, head, regression=regression, shapes=shapes)
    # Replay reads the rate from the GPU, in fp32: one that fp32 cannot hold would be another rate.
    rates = [torch.tensor(update.lr).item() for update in schedule.updates]
    steps = (feed[number] for number in range(STEPS))
    return [replace(work, update=replace(work.update, lr=lr)) for work, lr in zip(steps, rates, strict=True)]


def make_loop(recorder: type[StepRecorder] | None, head: str, regression: bool, half: bool) -> Loop:
    net: Network = (regression_network if regression else network)(**DROPOUT).to("cuda")
    mover = build_optimizer(net, OptimSettings(lr=1e-3), capturable=True)
    return Loop(net, supervised_objective(head, regression), mover, clip=1.0, seed=3, bf16=half, recorder=recorder)


def state(loop: Loop) -> list[torch.Tensor]:
    moments = [value for _, p in loop.trainable for value in loop.optimizer.state[p].values()]
    return [p.detach().cpu() for p in loop.network.parameters()] + [value.cpu() for value in moments]


@cuda
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("head", "regression"), HEADS)
def test_the_same_bytes_as_step_by_step(head: str, regression: bool, half: bool) -> None:
    set_deterministic(True)
    steps = works(head, regression)
    plain, recorded = make_loop(None, head, regression, half), make_loop(CudaGraphRecorder, head, regression, half)
    losses: list[list[float]] = [[], []]
    for loop, seen in zip((plain, recorded), losses, strict=True):
        loop.run(steps, [lambda result, seen=seen: seen.append(result.loss)])
    assert losses[0] == losses[1]
    assert len(set(losses[0])) > STEPS // 2
    assert all(map(torch.equal, state(plain), state(recorded)))


@cuda
@pytest.mark.parametrize("head", ["sequence", "token", "choice"])
def test_labels_of_a_teacher_reach_the_recording(head: str) -> None:
    """Its logits are copied with every batch: the same bytes as step by step."""
    set_deterministic(True)
    objective = task_distillation_objective(head, False, "soft", 0.3, 2.0)
    runs = []
    for recorder in (None, CudaGraphRecorder):
        net = network(**DROPOUT).to("cuda")
        optimizer = build_optimizer(net, OptimSettings(lr=1e-3), capturable=True)
        loop = Loop(net, objective, optimizer, clip=1.0, seed=3, recorder=recorder)
        losses: list[float] = []
        loop.run(works(head, False, soft=True), [lambda result, losses=losses: losses.append(result.loss)])
        runs.append((losses, state(loop)))
    assert runs[0][0] == runs[1][0]
    assert len(set(runs[0][0])) > STEPS // 2
    assert all(map(torch.equal, runs[0][1], runs[1][1]))


@cuda
def test_a_bad_step_moves_nothing_and_recording_moves_nothing() -> None:
    set_deterministic(True)
    loop = make_loop(CudaGraphRecorder, "sequence", False, False)
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


@cuda
@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_replayed_steps_of_pretraining_give_the_same_bytes(optimizer: str) -> None:
    """Compiled, with dropout, two phases of different lengths."""
    set_deterministic(True)
    draw = np.random.default_rng(0)
    documents = [[draw.integers(10, 400, size).tolist()] for size in draw.integers(20, 90, 300)]
    store = memory_store(documents, vocab_size=400, special={"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4})
    phases = [Phase(6, 32, 1024), Phase(6, 64, 1024)]
    schedule = TrainingSchedule(phases, ScheduleSettings("constant"), 2.0**-10)
    streams = [
        [Stream(store, format="full-sentences", masking="token", batch_tokens=1024, max_length=length, fixed=True)]
        for length in (32, 64)
    ]
    runs = []
    for recorder in (None, CudaGraphRecorder):
        torch.manual_seed(0)
        torch._dynamo.reset()
        sizes = {"vocab_size": 400, "width": 64, "layers": 2, "heads": 2, "ffn_width": 96, "dropout": 0.1}
        net = build(preset("modernbert-base").architecture.with_values(sizes), {"mask": 0}).to("cuda")
        mover = build_optimizer(net, OptimSettings(name=optimizer, lr=2.0**-10), capturable=True)
        loop = Loop(net, pretraining_objective(mlm=1.0), mover, clip=1.0, bf16=True, compiled=True, recorder=recorder)
        losses: list[float] = []
        loop.run(
            StreamFeed(schedule, streams, fixed=True).steps_from(0), [lambda r, losses=losses: losses.append(r.loss)]
        )
        runs.append((losses, state(loop)))
    assert runs[0][0] == runs[1][0]
    assert len(set(runs[0][0])) == 12
    assert all(map(torch.equal, runs[0][1], runs[1][1]))
