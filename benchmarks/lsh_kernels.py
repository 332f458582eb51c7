"""Attention over chunks alone: hashing, the line of slots, forward and backward, against exact causal attention.

    python -m benchmarks.lsh_kernels --device cuda --out lsh_kernels.md
    python -m benchmarks.lsh_kernels --device cuda --tune        # tiles, warps and stages of each kernel
    python -m benchmarks.lsh_kernels --length 256 --tokens 512 --heads 2 --width 16 --repeats 1

Exact attention is what the table of kernels chooses: flash attention (varlen) on a GPU in bf16. Both are causal. Hashed
attention shares queries and keys, with chunks of 64 that see themselves and the one before.
"""

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.common import environment, medians, table
from bertree.batch import Batch
from bertree.model.kernels.chunks import triton_attend
from bertree.model.kernels.chunks.attend import attend_chunks
from bertree.model.kernels.chunks.order import (
    BucketCounts,
    ChunkOrder,
    ChunkSettings,
    Rings,
    bucket_counts,
    bucket_order,
    draw_rotations,
    hash_buckets,
)
from bertree.model.kernels.layout import Layout
from bertree.model.kernels.table import attend, case_of, choose
from bertree.model.masks import Causal

TILES, WARPS, STAGES = ((32, 32), (32, 64), (64, 32), (64, 64), (64, 128), (128, 64)), (4, 8), (1, 2)
REGISTERS = (None, 168, 128)


class Hashed:
    """Hashed attention of random queries and values, part by part."""

    def __init__(self, given: argparse.Namespace, rounds: int) -> None:
        self.batch = Batch.pack([[1] * given.length] * (given.tokens // given.length)).to(given.device)
        kind = torch.bfloat16 if given.device == "cuda" else torch.float32
        shape = (given.tokens, 2, given.heads, given.width)
        self.qv = torch.randn(shape, device=given.device, dtype=kind, requires_grad=True)
        self.grad = torch.randn(given.tokens, given.heads, given.width, device=given.device, dtype=kind)
        self.settings = ChunkSettings(given.chunk, 1, 0, causal=True, hides_self=True)
        self.rings = Rings.of(self.batch.cu_seqlens, given.tokens, self.settings, rounds)
        lengths_s = self.batch.cu_seqlens.diff()
        self.counts: BucketCounts = bucket_counts(lengths_s, given.length, given.chunk)
        self.rotations = draw_rotations(given.heads, given.width, rounds, self.counts.axes, self.qv)
        self.buckets_nrt = self.hash()
        self.order = self.line()
        self.out = self.attend()

    def hash(self) -> Tensor:
        """Return the buckets."""
        return hash_buckets(self.qv[:, 0].detach(), self.rotations, self.counts, self.rings.sequence_ids_t)

    def line(self) -> ChunkOrder:
        """Sort."""
        return bucket_order(self.rings, self.buckets_nrt, self.counts.most, self.settings.length)

    def attend(self) -> Tensor:
        """Return the mixed values."""
        qk_tnd, v_tnd = self.qv.unbind(1)
        return attend_chunks(qk_tnd, None, v_tnd, self.order, self.settings)

    def backward(self) -> None:
        """Compute the gradients."""
        torch.autograd.grad(self.out, self.qv, self.grad, retain_graph=True)

    def parts(self) -> dict[str, Callable[[], object]]:
        """Return what is timed."""
        return {"hash": self.hash, "sort": self.line, "forward": self.attend, "backward": self.backward}


class Exact:
    """Exact causal attention of random queries, keys and values."""

    def __init__(self, given: argparse.Namespace) -> None:
        batch = Batch.pack([[1] * given.length] * (given.tokens // given.length)).to(given.device)
        kind = torch.bfloat16 if given.device == "cuda" else torch.float32
        shape = (given.tokens, 3, given.heads, given.width)
        self.qkv = torch.randn(shape, device=given.device, dtype=kind, requires_grad=True)
        self.grad = torch.randn(given.tokens, given.heads, given.width, device=given.device, dtype=kind)
        self.layout = Layout.of(batch, Causal())
        self.name = choose(case_of(self.qkv, self.layout, 0.0)).name
        self.out = self.attend()

    def attend(self) -> Tensor:
        """Return the mixed values."""
        q_tnd, k_tnd, v_tnd = self.qkv.unbind(1)
        return attend(q_tnd, k_tnd, v_tnd, self.layout)

    def backward(self) -> None:
        """Compute the gradients."""
        torch.autograd.grad(self.out, self.qkv, self.grad, retain_graph=True)

    def parts(self) -> dict[str, Callable[[], object]]:
        """Return what is timed."""
        return {"forward": self.attend, "backward": self.backward}


def compare(given: argparse.Namespace) -> str:
    """Return the table of all sides."""
    columns, rows, whole = ("hash", "sort", "forward", "backward"), [], []
    exact = Exact(given)
    sides: dict[str, Exact | Hashed] = {f"exact ({exact.name})": exact}
    sides |= {f"lsh, {rounds} rounds": Hashed(given, rounds) for rounds in given.rounds}
    for name, side in sides.items():
        times = {part: 1000 * seconds for part, seconds in medians(side.parts(), given.repeats).items()}
        whole.append(sum(times.values()))
        cells = [f"{times[part]:.3f}" if part in times else "" for part in columns]
        rows.append([name, *cells, f"{whole[-1]:.3f}", f"{whole[0] / whole[-1]:.2f}"])
    return table(["milliseconds", *columns, "all", "times as fast as exact"], rows)


def tune(given: argparse.Namespace) -> str:
    """Return the fastest settings of each kernel, and those that are in use."""
    rows = []
    for rounds in given.rounds:
        side = Hashed(given, rounds)
        for name, work in (("FORWARD", side.attend), ("QUERIES", side.backward), ("KEYS", side.backward)):
            tuned, found = getattr(triton_attend, name), []
            used = tuned[given.width > 64]
            for tile, warps, stages, registers in itertools.product(TILES, WARPS, STAGES, REGISTERS):
                setting = (*tile, warps, stages, registers)
                tuned[given.width > 64] = setting
                try:
                    seconds = medians({name: work}, given.repeats)[name]
                except Exception as error:  # shared memory or registers do not suffice
                    print(name, *setting, type(error).__name__, flush=True)
                    continue
                found.append((seconds, setting))
            tuned[given.width > 64] = used
            now = medians({name: work}, given.repeats)[name]
            found.sort(key=lambda one: one[0])
            best = ", ".join(f"{setting}: {1000 * seconds:.3f}" for seconds, setting in found[:3])
            rows.append([rounds, name, f"{used}: {1000 * now:.3f}", best])
            print(*rows[-1], flush=True)
    return table(["rounds", "kernel", "in use, ms", "fastest (queries, keys, warps, stages, registers), ms"], rows)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--tune", action="store_true", help="try other settings of the kernels (needs CUDA)")
    parser.add_argument("--out", type=Path, help="write the table there too")
    given = parser.parse_args()
    case = f"{given.tokens:,} tokens in sequences of {given.length:,}, {given.heads} heads of {given.width}"
    text = f"{environment()}; {case}, chunks of {given.chunk}\n\n{tune(given) if given.tune else compare(given)}"
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
