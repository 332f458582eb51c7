"""Single kernels of a training step on a GPU, ours against PyTorch's.

    python -m benchmarks.kernels                          # all of them
    python -m benchmarks.kernels pointwise
    python -m benchmarks.kernels lsh --length 16384 --rounds 1 2 4
    python -m benchmarks.kernels lsh --device cpu --length 256 --tokens 512 --heads 2 --repeats 1    # dry run

pointwise: 65,536 tokens in bf16, a width of 768 and an inner width of 3,072 (gated: 1,152), dropout 0.1. GB is what one
kernel has to read and write, the same for both sides. PyTorch's side is compiled as in a training step: dropout by
PyTorch's kernel, the rest by the compiler, with the gradients of biases.

attention: forward and backward over a packed batch, 12 heads of 64, against PyTorch's flash attention (varlen).

lsh: hashing, sorting, forward and backward, 16 heads of 64, chunks of 64 that see themselves and the one before,
against exact causal attention as the table of kernels chooses it.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch._functorch.config
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common import Results, argument_parser, medians
from bertree.batch import Batch
from bertree.model.kernels import triton_activations, triton_add_norm
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
from bertree.model.kernels.table import VARLEN, attend, attend_fused, case_of, choose
from bertree.model.masks import Causal, Full
from bertree.train.device_setup import set_deterministic

TOKENS, WIDTH, INNER, GATED, DROPOUT, EPS = 65536, 768, 3072, 1152, 0.1, 1e-12
REPEATS, CALLS, DEVICE = 5, 10, "cuda"
ATTENTION = ((32, False), (128, True), (128, False), (512, True), (512, False))  # longest sequence, all of that length
Work = Callable[[], Any]


class Case(NamedTuple):
    """Times of one kernel and of what it replaces."""

    name: str
    gigabytes: float
    pytorch_ms: float
    bertree_ms: float
    largest_difference: float


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Random numbers on the GPU."""
    return torch.randn(*shape, device=DEVICE, dtype=torch.float32).to(dtype)


def milliseconds(work: Work) -> float:
    """Median time of a call on the GPU, after some that are not counted."""
    times = []
    for _ in range(REPEATS + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(20_000_000)  # about 10 ms, in which the host launches all calls
        begin.record()
        for _ in range(CALLS):
            work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / CALLS)
    return statistics.median(times[1:])


def measure(name: str, numbers: float, pytorch: Work, ours: Work, largest_difference: float) -> Case:
    """Time both sides; `numbers`: of two bytes, that one kernel reads and writes."""
    return Case(name, 2 * numbers / 1e9, milliseconds(pytorch), milliseconds(ours), largest_difference)


def difference(ours: Tensor, reference: Tensor) -> float:
    """Largest difference, by the size of the largest number."""
    return float((ours.float() - reference.float()).abs().max() / reference.float().abs().max())


def gelu_kernels() -> Iterator[Case]:
    """GELU of a product and its bias. PyTorch: the bias is in the product, its gradient a kernel of its own."""
    x, grad, bias = random(TOKENS, INNER), random(TOKENS, INNER), random(INNER, dtype=torch.float32)
    x_and_bias = (x + bias).to(x.dtype)
    column_sum = torch.compile(lambda d: d.float().sum(0), dynamic=False)

    def pytorch_backward() -> tuple[Tensor, Tensor]:
        d_x = torch.ops.aten.gelu_backward(grad, x_and_bias)
        return d_x, column_sum(d_x)

    def backward() -> tuple[Tensor, Tensor]:
        return triton_activations._gelu_backward(grad, x, bias)

    size = TOKENS * INNER
    distance = difference(triton_activations._gelu(x, bias), F.gelu(x_and_bias))
    yield measure("GELU", 2 * size, lambda: F.gelu(x_and_bias), lambda: triton_activations._gelu(x, bias), distance)
    distance = max(difference(one, other) for one, other in zip(backward(), pytorch_backward(), strict=True))
    yield measure("GELU, backward, and the bias's gradient", 3 * size, pytorch_backward, backward, distance)


