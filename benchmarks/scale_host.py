"""How long the host needs to launch a step, against how long the GPU needs to compute it: one device and FSDP2.

    python -m benchmarks.scale_host             # bert-base, 65,536 tokens, on a GPU
    python -m benchmarks.scale_host --rehearse  # tiny, on a CPU, to see that it runs

`groups of 3`: three layers are gathered together in place of each on its own. Steps are timed in turn, in rounds of
eight; `host` is the time until a step that begins on an idle GPU is launched, `alone` until it is computed.
"""

import argparse
import os
import time
from collections.abc import Callable

from torch import nn

from benchmarks.common import environment, synchronise, table
from benchmarks.scale_h200 import CASES, Trainer
from bertree.scale import shard
from bertree.scale.launch import Launch
from bertree.scale.world import World, join
from bertree.train.device import set_deterministic

Layers = Callable[[nn.Module], list[list[nn.Module]]]


def grouped(layers_of: Layers, size: int) -> Layers:
    """Return what gives so many layers as one."""

    def found(network: nn.Module) -> list[list[nn.Module]]:
        layers = layers_of(network)
        return [[block for layer in layers[at : at + size] for block in layer] for at in range(0, len(layers), size)]

    return found


def launch_times(trainer: Trainer) -> tuple[float, float]:
    """Return the seconds until a step is launched, and until it is computed: the median of three."""
    found = []
    for _ in range(3):
        synchronise()
        began = time.perf_counter()
        trainer.number += 1
        trainer.loop.step(trainer._step(trainer.number))
        launched = time.perf_counter() - began
        synchronise()
        found.append((launched, time.perf_counter() - began))
    return sorted(found)[1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true", help="a tiny model on a CPU")
    given = parser.parse_args()
    given.eager, given.profile = given.rehearse, False
    case = next(case for case in CASES if case.model == "bert-base")
    if given.rehearse:
        case = case._replace(tokens=512, length=64)
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    set_deterministic(True)
    layers_of = shard.layers_of
    with join(Launch(), zero=3, cuda=not given.rehearse) as world:
        trainers = {"one device": Trainer(case, given, World.alone())}
        for size in (1, 3):
            shard.layers_of = grouped(layers_of, size)  # type: ignore[assignment]
            trainers[f"FSDP2, groups of {size}"] = Trainer(case, given, world)
        for trainer in trainers.values():
            trainer.take(3)
        times: dict[str, list[float]] = {name: [] for name in trainers}
        for _ in range(4):
            for name, trainer in trainers.items():
                times[name].append(trainer.take(8) / 8)
        rows = []
        for name, trainer in trainers.items():
            steps = ", ".join(f"{1000 * seconds:.1f}" for seconds in times[name])
            rows.append([name, steps, *(f"{1000 * seconds:.1f}" for seconds in launch_times(trainer))])
    print(f"{environment()}\n\n{table(['', 'ms a step, four rounds', 'host', 'alone'], rows)}")


if __name__ == "__main__":
    main()
