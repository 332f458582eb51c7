"""Kernels with scores by distance follow the definition, forward and backward."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertree.model.kernels import triton_relative
from bertree.model.kernels.layout import Kernel, RelativeScores
from bertree.model.kernels.table import KERNELS
from bertree.model.masks import Mask
from tests.support.attention import MASKS, definition, layout_of, random_qkv, random_relative, with_gradients

HEADS = 4
ON_CPU = [kernel for kernel in KERNELS if kernel.supports.relative and kernel.supports.device in (None, "cpu")]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("kernel", ON_CPU, ids=lambda kernel: kernel.name)
@settings(max_examples=20, deadline=None)
@given(st.data(), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.booleans(), st.integers(0, 99))
def test_kernels_follow_the_definition(
    kernel: Kernel, mask: Mask, data: st.DataObject, sizes: list[int], memorize: bool, seed: int
) -> None:
    memory = data.draw(st.lists(st.integers(0, 7), min_size=len(sizes), max_size=len(sizes))) if memorize else None
    layout = layout_of(sizes, memory, mask)
    scores, lowest = random_relative(layout, seed)
    given = [*random_qkv(layout, seed, spare=3 if memorize else 0), *scores]

    def ours(q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> Tensor:
        return kernel.attend(q, k, v, layout, 0.0, RelativeScores(*tables, lowest))

    def exact(q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> Tensor:
        return definition(q, k, v, layout, RelativeScores(*tables, lowest))

    names = ("mixed", "q", "k", "v", "r", "bias u", "bias v")
    for name, one, other in zip(names, with_gradients(ours, given), with_gradients(exact, given), strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6 if name == "mixed" else 2e-5), name


def by_sequence(
    qu_tnd: Tensor,
    qv_tnd: Tensor,
    k_und: Tensor,
    v_und: Tensor,
    r_xnd: Tensor,
    cu_q: list[int],
    cu_k: list[int],
    lowest: int,
    causal: bool,
    window: int,
) -> Tensor:
    """Scores of all pairs of each sequence."""
    parts = []
    for (q0, q1), (k0, k1) in zip(pairwise(cu_q), pairwise(cu_k), strict=True):
        queries = torch.arange(q1 - q0, device=qu_tnd.device) + (k1 - k0) - (q1 - q0)
        distance = queries[:, None] - torch.arange(k1 - k0, device=qu_tnd.device)
        by_distance = torch.einsum("qnd,xnd->nqx", qv_tnd[q0:q1], r_xnd)
        place = (distance - lowest).clamp(0, len(r_xnd) - 1).expand(HEADS, -1, -1)
        scores = torch.einsum("qnd,knd->nqk", qu_tnd[q0:q1], k_und[k0:k1]) + by_distance.gather(2, place)
        seen = torch.ones_like(distance, dtype=torch.bool)
        seen &= (distance >= 0) | torch.tensor(not causal)
        seen &= (distance < window) | torch.tensor(not window)
        scores = (scores * qu_tnd.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
        parts.append(torch.einsum("nqk,knd->qnd", scores.softmax(-1), v_und[k0:k1]))
    return torch.cat(parts)


def bounds(lengths: list[int]) -> list[int]:
    return [0, *torch.tensor(lengths).cumsum(0).tolist()]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize(
    ("causal", "window", "width", "lengths", "memory"),
    [
        (True, 0, 64, [200, 70, 129], [130, 0, 64]),
        (False, 0, 64, [50, 180], [0, 30]),
        (True, 90, 41, [330], [90]),
        (True, 0, 16, [1, 0, 65], [0, 0, 1]),
    ],
)
def test_the_kernel_follows_the_definition_on_cuda(
    causal: bool, window: int, width: int, lengths: list[int], memory: list[int]
) -> None:
    keys = [a + b for a, b in zip(lengths, memory, strict=True)]
    lowest = 0 if causal else -(max(lengths) - 1)
    draw = torch.Generator().manual_seed(0)
    sizes = (sum(lengths), sum(lengths), sum(keys), sum(keys), max(keys) - lowest)
    given = [torch.randn(size, HEADS, width, generator=draw).to("cuda", torch.bfloat16) for size in sizes]
    exact, ours = ([x.to(kind).requires_grad_() for x in given] for kind in (torch.float64, torch.bfloat16))
    expected = by_sequence(*exact, bounds(lengths), bounds(keys), lowest, causal, window)
    grad = torch.randn(expected.shape, generator=draw).to("cuda", torch.bfloat16)
    expected.backward(grad.double())
    cu_q, cu_k = (torch.tensor(bounds(x), dtype=torch.int32, device="cuda") for x in (lengths, keys))
    runs = []
    for _ in range(2):
        leaves = [x.detach().clone().requires_grad_() for x in ours]
        out = triton_relative.attend(*leaves, cu_q, cu_k, (max(lengths), max(keys)), lowest, causal, window)
        out.backward(grad)
        found = [out.detach(), *(x.grad for x in leaves)]
        for one, other in zip(found, [expected.detach(), *(x.grad for x in exact)], strict=True):
            assert (one - other).norm() < 5e-3 * other.norm()
        runs.append(found)
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True)), "the same bytes every time"
