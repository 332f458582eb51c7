"""Hashed attention against exact attention on the CPU: time and peak memory against length and rounds.

    python -m benchmarks.lsh --out rows.jsonl
    python -m benchmarks.lsh --lengths 1024 4096 --rounds 1 2 --backward

One sequence, causal, 4 heads of 64, chunks of 64 that see themselves and the one before, one thread. `flash` is
PyTorch's exact attention without a matrix of scores, `dense` the definition with one. Hashing and sorting are part of
the time of hashed attention. Times are the thread's CPU seconds, the least of several runs, so that other processes
count little. Each memory figure is the growth of the peak of a process of its own.
"""

import argparse
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.common import Results, argument_parser
from bertree.model.kernels.chunks.attend import attend_chunks
from bertree.model.kernels.chunks.order import (
    ChunkSettings,
    Rings,
    bucket_counts,
    bucket_order,
    draw_rotations,
    hash_buckets,
)

LONGEST_DENSE = 4096


def hashed(qk_tnd: Tensor, v_tnd: Tensor, rounds: int, settings: ChunkSettings) -> Tensor:
    """Return the mixed values, from queries on."""
    bounds = torch.tensor([0, len(qk_tnd)], dtype=torch.int32)
    counts = bucket_counts(bounds.diff(), len(qk_tnd), settings.length)
    rings = Rings.of(bounds, len(qk_tnd), settings, rounds)
    rotations = draw_rotations(qk_tnd.shape[1], qk_tnd.shape[2], rounds, counts.axes, qk_tnd)
    buckets_nrt = hash_buckets(qk_tnd, rotations, counts, rings.sequence_ids_t)
    order = bucket_order(rings, buckets_nrt, counts.most, settings.length)
    return attend_chunks(qk_tnd, None, v_tnd, order, settings)


def flash(qk_tnd: Tensor, v_tnd: Tensor) -> Tensor:
    """Return exact attention, without a matrix of scores."""
    q_ntd, v_ntd = qk_tnd.transpose(0, 1)[None], v_tnd.transpose(0, 1)[None]
    return scaled_dot_product_attention(q_ntd, q_ntd, v_ntd, is_causal=True)


def dense(qk_tnd: Tensor, v_tnd: Tensor) -> Tensor:
    """Return exact attention by its definition."""
    q_ntd, v_ntd = qk_tnd.transpose(0, 1), v_tnd.transpose(0, 1)
    scores_ntt = q_ntd @ q_ntd.transpose(1, 2) * q_ntd.shape[-1] ** -0.5
    ahead_tt = torch.ones(scores_ntt.shape[1:], dtype=torch.bool).triu(1)
    return scores_ntt.masked_fill_(ahead_tt, -math.inf).softmax(-1) @ v_ntd


def work(kind: str, length: int, options: argparse.Namespace) -> Callable[[], object]:
    """Return a run of `flash`, `dense` or so many rounds."""
    torch.manual_seed(0)
    shape = (length, options.heads, options.width)
    qk_tnd, v_tnd = (torch.randn(shape, requires_grad=options.backward) for _ in range(2))
    settings = ChunkSettings(options.chunk, 1, 0, causal=True, hides_self=True, counts_once=not options.each)

    def run() -> None:
        if kind == "flash":
            mixed = flash(qk_tnd, v_tnd)
        elif kind == "dense":
            mixed = dense(qk_tnd, v_tnd)
        else:
            mixed = hashed(qk_tnd, v_tnd, int(kind), settings)
        if options.backward:
            mixed.sum().backward()

    return run


def measure(kind: str, length: int) -> tuple[float, float]:
    """Return milliseconds and MiB, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.lsh", *sys.argv[1:], "--one", f"{kind}:{length}"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(printed[-2]), float(printed[-1])


def report_one(options: argparse.Namespace) -> None:
    """Print milliseconds and MiB of one case."""
    kind, length = options.one.split(":")
    work(kind, 2 * options.chunk, options)()  # what PyTorch allocates once
    run = work(kind, int(length), options)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    for _ in range(options.repeats):
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    print(1000 * min(times), (peak - before) / 1024)


def crossing(lengths: Sequence[int], exact: Sequence[float], hashed: Sequence[float]) -> str:
    """Return the length from which hashed attention is faster than exact attention, by interpolation."""
    ahead = [math.log(a / b) for a, b in zip(exact, hashed, strict=True)]
    if ahead[0] > 0:
        return f"below {lengths[0]:,}"
    for (short, long), (low, high) in zip(pairwise(lengths), pairwise(ahead), strict=True):
        if low <= 0 < high:
            return f"about {short * (long / short) ** (-low / (high - low)):,.0f}"
    return f"above {lengths[-1]:,}"


def main() -> None:
    """Measure every length."""
    parser = argument_parser(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backward", action="store_true", help="forward and backward")
    parser.add_argument("--each", action="store_true", help="keys count each time they are met")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        report_one(options)
        return
    results, passes = Results("lsh", options.out), "forward and backward" if options.backward else "forward"
    kinds = {"flash": "flash", "dense": "dense"} | {f"rounds_{count}": str(count) for count in options.rounds}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for length in options.lengths:
        figures: dict[str, float | str | None] = {"length": length}
        for name, kind in kinds.items():
            if kind != "dense" or length <= LONGEST_DENSE:
                figures[f"{name}_ms"], figures[f"{name}_mib"] = measured = measure(kind, length)
                times[name].append(measured[0])
        results.add(f"{passes}, {length:,}", **figures)
    results.print_table()
    for name in list(kinds)[2:]:
        print(f"{name} is faster than flash from: {crossing(options.lengths, times['flash'], times[name])}")


if __name__ == "__main__":
    main()
