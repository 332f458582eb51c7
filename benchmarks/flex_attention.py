"""FlexAttention against our attention kernels on a GPU: time, memory, differences and recompilations.

    python -m benchmarks.flex_attention --out flex_attention.jsonl     # an NVIDIA GPU, about three minutes
    python -m benchmarks.flex_attention --device cpu                   # dry run: tiny sizes, FlexAttention uncompiled

One JSON object per line. `kind` "kernel": one implementation of one case: milliseconds of the forward pass, and of
forward and backward together (medians, CUDA events), peak memory above the inputs, seconds of the first call
(compilation), and the largest absolute and relative (norm) difference from the plain implementation in float32,
for the output and for each gradient. `kind` "ratio": time of FlexAttention divided by ours. `kind` "mask": time to
build the block mask, once per batch. `kind` "shapes": batches of varying sizes, with the number of compilations.

What FlexAttention cannot express:

- A `score_mod` changes a score by scalars; it cannot multiply vectors. The distance term of Transformer-XL, (q + v) r,
  therefore needs a table of all queries and distances (heads x tokens x distances) in memory, in both directions.
- The gradient of that table is summed with atomic additions: it is deterministic only where each cell gets one term,
  which scores by segment do not.
- A block mask is a value of (queries / 128) x (keys / 128) cells that the data must build for each batch; our kernels
  read the sequence boundaries.
"""

import argparse
import json
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from benchmarks.common import environment
from bertree.model.kernels.layout import Layout, Ranks, RelativeScores, SegmentScores
from bertree.model.kernels.padded import attend as attend_plainly
from bertree.model.kernels.table import KERNELS, attend_fused, case_of, choose
from bertree.model.masks import Causal, Full, Mask, SlidingWindow

ON_GPU = {"tokens": 32768, "relative_tokens": 16384, "shrink": 1, "dtype": torch.bfloat16, "repeats": 15}
DRY = {"tokens": 512, "relative_tokens": 256, "shrink": 8, "dtype": torch.float32, "repeats": 2}
VARYING = (9000, 8192, 10007, 7211, 8999, 12001)  # tokens of batches that follow each other


@dataclass(frozen=True, kw_only=True)
class Case:
    """The shape of one call of attention."""

    name: str
    longest: int
    full: bool  # all sequences are of the longest length; otherwise ragged ones, 47 % of it on average
    mask: Mask = field(default_factory=Full)
    heads: int = 12
    width: int = 64
    memory: int = -1  # keys before the first query of each sequence; -1: keys are the queries' tokens
    relative: bool = False  # scores by distance
    ordered: bool = False  # the order of the keys and the segments of XLNet's content stream


TRANSFORMER_XL: dict[str, Any] = {"mask": Causal(), "heads": 10, "width": 41, "memory": 512, "relative": True}
CASES = (
    Case(name="bert-128-full", longest=128, full=True),
    Case(name="bert-128-ragged", longest=128, full=False),
    Case(name="bert-512-full", longest=512, full=True),
    Case(name="bert-512-ragged", longest=512, full=False),
    Case(name="window-512-ragged", longest=512, full=False, mask=SlidingWindow(64, 64)),
    Case(name="window-2048-full", longest=2048, full=True, mask=SlidingWindow(64, 64)),
    Case(name="xlnet-512-full", longest=512, full=True, relative=True),
    Case(name="xlnet-512-ragged", longest=512, full=False, relative=True),
    Case(name="xlnet-512-ragged-ordered", longest=512, full=False, relative=True, ordered=True),
    Case(name="txl-512-full", longest=512, full=True, **TRANSFORMER_XL),
    Case(name="txl-512-ragged", longest=512, full=False, **TRANSFORMER_XL),
)


def lengths_of(tokens: int, longest: int, full: bool) -> list[int]:
    """Full sequences, or ragged ones of 47 % on average."""
    draw = torch.Generator().manual_seed(0)
    lengths: list[int] = []
    while (left := tokens - sum(lengths)) > 0:
        wanted = longest if full else int(torch.randint(3, max(4, round(0.94 * longest)), (1,), generator=draw))
        lengths.append(min(wanted, left))
    return lengths


