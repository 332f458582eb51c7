"""Attention alone on a GPU: PyTorch's flash attention over a packed batch against ours, forward and backward.

python -m benchmarks.attention
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.common import environment, table
from bertree.batch import Batch
from bertree.model.kernels.layout import Layout
from bertree.model.kernels.table import VARLEN, attend_fused, case_of, choose
from bertree.model.masks import Full

CASES = ((32, False), (128, True), (128, False), (512, True), (512, False))


def milliseconds(work: Callable[[], object], repeats: int = 20) -> float:
    """Time of one call, by the GPU's own clock."""
    for _ in range(3):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / repeats


def lengths(tokens: int, longest: int, full: bool) -> list[int]:
    """Full sequences, or ragged ones of 47 % on average."""
    draw = torch.Generator().manual_seed(0)
    found: list[int] = []
    while (left := tokens - sum(found)) > 0:
        wanted = longest if full else int(torch.randint(3, round(0.94 * longest), (1,), generator=draw))
        found.append(min(wanted, left))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--heads", type=int, default=12)
    given = parser.parse_args()
    rows = []
    for longest, full in CASES:
        batch = Batch.pack([[1] * n for n in lengths(given.tokens, longest, full)]).to("cuda")
        qkv = torch.randn(given.tokens, 3, given.heads, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        grad = torch.randn(given.tokens, given.heads, 64, device="cuda", dtype=torch.bfloat16)
        layout = Layout.of(batch, Full())

        def flash(qkv: Tensor = qkv, layout: Layout = layout, grad: Tensor = grad) -> None:
            q, k, v = qkv.unbind(1)
            torch.autograd.grad(VARLEN.attend(q, k, v, layout, 0.0, None), qkv, grad)

        def ours(qkv: Tensor = qkv, layout: Layout = layout, grad: Tensor = grad) -> None:
            torch.autograd.grad(attend_fused(qkv, layout), qkv, grad)

        times = [milliseconds(work) for work in (flash, ours)]
        case = f"{longest} {'full' if full else 'ragged'}"
        rows.append(
            [case, choose(case_of(qkv, layout, 0.0)).name, *(f"{t:.2f}" for t in times), f"{times[0] / times[1]:.2f}"]
        )
    print(environment())
    print(table(["case", "ours", "varlen_attn, ms", "ours, ms", "ratio"], rows))


if __name__ == "__main__":
    main()
