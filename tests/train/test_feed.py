"""Batches made ahead: in order, from any step, by a thread that ends; and batches of one shape."""

import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from bertree.batch import Batch, PretrainingLabels
from bertree.config.sections import OptimSettings, Phase, ScheduleSettings
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.errors import UserError
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import build, recipe
from bertree.train.feed import FixedShape, StreamFeed, TrainingSchedule
from bertree.train.loop import Loop, StepResult, StopTraining
from bertree.train.optimizer import build_optimizer
from tests.support.batches import axes_of, fresh, make_step, run_backward
from tests.support.corpora import same


def streams(store: Path, length: int = 32, seed: int = 0, fixed: bool = False, count: int = 2) -> list[Stream]:
    return [
        Stream(
            Store.open(store),
            format="segment-pair+nsp",
            batch_tokens=16 * length,
            max_length=length,
            seed=seed,
            rank=rank,
            world=count,
            fixed=fixed,
        )
        for rank in range(count)
    ]


def feeding() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "feed"]


@pytest.fixture
def feed(token_store: Path) -> StreamFeed:
    schedule = TrainingSchedule([Phase(6, 32), Phase(5, 64)], ScheduleSettings(growth=4), 1.0)
    return StreamFeed(schedule, [streams(token_store), streams(token_store, 64, seed=1)])


def test_the_steps_are_the_plans(feed: StreamFeed) -> None:
    steps = list(feed.steps_from(0))
    assert [step.update for step in steps] == feed.schedule.updates
    assert not feeding()
    for step in steps:
        reading = feed.streams[step.update.phase]
        places = range(step.update.first, step.update.first + step.update.batches)
        expected = [stream[place] for place in places for stream in reading]
        assert all(same(left, right) for left, right in zip(step.batches, expected, strict=True))
    assert any(step.update.batches > 1 for step in steps)
    assert all(a.epoch < b.epoch for a, b in pairwise(steps))
    for first in (1, len(feed.schedule) - 1, len(feed.schedule)):
        again = list(feed.steps_from(first))
        assert len(again) == len(steps) - first
        for left, right in zip(again, steps[first:], strict=True):
            assert (left.update, left.epoch) == (right.update, right.epoch)
            assert all(same(a, b) for a, b in zip(left.batches, right.batches, strict=True))


def test_the_thread_ends_when_the_loop_does(feed: StreamFeed, token_store: Path) -> None:
    network = fresh(vocab_size=Store.open(token_store).vocab_size, max_positions=64)
    loop = Loop(network, pretraining_objective(mlm=1.0, nsp=1.0), build_optimizer(network, OptimSettings()))

    def stop(result: StepResult) -> None:
        assert feeding()
        raise StopTraining

    with pytest.raises(StopTraining):
        loop.run(feed.steps_from(0), [stop])
    assert not feeding()


def test_what_goes_wrong_there_is_said_here(feed: StreamFeed) -> None:
    class Torn(Stream):
        def __getitem__(self, step: int) -> Batch:
            if step == 2:
                raise UserError("tokens-00000.bin: cannot be read")
            return super().__getitem__(step)

    feed.streams[0][1].__class__ = Torn
    steps = feed.steps_from(0)
    assert [next(steps).update.number, next(steps).update.number] == [0, 1]
    with pytest.raises(UserError, match="cannot be read"):
        next(steps)
    assert not feeding()


def gradients(store: Store, *batches: Batch) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    network = fresh(vocab_size=store.vocab_size)
    loop = Loop(network, pretraining_objective(mlm=1.0, nsp=1.0), build_optimizer(network, OptimSettings()))
    sums, counts = run_backward(loop, make_step(*batches))
    losses = {name: float(total) / counts[name] for name, total in sums.items()}
    return losses, {name: p.grad for name, p in network.named_parameters()}