def gated_kernels() -> Iterator[Case]:
    """GELU and gate. PyTorch: what a compiler makes of it."""
    pairs, grad = random(TOKENS, 2 * GATED), random(TOKENS, GATED)
    values = torch.compile(lambda x: triton_activations._plain_gated(x, "gelu"), dynamic=False)
    gradients = torch.compile(lambda g, x: triton_activations._plain_gated_backward(g, x, "gelu"), dynamic=False)
    forward, backward = triton_activations._gated, triton_activations._gated_backward
    size = TOKENS * GATED
    distance = difference(forward(pairs, "gelu"), values(pairs))
    yield measure("gated", 3 * size, lambda: values(pairs), lambda: forward(pairs, "gelu"), distance)
    distance = difference(backward(grad, pairs, "gelu"), gradients(grad, pairs))
    yield measure(
        "gated, backward",
        5 * size,
        lambda: gradients(grad, pairs),
        lambda: backward(grad, pairs, "gelu"),
        distance,
    )


def add_norm_kernels() -> Iterator[Case]:
    """Dropout, sum and norm. PyTorch: PyTorch's dropout, the rest compiled; the gradients of two readers are added."""
    x, f, one, two = (random(TOKENS, WIDTH) for _ in range(4))
    bias, weight, norm_bias = (random(WIDTH, dtype=torch.float32) for _ in range(3))
    seed, dropped = torch.tensor([7], device=DEVICE), round(DROPOUT * triton_add_norm.STEPS)
    sides = [tensor.detach().requires_grad_() for tensor in (x, f, bias, weight, norm_bias)]

    def plain(x: Tensor, f: Tensor, bias: Tensor, weight: Tensor, norm_bias: Tensor) -> tuple[Tensor, Tensor]:
        s = x + F.dropout(f + bias.to(f.dtype), DROPOUT)
        out = F.layer_norm(s.float(), (WIDTH,), weight, norm_bias, EPS).to(x.dtype)
        return out, out * 1  # two readers, as of a residual stream

    compiled: Any = torch.compile(plain, dynamic=False)
    outs = compiled(*sides)

    def pytorch_backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(outs, sides, (one, two), retain_graph=True)

    def forward() -> tuple[Tensor, Tensor, Tensor]:
        return triton_add_norm._add_norm(x, None, f, bias, weight, norm_bias, seed, EPS, dropped)

    out, _, stats = forward()

    def backward() -> tuple[Tensor, Tensor, Tensor]:
        return triton_add_norm._add_norm_backward(one, two, x, f, bias, weight, seed, stats, dropped)

    size = TOKENS * WIDTH
    wanted, inputs = defined(sides, seed, dropped)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *inputs: plain(*inputs)[0], dynamic=False)
    yield measure("dropout, sum, norm", 3 * size, lambda: compiled(*sides), forward, difference(out, wanted))
    exact = torch.autograd.grad(wanted, inputs, one.float() + two.float())
    distance = max(difference(mine, theirs) for mine, theirs in zip(backward()[:2], exact, strict=False))
    yield measure("dropout, sum, norm, backward", 6 * size, pytorch_backward, backward, distance)


def defined(sides: list[Tensor], seed: Tensor, dropped: int) -> tuple[Tensor, list[Tensor]]:
    """The definition in float32, with the numbers that the kernel drops."""
    x, f, bias, weight, norm_bias = inputs = [tensor.detach().float().requires_grad_() for tensor in sides]
    steps = triton_add_norm.STEPS
    factors = triton_add_norm.kept(seed.cpu(), TOKENS, WIDTH, dropped).to(DEVICE) * (steps / (steps - dropped))
    return F.layer_norm(x + (f + bias) * factors, (WIDTH,), weight, norm_bias, EPS), inputs


def lengths(tokens: int, longest: int, full: bool) -> list[int]:
    """Return full lengths, or ragged ones of 47 % on average."""
    draw = torch.Generator().manual_seed(0)
    sizes: list[int] = []
    while (left := tokens - sum(sizes)) > 0:
        wanted = longest if full else int(torch.randint(3, round(0.94 * longest), (1,), generator=draw))
        sizes.append(min(wanted, left))
    return sizes


