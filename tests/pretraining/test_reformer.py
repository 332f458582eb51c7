"""Learning with hashed attention: what is random follows from seed and step, and a task that needs it is learned."""

from argparse import Namespace

import pytest
import torch

from benchmarks import duplication
from bertree.config.sections import OptimSettings
from bertree.objectives.pretraining import pretraining_objective
from bertree.train.feed import StepBatches
from bertree.train.loop import Loop
from bertree.train.optimizer import build_optimizer
from bertree.train.strategies import CudaGraphRecorder
from tests.support.learnable import one_thread

pytestmark = pytest.mark.train

SMALL = Namespace(
    length=32, chunk=4, width=64, heads=2, steps=100, batch=16, lr=4e-3, seed=0, watch=10**6, device="cpu", count=64
)


def loss_of_a_step(seed: int, step: int) -> tuple[float, float]:
    """Loss and norm of the gradient of the same batch, as if it were that step of a run."""
    torch.manual_seed(0)
    network = duplication.build_model(SMALL, "1")
    objective = pretraining_objective(mlm=1.0)
    loop = Loop(network, objective, build_optimizer(network, OptimSettings()), clip=1.0, seed=seed)
    feed = duplication.DuplicationFeed(10, 1e-3, 8, SMALL.length, 0)
    result = loop.step(StepBatches(feed.schedule.updates[step], feed[0].batches, 0.0))
    return result.loss, result.norm


def test_the_same_seed_and_step_hash_alike_and_others_do_not() -> None:
    """There is no dropout: nothing but the hashes is random."""
    once = loss_of_a_step(0, 3)
    assert loss_of_a_step(0, 3) == once
    assert loss_of_a_step(0, 4) != once
    assert loss_of_a_step(1, 3) != once


def test_the_second_half_of_a_sequence_is_found_by_hashing() -> None:
    with one_thread():
        network = duplication.train(SMALL, "2")
        options = Namespace(**vars(SMALL), evaluated=("1", "2", "4"))
        accuracies = duplication.evaluate(options, network)
    assert accuracies["2"] > 0.9
    assert accuracies["4"] >= accuracies["1"], "more rounds find more"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("rounds", ["1", "4"])
def test_recorded_and_compiled_steps_are_those_of_the_loop_on_cuda(rounds: str) -> None:
    options = Namespace(**vars(SMALL) | {"length": 512, "chunk": 64, "device": "cuda"})
    losses = {}
    for name in ("eager", "recorded", "compiled"):
        torch.manual_seed(0)
        network, recorded = duplication.build_model(options, rounds), name == "recorded"
        loop = Loop(
            network,
            pretraining_objective(mlm=1.0),
            build_optimizer(network, OptimSettings(), capturable=recorded),
            bf16=True,
            compiled=name == "compiled",
            recorder=CudaGraphRecorder if recorded else None,
        )
        feed = duplication.DuplicationFeed(5, 1e-3, 8, options.length, 0)
        losses[name] = [loop.step(feed[number]).loss for number in range(5)]
    assert losses["recorded"] == pytest.approx(losses["eager"], abs=1e-4)
    assert losses["compiled"] == pytest.approx(losses["eager"], abs=1e-2)
