"""Pointwise kernels of a training step on a GPU, ours against PyTorch's and its compiler's; then a whole run of each.

    python -m benchmarks.pointwise                                     # kernels, then 20 steps of BERT-base each way
    python -m benchmarks.pointwise --only-kernels --variants           # kernels, and other choices of their constants
    python -m benchmarks.pointwise --only-steps --cases bert-base-128-full bert-base-512-full --turns 2 --apart

Kernels: 65,536 tokens in bf16, a width of 768 and an inner width of 3,072 (gated: 1,152), dropout 0.1. CUDA events
around ten calls, of which all are launched before the first begins; the median of five. GB are what one kernel has to
read and write, GB/s that over the time: the same bytes for both sides. PyTorch's sides are compiled as in a training
step: dropout by PyTorch's kernel, the rest by the compiler, with the gradients of biases.

Steps: as benchmarks.train, in turn; before: both switches off.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor

from benchmarks import train
from benchmarks.common import environment, table
from bertree.config.sections import RunSettings
from bertree.model import cost
from bertree.model.kernels import triton_add_norm, triton_gated, triton_gelu
from bertree.train.device import Placement, measure_peak_flops, set_deterministic

TOKENS, WIDTH, INNER, GATED, DROPOUT, EPS = 65536, 768, 3072, 1152, 0.1, 1e-12
REPEATS, CALLS, DEVICE = 5, 10, "cuda"
Work = Callable[[], Any]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["bert-base-128-full"], help="of benchmarks.train")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm", type=int, default=6, help="steps that are not counted")
    parser.add_argument("--turns", type=int, default=1, help="runs of each side")
    parser.add_argument("--only-kernels", action="store_true")
    parser.add_argument("--only-steps", action="store_true")
    parser.add_argument("--apart", action="store_true", help="steps with the kernels of GELU alone too")
    parser.add_argument("--variants", action="store_true", help="also other sizes of the kernels' tiles")
    given = parser.parse_args()
    torch._inductor.config.fallback_random = True  # as in a training step
    set_deterministic(True)
    machine = Placement.from_settings(RunSettings(device=DEVICE))
    peak = measure_peak_flops(machine.device)
    print(environment(), f"; {(peak or 0) / 1e12:.0f} TFLOP/s in a large bf16 product", flush=True)
    if not given.only_steps:
        print(table(["kernel", "GB", "before, ms", "GB/s", "ours, ms", "GB/s", "largest difference"], kernels()), "\n")
    if given.variants:
        print(table(["kernel", "constants", "ms", "GB/s"], variants()), "\n")
    if not given.only_kernels:
        print(table(["case", "switches", "tokens/s", "MFU", "GB"], steps(given, machine, peak or 1.0)))


def made(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
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


def row(name: str, numbers: float, before: Work, ours: Work, difference: float) -> list[object]:
    """A row of the table; `numbers`: of two bytes, that one kernel reads and writes."""
    size = 2 * numbers / 1e9
    old, new = milliseconds(before), milliseconds(ours)
    cells = [f"{old:.3f}", f"{size / old * 1e3:,.0f}", f"{new:.3f}", f"{size / new * 1e3:,.0f}"]
    found: list[object] = [name, f"{size:.2f}", *cells, f"{difference:.1e}"]
    print(found, flush=True)
    return found


def apart(one: Tensor, other: Tensor) -> float:
    """Largest difference, by the size of the largest number."""
    return float((one.float() - other.float()).abs().max() / other.float().abs().max())


def kernels() -> list[list[object]]:
    """Time each kernel and what it replaces."""
    with torch._functorch.config.patch(donated_buffer=False):  # a backward pass is called many times
        return [*gelu_rows(), *gated_rows(), *add_norm_rows()]


def gelu_rows() -> Iterator[list[object]]:
    """GELU of a product and its bias. Before: the bias is in the product, its gradient a kernel of its own."""
    x, grad, bias = made(TOKENS, INNER), made(TOKENS, INNER), made(INNER, dtype=torch.float32)
    x_and_bias = (x + bias).to(x.dtype)
    column_sum = torch.compile(lambda d: d.float().sum(0), dynamic=False)

    def before_backward() -> tuple[Tensor, Tensor]:
        d_x = torch.ops.aten.gelu_backward(grad, x_and_bias)
        return d_x, column_sum(d_x)

    def backward() -> tuple[Tensor, Tensor]:
        return triton_gelu._gelu_backward(grad, x, bias)

    size = TOKENS * INNER
    difference = apart(triton_gelu._gelu(x, bias), F.gelu(x_and_bias))
    yield row("GELU", 2 * size, lambda: F.gelu(x_and_bias), lambda: triton_gelu._gelu(x, bias), difference)
    difference = max(apart(one, other) for one, other in zip(backward(), before_backward(), strict=True))
    yield row("GELU, backward, and the bias's gradient", 3 * size, before_backward, backward, difference)


def gated_rows() -> Iterator[list[object]]:
    """GELU and gate. Before: what a compiler makes of it."""
    both, grad = made(TOKENS, 2 * GATED), made(TOKENS, GATED)
    values = torch.compile(lambda x: triton_gated._plain(x, "gelu"), dynamic=False)
    gradients = torch.compile(lambda g, x: triton_gated._plain_backward(g, x, "gelu"), dynamic=False)
    forward, backward = triton_gated._gated, triton_gated._gated_backward
    size = TOKENS * GATED
    difference = apart(forward(both, "gelu"), values(both))
    yield row("gated", 3 * size, lambda: values(both), lambda: forward(both, "gelu"), difference)
    difference = apart(backward(grad, both, "gelu"), gradients(grad, both))
    yield row(
        "gated, backward", 5 * size, lambda: gradients(grad, both), lambda: backward(grad, both, "gelu"), difference
    )


def add_norm_rows() -> Iterator[list[object]]:
    """Dropout, sum and norm. Before: PyTorch's dropout, the rest compiled; the gradients of two readers are added."""
    x, f, one, two = (made(TOKENS, WIDTH) for _ in range(4))
    bias, weight, norm_bias = (made(WIDTH, dtype=torch.float32) for _ in range(3))
    seed, dropped = torch.tensor([7], device=DEVICE), round(DROPOUT * triton_add_norm.STEPS)
    sides = [tensor.detach().requires_grad_() for tensor in (x, f, bias, weight, norm_bias)]

    def plain(x: Tensor, f: Tensor, bias: Tensor, weight: Tensor, norm_bias: Tensor) -> tuple[Tensor, Tensor]:
        s = x + F.dropout(f + bias.to(f.dtype), DROPOUT)
        out = F.layer_norm(s.float(), (WIDTH,), weight, norm_bias, EPS).to(x.dtype)
        return out, out * 1  # two readers, as of a residual stream

    compiled: Any = torch.compile(plain, dynamic=False)
    outs = compiled(*sides)

    def before_backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(outs, sides, (one, two), retain_graph=True)

    def forward() -> tuple[Tensor, Tensor, Tensor]:
        return triton_add_norm._add_norm(x, None, f, bias, weight, norm_bias, seed, EPS, dropped)

    out, _, stats = forward()

    def backward() -> tuple[Tensor, Tensor, Tensor]:
        return triton_add_norm._add_norm_backward(one, two, x, f, bias, weight, seed, stats, dropped)

    size = TOKENS * WIDTH
    wanted, inputs = defined(sides, seed, dropped)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *given: plain(*given)[0], dynamic=False)
    yield row("add_norm", 3 * size, lambda: compiled(*sides), forward, apart(out, wanted))
    exact = torch.autograd.grad(wanted, inputs, one.float() + two.float())
    difference = max(apart(mine, theirs) for mine, theirs in zip(backward()[:2], exact, strict=False))
    yield row("add_norm, backward", 6 * size, before_backward, backward, difference)