class Hashed:
    """Hashed attention of random queries and values, part by part."""

    def __init__(self, options: argparse.Namespace, rounds: int) -> None:
        self.batch = Batch.pack([[1] * options.length] * (options.tokens // options.length)).to(options.device)
        kind = torch.bfloat16 if options.device == "cuda" else torch.float32
        shape = (options.tokens, 2, options.heads, options.width)
        self.qv = torch.randn(shape, device=options.device, dtype=kind, requires_grad=True)
        self.grad = torch.randn(options.tokens, options.heads, options.width, device=options.device, dtype=kind)
        self.settings = ChunkSettings(options.chunk, 1, 0, causal=True, hides_self=True)
        self.rings = Rings.of(self.batch.cu_seqlens, options.tokens, self.settings, rounds)
        lengths_s = self.batch.cu_seqlens.diff()
        self.counts: BucketCounts = bucket_counts(lengths_s, options.length, options.chunk)
        self.rotations = draw_rotations(options.heads, options.width, rounds, self.counts.axes, self.qv)
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

    def __init__(self, options: argparse.Namespace) -> None:
        batch = Batch.pack([[1] * options.length] * (options.tokens // options.length)).to(options.device)
        kind = torch.bfloat16 if options.device == "cuda" else torch.float32
        shape = (options.tokens, 3, options.heads, options.width)
        self.qkv = torch.randn(shape, device=options.device, dtype=kind, requires_grad=True)
        self.grad = torch.randn(options.tokens, options.heads, options.width, device=options.device, dtype=kind)
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


def measure_pointwise(options: argparse.Namespace) -> None:
    """Measure GELU, the gated feed-forward, and dropout with sum and norm."""
    results = Results("kernels", options.out)
    set_deterministic(True)
    torch._inductor.config.fallback_random = True  # as in a training step
    with torch._functorch.config.patch(donated_buffer=False):  # a backward pass is called many times
        for case in (*gelu_kernels(), *gated_kernels(), *add_norm_kernels()):
            results.add(
                case.name,
                gigabytes=case.gigabytes,
                pytorch_ms=case.pytorch_ms,
                pytorch_gb_per_second=round(1000 * case.gigabytes / case.pytorch_ms),
                bertree_ms=case.bertree_ms,
                bertree_gb_per_second=round(1000 * case.gigabytes / case.bertree_ms),
                largest_difference=case.largest_difference,
            )
    results.print_table()


def measure_attention(options: argparse.Namespace) -> None:
    """Measure attention over packed batches of short sequences."""
    results = Results("attention", options.out)
    shape = (options.tokens, 3, 12, 64)
    for longest, full in ATTENTION:
        batch = Batch.pack([[1] * length for length in lengths(options.tokens, longest, full)]).to(DEVICE)
        qkv = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        grad = torch.randn(options.tokens, 12, 64, device=DEVICE, dtype=torch.bfloat16)
        layout = Layout.of(batch, Full())

        def flash(qkv: Tensor = qkv, layout: Layout = layout, grad: Tensor = grad) -> None:
            q, k, v = qkv.unbind(1)
            torch.autograd.grad(VARLEN.attend(q, k, v, layout, 0.0, None), qkv, grad)

        def ours(qkv: Tensor = qkv, layout: Layout = layout, grad: Tensor = grad) -> None:
            torch.autograd.grad(attend_fused(qkv, layout), qkv, grad)

        times = {"pytorch_ms": milliseconds(flash), "bertree_ms": milliseconds(ours)}
        name = f"{longest}, {'full' if full else 'ragged'}"
        results.add(name, kernel=choose(case_of(qkv, layout, 0.0)).name, **times)
    results.print_table()


def measure_lsh(options: argparse.Namespace) -> None:
    """Measure attention over chunks, step by step."""
    results = Results("lsh-kernels", options.out)
    exact = Exact(options)
    sides: dict[str, Exact | Hashed] = {f"exact ({exact.name})": exact}
    sides |= {f"lsh, {rounds} rounds": Hashed(options, rounds) for rounds in options.rounds}
    exact_ms = 0.0
    for name, side in sides.items():
        times = {f"{step}_ms": 1000 * seconds for step, seconds in medians(side.parts(), options.repeats).items()}
        total = sum(times.values())
        exact_ms = exact_ms or total
        results.add(name, **times, total_ms=total, times_exact=exact_ms / total)
    results.print_table()


KINDS = {"pointwise": measure_pointwise, "attention": measure_attention, "lsh": measure_lsh}


def main() -> None:
    """Measure the kinds of kernels that were named."""
    parser = argument_parser(__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", default=list(KINDS), help=", ".join(KINDS))
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"), help="of lsh; the others need a GPU")
    parser.add_argument("--length", type=int, default=16384, help="lsh: tokens of a sequence")
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--heads", type=int, default=16, help="lsh")
    parser.add_argument("--width", type=int, default=64, help="lsh: of a head")
    parser.add_argument("--chunk", type=int, default=64, help="lsh")
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2, 4], help="lsh")
    parser.add_argument("--repeats", type=int, default=10, help="lsh")
    options = parser.parse_args()
    for kind in options.kinds:
        KINDS[kind](options)


if __name__ == "__main__":
    main()
