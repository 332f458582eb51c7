"""Where the time of a recipe's training step goes on a GPU: by kind of kernel, and how long the GPU waits.

    python -m benchmarks.step_profile best-30min --store STORE
    python -m benchmarks.step_profile best-30min --store STORE --rows "" optim.name=adamw attention=full --phase 2

Every row is the recipe with changes, separated by spaces (none: ""). Its steps are timed without the profiler, then
some are profiled: the table has the milliseconds of a step, those in which kernels ran, and the kernels by kind. --out
gets the longest kernels by name.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import environment, synchronize, table
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", default=[""], metavar="KEY=VALUE", help="changes of each row")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes of all rows")
    parser.add_argument("--phase", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20, help="that are timed")
    parser.add_argument("--out", type=Path, help="a JSON line for each row")
    given = parser.parse_args()
    set_deterministic(True)
    found = []
    for row in given.rows:
        torch._dynamo.reset()
        found.append({"row": row or "as it is"} | measured(given, row.split()))
        print(json.dumps(found[-1] | {"kernels": None}), flush=True)
        if given.out:
            given.out.write_text("".join(json.dumps(line) + "\n" for line in found), encoding="utf-8")
    print(f"{environment()}; {given.recipe} {' '.join(given.set)}, phase {given.phase}\n\n{report(found)}")


def measured(given: argparse.Namespace, changes: list[str]) -> dict[str, Any]:
    """Return the times of a row's steps."""
    began = time.perf_counter()
    recipe = recipes.load(
        given.recipe,
        [*given.set, *changes, f"data.store={json.dumps(str(given.store))}", "schedule.warmup=1"],
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
    first = sum(phase.steps for phase in recipe.phases[: given.phase])
    steps = [feed[first + number] for number in range(WARM + given.steps + PROFILED)]
    tokens = sum(batch.ids.numel() for batch in steps[WARM].batches)
    loop.run(iter(steps[:WARM]), ())
    synchronize()
    started, at = time.perf_counter() - began, time.perf_counter()
    loop.run(iter(steps[WARM : WARM + given.steps]), ())
    synchronize()
    seconds = (time.perf_counter() - at) / given.steps
    activity = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        loop.run(iter(steps[WARM + given.steps :]), ())
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
    return {
        "ms": 1000 * seconds,
        "tokens_per_second": round(tokens / seconds),
        "start_seconds": round(started, 1),
        "busy_ms": sum(ms for _, ms, _ in kernels),
        "launches": sum(count for _, _, count in kernels) // PROFILED,
        "kinds": kinds,
        "kernels": [[name[:150], round(ms, 3), count // PROFILED] for name, ms, count in kernels[:NAMED]],
    }


def kind_of(name: str) -> str:
    """Return the kind of a kernel."""
    lower = name.lower()
    for kind, parts in KINDS.items():
        if any(part in lower for part in parts) and not (kind == "attention" and lower.startswith("triton_")):
            return kind
    return "other"


def report(found: list[dict[str, Any]]) -> str:
    """Return the table."""
    head = ["row", "tokens/s", "ms a step", "kernels", *KINDS, "other", "launches", "start, s"]
    lines = []
    for row in found:
        parts = [f"{ms:.1f}" for ms in row["kinds"].values()]
        cells = [f"{row['tokens_per_second']:,}", f"{row['ms']:.1f}", f"{row['busy_ms']:.1f}", *parts]
        lines.append([row["row"], *cells, row["launches"], row["start_seconds"]])
    return table(head, lines)


if __name__ == "__main__":
    main()
