"""Training speed on the CPU by number of threads, quiet and crowded; beside them what `choose_threads` takes.

python -m benchmarks.threads --threads 1 2 4 --busy 0 4 --out benchmarks/results/threads.jsonl

`--busy N` starts N processes that compute all the time, as other users of the machine would.
"""

import multiprocessing
import time
from collections.abc import Sequence

import torch

from benchmarks.common import Results, argument_parser
from bertree.batch import Batch
from bertree.engines.local import available_cores, busy_cores
from bertree.inference.load import random_model
from bertree.model.presets import preset
from bertree.train.device_setup import choose_threads

MODELS = ("bert-tiny", "bert-mini", "bert-small")
SEQUENCES, LENGTH = 32, 64


def main() -> None:
    """Measure every model with every number of threads and of busy processes."""
    parser = argument_parser(__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--busy", nargs="+", type=int, default=[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    results = Results("threads", options.out)
    for busy in options.busy:
        others = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(busy)]
        for process in others:
            process.start()
        for name in options.models:
            results.add(f"{name}, {busy} busy processes", **measure(name, options.threads, options.seconds))
        for process in others:
            process.terminate()
    results.print_table()


def measure(name: str, threads: Sequence[int], seconds: float) -> dict[str, float]:
    """Return the tokens per second of training steps with each number of threads, in turns, the median of three."""
    a = preset(name).architecture
    model = random_model(a, {"sequence": 2})
    ids = torch.randint(5, a.vocab_size, (SEQUENCES, LENGTH)).tolist()
    batch = Batch.pack(ids)
    optimizer = torch.optim.AdamW(model.network.parameters(), 1e-4)
    model.train()
    cores, in_use = available_cores(), busy_cores()
    speeds: dict[int, list[float]] = {count: [] for count in threads}
    for _ in range(3):
        for count in threads:
            torch.set_num_threads(count)
            began, steps = time.perf_counter(), 0
            while time.perf_counter() - began < seconds / 3 or not steps:
                states = model.network(batch)
                model.network.class_logits("sequence", states, batch).logsumexp(1).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
            speeds[count].append(steps * SEQUENCES * LENGTH / (time.perf_counter() - began))
    return {
        "width": a.width,
        "cores": cores,
        "busy_cores": round(in_use, 2),
        **{f"tokens_per_s_{count}": sorted(values)[1] for count, values in speeds.items()},
        "chosen": choose_threads(cores, in_use, a.width),
    }


def _compute() -> None:
    torch.set_num_threads(1)
    a = torch.randn(256, 256)
    while True:
        a = (a @ a).tanh()


if __name__ == "__main__":
    main()
