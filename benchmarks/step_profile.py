"""Where the time of a recipe's training step goes on a GPU: by kind of kernel, and how long the GPU waits.

    python -m benchmarks.step_profile best-30min --store STORE
    python -m benchmarks.step_profile best-30min --store STORE --rows "" optim.name=adamw attention=full --phase 2

Every row is the recipe with changes, separated by spaces (none: ""). Its steps are timed without the profiler, then
some are profiled: milliseconds of a step, those in which kernels ran, and the kernels by kind. The longest kernels are
printed by name.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import Results, argument_parser, synchronize
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import build
from bertree.pretraining import recipe as recipes
from bertree.train.device_setup import DeviceSetup, set_deterministic
from bertree.train.loop import Loop
from bertree.train.optimizer import build_optimizer
from bertree.train.schedule import TrainingSchedule

WARM, PROFILED, NAMED = 5, 3, 40
# Kinds by parts of a kernel's name, the first that fits.
KINDS = {
    "attention": ("flash", "fmha", "attention", "_forward", "_backward", "varlen", "_queries", "_keys"),
    "matrix products": ("gemm", "nvjet", "cutlass", "cublas", "xmma", "splitk"),
    "optimizer": ("multi_tensor", "foreach", "adam"),
    "compiled": ("triton_",),
    "copies": ("memcpy", "memset", "copy"),
}


def main() -> None:
    """Print the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", default=[""], metavar="KEY=VALUE", help="changes of each row")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes of all rows")
    parser.add_argument("--phase", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20, help="that are timed")
    options = parser.parse_args()
    set_deterministic(True)
    note = f"{options.recipe} {' '.join(options.set)}, phase {options.phase}"
    results = Results("step-profile", options.out, note=note)
    for row in options.rows:
        torch._dynamo.reset()
        figures, kernels = measured(options, row.split())
        results.add(f"{options.recipe} {row}".strip(), **figures)
        for name, milliseconds, launches in kernels[:NAMED]:
            print(f"{milliseconds:8.3f} ms {launches // PROFILED:5} {name[:110]}")
    results.print_table()


def measured(options: argparse.Namespace, changes: list[str]) -> tuple[dict[str, float], list[tuple[str, float, int]]]:
    """Return the times of a row's steps, and of its kernels by name."""
    began = time.perf_counter()
    recipe = recipes.load(
        options.recipe,
        [*options.set, *changes, f"data.store={json.dumps(str(options.store))}", "schedule.warmup=1"],
    )
    train, _ = build.open_stores(recipe.data)
    machine = DeviceSetup.from_settings(recipe.run)
    contents = build.build_model(recipe, train)
    contents.network.to(machine.device)
    schedule = TrainingSchedule(recipe.phases, recipe.schedule, recipe.optim.lr)
    feed = build.build_feed(recipe, schedule, train, machine, contents.architecture)
    loop = Loop(
        contents.network,
        pretraining_objective(**recipe.objective),
        build_optimizer(contents.network, recipe.optim),
        clip=recipe.optim.clip,
        bf16=machine.bf16,
        compiled=machine.compiled,
    )
    first = sum(phase.steps for phase in recipe.phases[: options.phase])
    steps = [feed[first + number] for number in range(WARM + options.steps + PROFILED)]
    tokens = sum(batch.ids.numel() for batch in steps[WARM].batches)
    loop.run(iter(steps[:WARM]), ())
    synchronize()
    started, at = time.perf_counter() - began, time.perf_counter()
    loop.run(iter(steps[WARM : WARM + options.steps]), ())
    synchronize()
    seconds = (time.perf_counter() - at) / options.steps
    activity = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        loop.run(iter(steps[WARM + options.steps :]), ())
        synchronize()
    gpu = torch.cuda.is_available()
    kernels = [
        (event.key, (event.self_device_time_total if gpu else event.self_cpu_time_total) / PROFILED / 1000, event.count)
        for event in profiler.key_averages()
    ]
    kernels = sorted((kernel for kernel in kernels if kernel[1]), key=lambda kernel: -kernel[1])
    kinds: dict[str, float] = dict.fromkeys([*KINDS, "other"], 0.0)
    for name, ms, _ in kernels:
        kinds[kind_of(name)] += ms
    figures = {
        "tokens_per_second": round(tokens / seconds),
        "step_ms": 1000 * seconds,
        "kernels_ms": sum(ms for _, ms, _ in kernels),
        **{f"{kind.replace(' ', '_')}_ms": ms for kind, ms in kinds.items()},
        "launches": sum(count for _, _, count in kernels) // PROFILED,
        "start_seconds": round(started, 1),
    }
    return figures, kernels


def kind_of(name: str) -> str:
    """Return the kind of a kernel."""
    lower = name.lower()
    for kind, parts in KINDS.items():
        if any(part in lower for part in parts) and not (kind == "attention" and lower.startswith("triton_")):
            return kind
    return "other"


if __name__ == "__main__":
    main()
