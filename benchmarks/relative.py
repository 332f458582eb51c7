"""Relative attention on the CPU: our kernel, the plain formula, and PyTorch's attention with a bias; and the streams of
XLNet: our kernel, and the one that pads.

    python -m benchmarks.relative > benchmarks/relative_cpu_DATE.md

Causal attention of B sequences of L queries to L + M keys. Times are CPU time of one thread, the three in turn, because
other work on the machine then matters least. The formula is that of the authors of Transformer-XL: scores of all
pairs, shifted by padding and reshaping. Memory is the growth of the process in forward and backward, each in its own.

The content stream has all L queries, the query stream one in 6, at random places. Both have an order of the keys and
scores by segment.
"""

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.common import environment, table
from bertree.model.kernels import grouped_relative, padded
from bertree.model.kernels.layout import Layout, Ranks, RelativeScores, SegmentScores
from bertree.model.masks import Causal, Full

SIZES = ((4, 128, 128), (8, 128, 128), (4, 512, 512))
STREAM_SIZES = ((8, 128, 0), (8, 128, 128), (4, 512, 384))
KERNELS = {"padded": padded.attend, "ours": grouped_relative.attend}
HEADS, WIDTH = 8, 64
Size = tuple[int, int, int]


def bias(q: Tensor, v: Tensor, r: Tensor) -> Tensor:
    """Scores by distance of all pairs, -inf where a key is not seen (B x n x L x K); row i of r: distance K - 1 - i."""
    size, queries, heads, _ = q.shape
    scores = torch.einsum("bqnd,xnd->bnqx", q + v, r)
    padded = torch.cat([scores.new_zeros(*scores.shape[:-1], 1), scores], -1)
    shifted = padded.view(size, heads, -1, queries)[:, :, 1:].reshape(scores.shape)
    unseen = torch.ones(queries, len(r), dtype=torch.bool).triu(len(r) - queries + 1)
    return shifted.masked_fill(unseen, -torch.inf) * q.shape[-1] ** -0.5


def formula(q: Tensor, k: Tensor, v: Tensor, r: Tensor, bias_u: Tensor, bias_v: Tensor) -> Tensor:
    """The plain formula."""
    scores = torch.einsum("bqnd,bknd->bnqk", q + bias_u, k) * q.shape[-1] ** -0.5
    return torch.einsum("bnqk,bknd->bqnd", (scores + bias(q, bias_v, r)).softmax(-1), v)


def with_bias(q: Tensor, k: Tensor, v: Tensor, r: Tensor, bias_u: Tensor, bias_v: Tensor) -> Tensor:
    """PyTorch's attention, with the scores by distance as a mask."""
    q_bnqd, k_bnkd, v_bnkd = (x.transpose(1, 2) for x in (q + bias_u, k, v))
    return scaled_dot_product_attention(q_bnqd, k_bnkd, v_bnkd, attn_mask=bias(q, bias_v, r)).transpose(1, 2)


def ours(q: Tensor, k: Tensor, v: Tensor, r: Tensor, bias_u: Tensor, bias_v: Tensor) -> Tensor:
    """Our kernel."""
    cu_q, cu_k = (torch.arange(len(q) + 1, dtype=torch.int32) * x.shape[1] for x in (q, k))
    layout = Layout(cu_q, cu_k, q.shape[1], k.shape[1], Causal())
    relative = RelativeScores(r.flip(0), bias_u, bias_v, 0)
    q_tnd, k_tnd, v_tnd = (x.flatten(0, 1) for x in (q, k, v))
    return grouped_relative.attend(q_tnd, k_tnd, v_tnd, layout, 0.0, relative).view(q.shape)


WAYS: dict[str, Callable[..., Tensor]] = {"formula": formula, "SDPA + bias": with_bias, "ours": ours}


def inputs(size: Size) -> list[Tensor]:
    """Random queries, keys, values, distances and biases."""
    torch.manual_seed(0)
    count, queries, memory = size
    keys = queries + memory
    shapes = ((count, queries), (count, keys), (count, keys), (keys,), (), ())
    return [torch.randn(*shape, HEADS, WIDTH, requires_grad=True) for shape in shapes]


def train(way: str, given: list[Tensor]) -> list[Tensor]:
    """Forward and backward: the result and the gradients."""
    out = WAYS[way](*given)
    return [out.detach(), *torch.autograd.grad(out, given, torch.ones_like(out))]


def infer(way: str, given: list[Tensor]) -> None:
    """Forward."""
    with torch.no_grad():
        WAYS[way](*given)


def milliseconds(work: Callable[[str], object], ways: Iterable[str], repeats: int) -> dict[str, float]:
    """Median CPU time of each way."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(repeats + 1):
        for way in times:
            start = time.thread_time()
            work(way)
            if turn:  # the first is not counted
                times[way].append(time.thread_time() - start)
    return {way: 1000 * statistics.median(values) for way, values in times.items()}


def growth(way: str, size: Size) -> int:
    """Return how much the process grows in forward and backward, in MiB."""
    torch.set_num_threads(1)
    train(way, inputs((1, 16, 16)))  # what is loaded at the first call
    given = inputs(size)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is in use
    before = peak()
    train(way, given)
    return (peak() - before) // 1024


def peak() -> int:
    """Return the most memory that this process had, in KiB."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1))