def test_room_to_spare_changes_nothing(token_store: Path) -> None:
    reading = streams(token_store, fixed=True)
    shape = FixedShape(reading[0], reading[0].batch_tokens // 2)
    plain = [stream[3] for stream in reading]
    filled = [shape(batch) for batch in plain]
    assert all(f.labels.masked.numel() > p.labels.masked.numel() for f, p in zip(filled, plain, strict=True))
    assert all(f.labels.pairs.numel() > p.labels.pairs.numel() for f, p in zip(filled, plain, strict=True))
    left, right = gradients(reading[0].store, *plain), gradients(reading[0].store, *filled)
    assert left[0] == pytest.approx(right[0], rel=1e-6)
    for name, gradient in left[1].items():
        assert float((gradient - right[1][name]).norm()) <= 1e-6 * float(gradient.norm()) + 1e-9, name


def shape_of(batch: Batch) -> list[object]:
    return [tuple(value.shape) if isinstance(value, torch.Tensor) else value for value in batch.leaves()]


def test_the_shape_follows_from_the_batch_alone(token_store: Path) -> None:
    reading = streams(token_store, fixed=True)
    shape = FixedShape(reading[0], reading[0].batch_tokens // 2)
    raw = [stream[place] for place in range(30) for stream in reading]
    assert len({str(shape_of(batch)) for batch in raw}) > 10
    shapes = [shape(batch) for batch in raw]
    assert len({str(shape_of(batch)) for batch in shapes}) == 1
    again = FixedShape(reading[1], reading[1].batch_tokens // 2)
    assert same(again(raw[17]), shapes[17]), "whatever came before"
    for batch in shapes:
        assert batch.labels.masked.unique().numel() == batch.labels.masked.numel(), "no place is read twice"
    everything = torch.arange(raw[0].ids.numel())  # far more masks than usual
    crowded = shape(replace(raw[0], labels=PretrainingLabels(everything, raw[0].ids)))
    assert crowded.labels.masked.numel() == everything.numel()


def test_a_compiled_step_is_compiled_once(token_store: Path) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    reading = streams(token_store, fixed=True)
    shape = FixedShape(reading[0], reading[0].batch_tokens // 2)
    network = fresh(vocab_size=reading[0].store.vocab_size)
    objective = pretraining_objective(mlm=1.0, nsp=1.0)
    loop = Loop(network, objective, build_optimizer(network, OptimSettings(lr=0.0)))
    counter = CompileCounterWithBackend("eager")
    batches = [shape(stream[place]) for place in range(3) for stream in reading]
    plain = [loop.step(make_step(*batches[n : n + 2], lr=0.0)).loss for n in (0, 2, 4)]
    loop.compute = torch.compile(objective, dynamic=False, backend=counter)
    compiled = [loop.step(make_step(*batches[n : n + 2], lr=0.0)).loss for n in (0, 2, 4)]
    assert compiled == pytest.approx(plain, rel=1e-5)
    assert counter.frame_count == 1
    loop.step(make_step(reading[0][0], lr=0.0))
    assert counter.frame_count > 1, "what is not filled up is compiled anew"


def test_where_every_token_predicts_the_next_a_fixed_batch_reads_them_all(token_store: Path) -> None:
    stream = Stream(
        Store.open(token_store), format="stream", masking="next", batch_tokens=512, max_length=32, fixed=True
    )
    shape = FixedShape(stream, 512)
    for step in range(5):
        batch, filled = stream[step], shape(stream[step])
        assert filled.labels.masked.sort().values.tolist() == list(range(512))
        assert torch.equal(filled.labels.targets[: batch.labels.targets.numel()], batch.labels.targets)
        assert bool((filled.labels.targets[batch.labels.targets.numel() :] == -100).all())


def test_next_tokens_need_a_model_that_does_not_see_them(token_store: Path) -> None:
    always = (f"data.store='{token_store}'", "data.masking=next", "data.format=stream", "objective.nsp=0")
    for attention, refused in (("full", True), ("causal", False)):
        settings = recipe.load("bert-base-tiny", [*always, f"model.attention={attention}"])
        if refused:
            with pytest.raises(UserError, match=r"data\.masking: next: .*set model\.attention=causal"):
                build.build_model(settings, Store.open(token_store))
        else:
            assert axes_of(build.build_model(settings, Store.open(token_store))).attention == "causal"
    masked = recipe.load("bert-base-tiny", [*always[:1], "model.attention=causal"])
    assert build.build_model(masked, Store.open(token_store)).network.encoder.causal
