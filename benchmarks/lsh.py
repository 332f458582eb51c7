"""Hashed attention against exact attention on the CPU: time and peak memory against length and rounds.

    python -m benchmarks.lsh --out lsh.md
    python -m benchmarks.lsh --lengths 1024,4096 --rounds 1,2 --backward

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
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.common import environment, table
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


def work(kind: str, length: int, given: argparse.Namespace) -> Callable[[], object]:
    """Return a run of `flash`, `dense` or so many rounds."""
    torch.manual_seed(0)
    shape = (length, given.heads, given.width)
    qk_tnd, v_tnd = (torch.randn(shape, requires_grad=given.backward) for _ in range(2))
    settings = ChunkSettings(given.chunk, 1, 0, causal=True, hides_self=True, counts_once=not given.each)

    def run() -> None:
        if kind == "flash":
            mixed = flash(qk_tnd, v_tnd)
        elif kind == "dense":
            mixed = dense(qk_tnd, v_tnd)
        else:
            mixed = hashed(qk_tnd, v_tnd, int(kind), settings)
        if given.backward:
            mixed.sum().backward()

    return run


def measure(kind: str, length: int, given: argparse.Namespace) -> tuple[float, float]:
    """Return milliseconds and MiB, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.lsh", *sys.argv[1:], "--one", f"{kind}:{length}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(found[-2]), float(found[-1])


def report_one(given: argparse.Namespace) -> None:
    """Print milliseconds and MiB of one case."""
    kind, length = given.one.split(":")
    work(kind, 2 * given.chunk, given)()  # what PyTorch allocates once
    run = work(kind, int(length), given)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    for _ in range(given.repeats):
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    print(1000 * min(times), (peak - before) / 1024)


def crossing(lengths: Sequence[int], exact: Sequence[float], other: Sequence[float]) -> str:
    """Return the length from which the other is faster than exact attention, between those that were measured."""
    ahead = [math.log(a / b) for a, b in zip(exact, other, strict=True)]
    if ahead[0] > 0:
        return f"below {lengths[0]:,}"
    for (short, long), (low, high) in zip(pairwise(lengths), pairwise(ahead), strict=True):
        if low <= 0 < high:
            return f"about {short * (long / short) ** (-low / (high - low)):,.0f}"
    return f"above {lengths[-1]:,}"


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384")
    parser.add_argument("--rounds", default="1,2,4,8")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backward", action="store_true", help="forward and backward")
    parser.add_argument("--each", action="store_true", help="keys count each time they are met")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.one:
        report_one(given)
        return
    lengths = [int(length) for length in given.lengths.split(",")]
    kinds = ["flash", "dense", *given.rounds.split(",")]
    found = {
        (kind, length): measure(kind, length, given)
        for length in lengths
        for kind in kinds
        if kind != "dense" or length <= LONGEST_DENSE
    }
    rows = [[f"{length:,}", *(_cell(found.get((kind, length))) for kind in kinds)] for length in lengths]
    exact = [found["flash", length][0] for length in lengths]
    times = {kind: [found[kind, length][0] for length in lengths] for kind in kinds[2:]}
    rows.append(["faster than flash", "", "", *(crossing(lengths, exact, times[kind]) for kind in kinds[2:])])
    names = ["flash", "dense", *(f"{kind} rounds" for kind in kinds[2:])]
    passes = "forward and backward" if given.backward else "forward"
    text = f"{environment()}\n\n{passes}, ms / MiB\n\n{table(['tokens', *names], rows)}\n"
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    print(text)


def _cell(figures: tuple[float, float] | None) -> str:
    return "-" if figures is None else f"{figures[0]:,.0f} / {figures[1]:,.0f}"


if __name__ == "__main__":
    main()