class Problem:
    """The inputs of a case, on the device: packed streams, boundaries, tables; leaves that need gradients."""

    def __init__(self, case: Case, size: dict[str, Any], device: str, tokens: int = 0) -> None:
        draw = torch.Generator().manual_seed(1)
        shrink = size["shrink"]
        tokens = tokens or size["relative_tokens" if case.relative else "tokens"]
        longest = max(4, case.longest // shrink)
        memory = case.memory // shrink if case.memory >= 0 else 0
        mask = SlidingWindow(64 // shrink, 64 // shrink) if isinstance(case.mask, SlidingWindow) else case.mask
        lengths = torch.tensor(lengths_of(tokens, longest, case.full))
        keys = lengths + memory
        self.case, self.device, self.dtype = case, device, size["dtype"]
        self.positions_q = torch.cat([torch.arange(n) for n in lengths.tolist()]) + memory
        self.positions_k = torch.cat([torch.arange(n) for n in keys.tolist()])
        sequences = torch.arange(len(lengths))
        self.documents_q, self.documents_k = sequences.repeat_interleave(lengths), sequences.repeat_interleave(keys)
        cu_q, cu_k = (torch.cat([x.new_zeros(1), x.cumsum(0)]).to(device, torch.int32) for x in (lengths, keys))
        cu_k = cu_q if case.memory < 0 else cu_k
        ranks = None
        if case.ordered:  # as XLNet: one token in six is predicted, in random order, and sees those predicted before it
            drawn = torch.rand(len(self.documents_k), generator=draw)
            rank = torch.where(drawn < 1 / 6, 1 + (drawn * 6 * longest / 6).long(), 0).to(device, torch.int32)
            ranks = Ranks(rank + 1, rank)
        longest_q, longest_k = longest, longest + memory  # equal for full and ragged batches: one compilation
        self.layout = Layout(cu_q, cu_k, longest_q, longest_k, mask, ranks)
        self.int_tensors_to(device)

        def leaf(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw).to(device, self.dtype).requires_grad_()

        heads, width = case.heads, case.width
        if case.memory < 0 and not case.relative:
            self.leaves = {"qkv": leaf(tokens, 3, heads, width)}
        else:
            rows = len(self.documents_k)
            self.leaves = {
                "q": leaf(tokens, heads, width),
                "k": leaf(rows, heads, width),
                "v": leaf(rows, heads, width),
            }
        self.lowest = 0
        if case.relative:
            self.lowest = 1 - longest_k if mask.looks_ahead else 0
            self.leaves |= {"r": leaf(longest_k - self.lowest, heads, width), "u": leaf(heads, width)}
            self.leaves |= {"bias": leaf(heads, width)}
        if case.ordered:
            self.leaves |= {"apart": leaf(tokens, heads)}
            self.segments = (self.positions_q * 2 // max(longest_q, 1)).to(torch.int32)
        self.grad = torch.randn(tokens, heads, width, generator=draw).to(device, self.dtype)

    def int_tensors_to(self, device: str) -> None:
        """Move positions and documents."""
        for name in ("positions_q", "positions_k", "documents_q", "documents_k"):
            setattr(self, name, getattr(self, name).to(device, torch.int32))

    def qkv(self, leaves: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (t x n x d)."""
        if "qkv" in leaves:
            q, k, v = leaves["qkv"].unbind(1)
            return q, k, v
        return leaves["q"], leaves["k"], leaves["v"]

    def relative(self, leaves: dict[str, Tensor]) -> RelativeScores | None:
        """Return the scores by distance and segment, for our kernels."""
        if not self.case.relative:
            return None
        segments = SegmentScores(leaves["apart"], self.segments, self.segments) if self.case.ordered else None
        return RelativeScores(leaves["r"], leaves["u"], leaves["bias"], self.lowest, segments)

    def plain(self, leaves: dict[str, Tensor]) -> Tensor:
        """The reference: the padded kernel."""
        return attend_plainly(*self.qkv(leaves), self.layout, 0.0, self.relative(leaves))

    def kernels(self) -> list[str]:
        """Return the names of our kernels to compare: the one that is chosen, and the block kernel where it applies."""
        q, _, _ = self.qkv(self.leaves)
        case = case_of(q, self.layout, 0.0, self.relative(self.leaves))
        chosen = choose(case).name
        wanted = {chosen} | {name for name in ("blocks", "varlen") if not self.case.relative}
        return [kernel.name for kernel in KERNELS if kernel.name in wanted and not kernel.supports.refusal(case)]

    def ours(self, name: str) -> Callable[[dict[str, Tensor]], Tensor]:
        """Return one of our kernels as a function of the leaves."""
        (kernel,) = (kernel for kernel in KERNELS if kernel.name == name)

        def work(leaves: dict[str, Tensor]) -> Tensor:
            if "qkv" in leaves and kernel.attend_fused is not None:
                return kernel.attend_fused(leaves["qkv"], self.layout)
            return kernel.attend(*self.qkv(leaves), self.layout, 0.0, self.relative(leaves))

        return work

    def chosen(self, leaves: dict[str, Tensor]) -> Tensor:
        """Attend with the kernel that is chosen for packed queries, keys and values."""
        return attend_fused(leaves["qkv"], self.layout)

    def mask_mod(self) -> Callable[..., Tensor]:
        """Return what a query sees, as FlexAttention takes it."""
        documents_q, documents_k = self.documents_q, self.documents_k
        positions_q, positions_k = self.positions_q, self.positions_k
        left, right = self.layout.mask.band

        if self.layout.ranks is not None:
            bounds, ranks = self.layout.ranks

            def ordered(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return (documents_q[i] == documents_k[j]) & (ranks[j] < bounds[i])

            return ordered
        if left >= 0:

            def window(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                ahead = positions_k[j] - positions_q[i]
                return (documents_q[i] == documents_k[j]) & (ahead >= -left) & (ahead <= right)

            return window
        if right == 0:

            def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return (documents_q[i] == documents_k[j]) & (positions_k[j] <= positions_q[i])

            return causal

        def full(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return documents_q[i] == documents_k[j]

        return full

    def block_mask(self, create: Callable[..., BlockMask]) -> BlockMask:
        """Build the block mask of the batch."""
        sizes = (None, None, len(self.documents_q), len(self.documents_k))
        return create(self.mask_mod(), *sizes, device=self.device)

    def flex(
        self, call: Callable[..., Tensor], block_mask: BlockMask, table_type: torch.dtype
    ) -> Callable[[dict[str, Tensor]], Tensor]:
        """Return FlexAttention as a function of the leaves; `table_type`: of the table of queries and distances."""

        def work(leaves: dict[str, Tensor]) -> Tensor:
            q, k, v = self.qkv(leaves)
            if not self.case.relative:
                return unbatched(call(*batched(q, k, v), None, block_mask))
            scale = q.shape[-1] ** -0.5
            table = torch.einsum("tnd,xnd->ntx", q + leaves["bias"], leaves["r"]).to(table_type) * scale
            apart = (leaves["apart"].T.to(table_type) * scale).contiguous() if self.case.ordered else None
            score_mod = self.score_mod(table, apart)
            return unbatched(call(*batched(q + leaves["u"], k, v), score_mod, block_mask))

        return work

    def score_mod(self, table: Tensor, apart: Tensor | None) -> Callable[..., Tensor]:
        """Return what adds the scores by distance, and by segment, to those of the keys."""
        positions_q, positions_k, lowest, most = self.positions_q, self.positions_k, self.lowest, table.shape[-1] - 1

        def by_distance(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            row = torch.clamp(positions_q[i] - positions_k[j] - lowest, 0, most)
            return score + table[h, i, row]

        if apart is None:
            return by_distance
        segments = self.segments

        def by_distance_and_segment(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            row = torch.clamp(positions_q[i] - positions_k[j] - lowest, 0, most)
            return score + table[h, i, row] + torch.where(segments[i] != segments[j], apart[h, i], 0.0)

        return by_distance_and_segment


def batched(*streams: Tensor) -> list[Tensor]:
    """Packed streams (t x n x d) as FlexAttention takes them (1 x n x t x d)."""
    return [x.transpose(0, 1)[None] for x in streams]


def unbatched(mixed: Tensor) -> Tensor:
    """Return FlexAttention's result as a packed stream (t x n x d)."""
    return mixed[0].transpose(0, 1)


def call_flex(q: Tensor, k: Tensor, v: Tensor, score_mod: Any, block_mask: BlockMask) -> Tensor:
    """What is compiled."""
    mixed = flex_attention(q, k, v, score_mod=score_mod, block_mask=block_mask)
    assert isinstance(mixed, Tensor)
    return mixed


class Rows:
    """Prints rows as they come, and keeps them in a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.kept: list[dict[str, Any]] = []
        if path is not None:
            path.write_text("", encoding="utf-8")

    def add(self, **row: Any) -> None:
        self.kept.append(row)
        line = json.dumps(row)
        print(line, flush=True)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    @contextmanager
    def errors_of(self, **row: Any) -> Iterator[None]:
        """Turn an error into a row."""
        try:
            yield
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            self.add(**row, error=f"{type(error).__name__}: {error}"[:1500])


def synchronize(device: str) -> None:
    """Wait for the GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(work: Callable[[], object], device: str, repeats: int) -> float:
    """Median time of a call, by the GPU's clock where there is one."""
    times = []
    for _ in range(3 if device == "cuda" else 1):
        work()
    for _ in range(repeats):
        synchronize(device)
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(float(begin.elapsed_time(end)))
        else:
            started = time.perf_counter()
            work()
            times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def train(work: Callable[[dict[str, Tensor]], Tensor], problem: Problem) -> list[Tensor]:
    """Forward and backward: the result and the gradients of the leaves."""
    out = work(problem.leaves)
    grads = torch.autograd.grad(out, list(problem.leaves.values()), problem.grad)
    return [out.detach(), *grads]


def reference(problem: Problem) -> list[Tensor]:
    """The result and the gradients in float32, from the same rounded inputs."""
    leaves = {name: leaf.detach().float().requires_grad_() for name, leaf in problem.leaves.items()}
    out = problem.plain(leaves)
    return [out.detach(), *torch.autograd.grad(out, list(leaves.values()), problem.grad.float())]


def differences(problem: Problem, results: list[Tensor], expected: list[Tensor]) -> dict[str, list[float]]:
    """Return the largest absolute difference and the relative one (norm) of the output and each gradient."""
    rows = {}
    for name, result, exact in zip(("out", *problem.leaves), results, expected, strict=True):
        error = result.float() - exact
        rows[name] = [round(float(error.abs().max()), 6), round(float(error.norm() / exact.norm()), 6)]
    return rows


Work = Callable[[dict[str, Tensor]], Tensor]


def measure(rows: Rows, problem: Problem, name: str, work: Work, expected: list[Tensor], repeats: int) -> None:
    """Add the row of one implementation."""
    device, keys = problem.device, {"kind": "kernel", "case": problem.case.name, "kernel": name}
    with rows.errors_of(**keys):
        synchronize(device)
        started = time.perf_counter()
        results = train(work, problem)
        synchronize(device)
        first = time.perf_counter() - started
        errors = differences(problem, results, expected)
        again = train(work, problem)
        same = all(torch.equal(one, two) for one, two in zip(results, again, strict=True))
        del results, again
        peak = 0.0
        if device == "cuda":
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            train(work, problem)
            peak = (torch.cuda.max_memory_allocated() - before) / 2**20
        forward = milliseconds(lambda: work(problem.leaves), device, repeats)
        both = milliseconds(lambda: train(work, problem), device, repeats)
        rows.add(
            **keys,
            forward_ms=round(forward, 4),
            both_ms=round(both, 4),
            first_call_s=round(first, 2),
            peak_mib=round(peak),
            same_bits_twice=same,
            differences=errors,
        )


def measure_case(rows: Rows, case: Case, size: dict[str, Any], device: str, call: Any, create: Any) -> None:
    """Add the rows of one case."""
    problem = Problem(case, size, device)
    expected = reference(problem)
    repeats = size["repeats"]
    for name in problem.kernels():
        measure(rows, problem, name, problem.ours(name), expected, repeats)
    masks: list[BlockMask] = []
    with rows.errors_of(kind="mask", case=case.name):
        started = time.perf_counter()
        masks.append(problem.block_mask(create))
        synchronize(device)
        first = time.perf_counter() - started
        built = milliseconds(lambda: problem.block_mask(create), device, repeats)
        sparsity = round(float(masks[0].sparsity()), 2)
        rows.add(kind="mask", case=case.name, ms=round(built, 4), first_call_s=round(first, 2), sparsity=sparsity)
    block_mask = masks[0] if masks else problem.block_mask(create_block_mask)
    # The gradient of the table is added up in the table's type.
    types = (problem.dtype, torch.float32) if case.name == "xlnet-512-full" and device == "cuda" else (problem.dtype,)
    for table_type in types:
        name = "flex" if table_type == problem.dtype else "flex, float32 table"
        measure(rows, problem, name, problem.flex(call, block_mask, table_type), expected, repeats)
    timed = {row["kernel"]: row for row in rows.kept if row.get("case") == case.name and "both_ms" in row}
    chosen = problem.kernels()[0]
    for name, row in timed.items():
        if name.startswith("flex") and chosen in timed:
            own = timed[chosen]
            rows.add(
                kind="ratio",
                case=case.name,
                kernel=name,
                to=chosen,
                forward=round(row["forward_ms"] / own["forward_ms"], 3),
                both=round(row["both_ms"] / own["both_ms"], 3),
            )


def compilations() -> int:
    """Return how many graphs were compiled so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def measure_shapes(rows: Rows, size: dict[str, Any], device: str, compile_: Callable[..., Any]) -> None:
    """Add rows on batches of varying sizes: FlexAttention with and without dynamic shapes, and our kernel."""
    case = Case(name="bert-512-ragged", longest=512, full=False)
    token_counts = VARYING if device == "cuda" else tuple(n // 64 for n in VARYING)
    problems = [Problem(case, size, device, tokens) for tokens in token_counts]
    for name, dynamic in (("flex, automatic", None), ("flex, dynamic=True", True), ("ours", None)):
        with rows.errors_of(kind="shapes", kernel=name):
            torch.compiler.reset()
            before, times = compilations(), []
            call = compile_(call_flex, dynamic=dynamic)
            create = compile_(create_block_mask, dynamic=dynamic)
            for problem in (*problems, *problems):
                synchronize(device)
                started = time.perf_counter()
                if name == "ours":
                    train(problem.chosen, problem)
                else:
                    train(problem.flex(call, problem.block_mask(create), problem.dtype), problem)
                synchronize(device)
                times.append(round(1000 * (time.perf_counter() - started), 1))
            turn = len(problems)
            rows.add(
                kind="shapes",
                kernel=name,
                tokens=token_counts,
                compilations=compilations() - before,
                first_turn_ms=times[:turn],
                second_turn_ms=times[turn:],
            )


def allow(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Accept every device: what FlexAttention checks, replaced for a dry run."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, help="write the rows to this file too")
    parser.add_argument("--cases", default="", help="only cases whose names contain this")
    options = parser.parse_args()
    device, rows = options.device, Rows(options.out)
    began = time.perf_counter()
    torch.set_float32_matmul_precision("highest")
    if device == "cpu":
        warnings.simplefilter("ignore")
        setattr(flex_module, "_validate_device", allow)  # noqa: B010  # the dense backward pass works on a CPU

        def compile_(function: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
            return function
    else:

        def compile_(function: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
            return torch.compile(function, dynamic=dynamic)

        torch._dynamo.config.recompile_limit = 64  # each case is a compilation of the same function

    size = ON_GPU if device == "cuda" else DRY
    rows.add(kind="environment", about=environment(), tokens=size["tokens"], relative_tokens=size["relative_tokens"])
    call, create = compile_(call_flex, False), compile_(create_block_mask, False)
    for case in CASES:
        if options.cases in case.name:
            with rows.errors_of(kind="case", case=case.name):
                measure_case(rows, case, size, device, call, create)
            if device == "cuda":
                torch.cuda.empty_cache()
    measure_shapes(rows, size, device, compile_)
    rows.add(kind="end", seconds=round(time.perf_counter() - began, 1))


if __name__ == "__main__":
    main()