def in_another_process(way: str, size: Size) -> int:
    """Return what `growth` returns in a process of its own."""
    code = f"from benchmarks.relative import growth; print(growth({way!r}, {size}))"
    return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


class Stream:
    """One of XLNet's two streams: random vectors, an order of the keys and segments."""

    def __init__(self, size: Size, one_in: int) -> None:
        """`one_in`: 1 for the content stream; a query for one token in so many otherwise."""
        draw = torch.Generator().manual_seed(0)
        count, tokens, memory = size
        keys, queries, predicted = tokens + memory, tokens // one_in, tokens // 6
        ranks = torch.full((count, keys), -1)
        ranks[:, memory:] = 0
        targets = torch.rand(count, tokens, generator=draw).topk(predicted).indices
        ranks.scatter_(1, memory + targets, 1 + torch.arange(predicted).expand(count, -1))
        places = memory + (targets.sort().values if one_in > 1 else torch.arange(tokens).expand(count, -1))
        segments = torch.randint(0, 3, (count, keys), generator=draw).sort().values
        bounds = ranks.gather(1, places) + (one_in == 1)
        cu_q, cu_k = (torch.arange(count + 1, dtype=torch.int32) * rows for rows in (queries, keys))
        order = Ranks(bounds.flatten().to(torch.int32), ranks.flatten().to(torch.int32))
        self.layout = Layout(cu_q, cu_k, queries, keys, Full(), order, places.flatten().to(torch.int32))
        self.segments = [x.flatten().to(torch.int32) for x in (segments.gather(1, places), segments)]
        self.lowest = 1 - keys
        shapes = ((count * queries,), (count * keys,), (count * keys,), (2 * keys - 1,), (), ())
        self.given = [torch.randn(*shape, HEADS, WIDTH, generator=draw).requires_grad_() for shape in shapes]
        self.given.append(torch.randn(count * queries, HEADS, generator=draw).requires_grad_())

    def train(self, kernel: str) -> list[Tensor]:
        """Forward and backward: the result and the gradients."""
        out = self._attend(kernel)
        return [out.detach(), *torch.autograd.grad(out, self.given, torch.ones_like(out))]

    def infer(self, kernel: str) -> None:
        """Forward."""
        with torch.no_grad():
            self._attend(kernel)

    def _attend(self, kernel: str) -> Tensor:
        q, k, v, r, bias_u, bias_v, apart = self.given
        relative = RelativeScores(r, bias_u, bias_v, self.lowest, SegmentScores(apart, *self.segments))
        return KERNELS[kernel](q, k, v, self.layout, 0.0, relative)


def stream_rows() -> list[list[object]]:
    """Measure the two streams."""
    rows: list[list[object]] = []
    for size in STREAM_SIZES:
        for name, one_in in (("content", 1), ("query", 6)):
            stream = Stream(size, one_in)
            both_ways = zip(stream.train("ours"), stream.train("padded"), strict=True)
            error = max(float((one - other).abs().max() / other.abs().max()) for one, other in both_ways)
            repeats = 9 if size[1] < 500 else 3
            forward, both = (milliseconds(work, KERNELS, repeats) for work in (stream.infer, stream.train))
            cells = [f"{forward[kernel]:.0f} / {both[kernel]:.0f}" for kernel in KERNELS]
            faster = f"{both['padded'] / both['ours']:.2f}"
            rows.append(["{}, {}, {}".format(*size), name, *cells, faster, f"{error:.0e}"])
    return rows


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    rows = []
    for size in SIZES:
        given = inputs(size)
        expected = train("formula", given)
        error = max(
            float((one - other).abs().max() / other.abs().max())
            for one, other in zip(train("ours", given), expected, strict=True)
        )
        repeats = 9 if size[1] < 500 else 3
        forward, both = (milliseconds(partial(work, given=given), WAYS, repeats) for work in (infer, train))
        grown = {way: in_another_process(way, size) for way in WAYS}
        cells = [f"{forward[way]:.0f} / {both[way]:.0f} / {grown[way]}" for way in WAYS]
        rows.append(["{}, {}, {}".format(*size), *cells, f"{both['formula'] / both['ours']:.2f}", f"{error:.0e}"])
    print("# Relative attention on the CPU\n")
    print(f"{environment()}. {HEADS} heads of {WIDTH}, float32, one thread.")
    print("Forward ms / forward and backward ms / MiB. `python -m benchmarks.relative`\n")
    print(table(("B, L, M", *WAYS, "formula : ours, training", "largest relative difference"), rows))
    print("\n## The two streams of XLNet\n")
    print("Forward ms / forward and backward ms.\n")
    heads = ("B, L, M", "stream", *KERNELS, "padded : ours, training", "largest relative difference")
    print(table(heads, stream_rows()))


if __name__ == "__main__":
    main()