def defined(sides: list[Tensor], seed: Tensor, dropped: int) -> tuple[Tensor, list[Tensor]]:
    """The definition in float32, with the numbers that the kernel drops."""
    x, f, bias, weight, norm_bias = inputs = [tensor.detach().float().requires_grad_() for tensor in sides]
    steps = triton_add_norm.STEPS
    factors = triton_add_norm.kept(seed.cpu(), TOKENS, WIDTH, dropped).to(DEVICE) * (steps / (steps - dropped))
    return F.layer_norm(x + (f + bias) * factors, (WIDTH,), weight, norm_bias, EPS), inputs


@contextmanager
def constants(module: Any, **values: object) -> Iterator[None]:
    """Change a module's constants within the block."""
    before = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        triton_add_norm._programs.cache_clear()
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
        triton_add_norm._programs.cache_clear()


def variants() -> list[list[object]]:
    """Time the kernels with other constants."""
    x, grad, bias = made(TOKENS, INNER), made(TOKENS, INNER), made(INNER, dtype=torch.float32)
    a, f, one, two = (made(TOKENS, WIDTH) for _ in range(4))
    weight = made(WIDTH, dtype=torch.float32)
    seed, dropped = torch.tensor([7], device=DEVICE), round(DROPOUT * triton_add_norm.STEPS)
    stats = triton_add_norm._add_norm(a, None, f, weight, weight, weight, seed, EPS, dropped)[2]
    sides: list[tuple[str, int, Any, Work, list[dict[str, int]]]] = [
        ("GELU", 2 * x.numel(), triton_gelu, lambda: triton_gelu._gelu(x, bias),
         [{"ROWS": r, "COLUMNS": c, "FORWARD_TURNS": t} for r, c, t in
          ((8, 256, 1), (8, 256, 4), (8, 256, 16), (16, 256, 2), (4, 512, 4), (2, 1024, 4), (4, 256, 8))]),
        ("GELU, backward", 3 * x.numel(), triton_gelu, lambda: triton_gelu._gelu_backward(grad, x, bias),
         [{"ROWS": r, "COLUMNS": c, "BACKWARD_TURNS": t} for r, c, t in
          ((8, 256, 8), (8, 256, 16), (8, 256, 32), (16, 256, 8), (4, 512, 16), (2, 1024, 16), (4, 256, 16))]),
        ("add_norm", 3 * a.numel(), triton_add_norm,
         lambda: triton_add_norm._add_norm(a, None, f, weight, weight, weight, seed, EPS, dropped),
         [{"FORWARD_ROWS": rows} for rows in (4, 8, 16)]),
        ("add_norm, backward", 6 * a.numel(), triton_add_norm,
         lambda: triton_add_norm._add_norm_backward(one, two, a, f, weight, weight, seed, stats, dropped),
         [{"PROGRAMS": p, "REGISTERS": r} for p, r in ((2, 255), (4, 255), (8, 255), (3, 168), (6, 168), (4, 128))]),
    ]  # fmt: skip
    rows: list[list[object]] = []
    for name, numbers, module, work, choices in sides:
        for values in choices:
            with constants(module, **values):
                ms = milliseconds(work)
            rows.append([name, str(values), f"{ms:.3f}", f"{2 * numbers / ms / 1e6:,.0f}"])
            print(rows[-1], flush=True)
    return rows


def steps(given: argparse.Namespace, machine: Placement, peak: float) -> list[list[object]]:
    """Run training steps with the switches off and on."""
    rows: list[list[object]] = []
    choices = {"before": (False, False), "GELU": (True, False), "GELU, add_norm": (True, True)}
    if not given.apart:
        del choices["GELU"]
    for name in given.cases:
        case = train.GPU_CASES[name]
        a = train.architecture(case.member, case.length)
        average = case.length if case.full else round(train.FILL * case.length)
        for label, (gelu, add_norm) in list(choices.items()) * given.turns:
            with constants(triton_gelu, ENABLED=gelu), constants(triton_add_norm, ENABLED=add_norm):
                ours = train.Ours(a, case, machine, given.steps, False)
                speed, memory = train.timed(ours, given, machine)
                del ours
            mfu = speed * cost.training_flops(a, average) / peak
            rows.append([name, label, f"{speed:,.0f}", f"{mfu:.1%}", memory])
            print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    main()
