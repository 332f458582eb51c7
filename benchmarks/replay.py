"""Fine-tuning steps recorded as CUDA graphs against the same steps taken one by one: time, and whether bytes differ.

    python -m benchmarks.replay            # needs a GPU

Random tokens in sequences of drawn lengths, 32 units a step, a 6 x 384 BERT in bf16 with dropout 0.1, AdamW and
clipping, deterministic; milliseconds a step over the second half of 200 steps, recording included where it happens.
"""

import time

import numpy as np
import torch

from benchmarks.common import environment, table
from bertree.config.sections import OptimSettings, Phase, ScheduleSettings
from bertree.finetuning.feed import ShapeBuckets, UnitFeed
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.objectives.supervised import supervised_objective
from bertree.tasks.task import Unit
from bertree.text.tokenizer import Encoded
from bertree.train.device import set_deterministic
from bertree.train.loop import Loop, StepResult
from bertree.train.optim import build_optimizer
from bertree.train.schedule import TrainingPlan
from bertree.train.steps.cuda_graph import CudaGraphLaunch
from bertree.train.steps.eager import EagerLaunch

STEPS, SIZE, OPTIONS = 200, 32, 4
CASES = {"sequence": (27, 70, 2), "token": (25, 120, 9), "span": (180, 384, 2), "choice": (60, 128, 1)}


def drawn(head: str, count: int, mean: int, longest: int) -> list[Unit]:
    """Units of random tokens, lengths from a gamma distribution."""
    draw = np.random.default_rng(0)
    units = []
    for number in range(count):
        lengths = np.clip(draw.gamma(4, mean / 4, OPTIONS if head == "choice" else 1), 5, longest).astype(int)
        sequences = tuple(Encoded(draw.integers(5, 30000, length).tolist(), None, 0) for length in lengths)
        length = int(lengths[0])
        if head == "token":
            chosen = list(range(1, length - 1, 2))
            units.append(Unit(number, sequences, chosen, draw.integers(0, 9, len(chosen)).tolist()))
        elif head == "span":
            chosen = [0, *range(length // 2, length - 1)]
            units.append(Unit(number, sequences, chosen, (1, min(3, len(chosen) - 1))))
        else:
            units.append(Unit(number, sequences, None, int(draw.integers(OPTIONS if head == "choice" else 2))))
    return units


def run(head: str, recorded: bool) -> tuple[torch.Tensor, float, int]:
    """Weights at the end, seconds a step, recordings."""
    mean, longest, classes = CASES[head]
    shape = {"layers": 6, "width": 384, "ffn_width": 1536, "attention_dropout": 0.0}
    torch.manual_seed(0)
    network = build(preset("bert-base").architecture.with_values(shape), {head: classes}).cuda()
    optimizer = build_optimizer(network, OptimSettings(lr=1e-4), capturable=recorded)
    launch = CudaGraphLaunch if recorded else EagerLaunch
    loop = Loop(network, supervised_objective(head), optimizer, clip=1.0, bf16=True, launch=launch)
    plan = TrainingPlan([Phase(steps=STEPS)], ScheduleSettings(warmup=20), 1e-4)
    shapes = ShapeBuckets(head, SIZE, OPTIONS if head == "choice" else 1)
    feed = UnitFeed(plan, drawn(head, 50 * SIZE, mean, longest), SIZE, head, shapes=shapes)
    times: list[float] = []

    def watch(result: StepResult) -> None:
        if result.step in (STEPS // 2, STEPS):
            torch.cuda.synchronize()
            times.append(time.perf_counter())

    loop.run(feed.steps_from(0), [watch])
    weights = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    return weights, (times[1] - times[0]) / (STEPS // 2), len(getattr(loop.launch, "recordings", ()))


def main() -> None:
    """All heads."""
    set_deterministic(True)
    rows = []
    for head in CASES:
        plain, slow, _ = run(head, recorded=False)
        replayed, fast, shapes = run(head, recorded=True)
        same = "the same" if torch.equal(plain, replayed) else "differ"
        rows.append([head, f"{1000 * slow:.1f}", f"{1000 * fast:.1f}", f"{slow / fast:.1f}", shapes, same])
    print(environment())
    print()
    print(table(["head", "ms, one by one", "ms, replayed", "faster", "shapes", "bytes"], rows))


if __name__ == "__main__":
    main()
