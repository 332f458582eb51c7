"""Kernels with an order of the keys, queries at places of their own and scores by segment follow the definition."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bertree.model.kernels import grouped_relative, relative_blocks
from bertree.model.kernels.layout import Kernel, Layout, Ranks, RelativeScores, SegmentScores
from bertree.model.kernels.table import KERNELS, case_of
from bertree.model.masks import Full
from tests.support.attention import (
    MASKS,
    definition,
    layout_of,
    order,
    random_qkv,
    random_relative,
    random_segments,
    with_gradients,
)
from tests.support.quick import example_count

NAMES = ("mixed", "q", "k", "v", "r", "bias u", "bias v", "segments")
ON_CPU = [kernel for kernel in KERNELS if kernel.supports.ranked and kernel.supports.device in (None, "cpu")]


def compare(kernel: Kernel, layout: Layout, seed: int, segments: bool) -> None:
    """Compare a kernel with the definition, forward and backward."""
    tables, lowest = random_relative(layout, seed)
    apart, *of = random_segments(layout, seed)
    inputs = [*random_qkv(layout, seed, spare=3), *tables, apart]

    def relative(r: Tensor, u: Tensor, v: Tensor, apart: Tensor) -> RelativeScores:
        return RelativeScores(r, u, v, lowest, SegmentScores(apart, *of) if segments else None)

    ours = with_gradients(lambda q, k, v, *x: kernel.attend(q, k, v, layout, 0.0, relative(*x)), inputs)
    exact = with_gradients(lambda q, k, v, *x: definition(q, k, v, layout, relative(*x)), inputs)
    for name, left, right in zip(NAMES, ours, exact, strict=True):
        assert left.shape == right.shape
        assert torch.allclose(left, right, rtol=1e-5, atol=4e-6 if name == "mixed" else 2e-5), name


@pytest.mark.parametrize("kernel", ON_CPU, ids=lambda kernel: kernel.name)
@example_count(60)
@given(st.data(), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.booleans(), st.booleans(), st.integers(0, 99))
def test_kernels_follow_the_definition(
    monkeypatch: pytest.MonkeyPatch,
    kernel: Kernel,
    data: st.DataObject,
    sizes: list[int],
    scattered: bool,
    segments: bool,
    seed: int,
) -> None:
    monkeypatch.setattr(relative_blocks, "ROWS", data.draw(st.sampled_from([1, 3, 64])))
    monkeypatch.setattr(relative_blocks, "CELLS", data.draw(st.sampled_from([1, 100, 10**6])))
    memory = data.draw(st.lists(st.integers(0, 7), min_size=len(sizes), max_size=len(sizes)))
    mask = data.draw(st.sampled_from(MASKS))
    layout = order(layout_of(sizes, memory, mask), seed, scattered, ranked=data.draw(st.booleans()))
    compare(kernel, layout, seed, segments)


@pytest.mark.parametrize("kernel", ON_CPU, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("ranked", [False, True])
def test_queries_and_keys_of_the_same_tokens(kernel: Kernel, segments: bool, ranked: bool) -> None:
    layout = layout_of([5, 0, 9, 5, 1], None, Full())
    if ranked:
        ranks = torch.randint(0, 4, (20,), generator=torch.Generator().manual_seed(1)).to(torch.int32)
        layout = layout._replace(ranks=Ranks(ranks + 1, ranks))
    compare(kernel, layout, 3, segments)


@pytest.mark.parametrize("kernel", ON_CPU, ids=lambda kernel: kernel.name)
def test_a_query_that_sees_no_key_gets_nothing(kernel: Kernel) -> None:
    layout = layout_of([3, 4], None, Full())
    ranks = torch.tensor([1, 2, 3, 0, 2, 2, 2], dtype=torch.int32)
    layout = layout._replace(ranks=Ranks(ranks, ranks))
    tables, lowest = random_relative(layout, 0)
    out, *grads = with_gradients(
        lambda q, k, v, *x: kernel.attend(q, k, v, layout, 0.0, RelativeScores(*x, lowest)),
        [*random_qkv(layout, 0), *tables],
    )
    assert out.flatten(1).any(1).tolist() == [False, True, True, False, True, True, True]
    assert not grads[0][[0, 3]].any()
    assert not any(grad.isnan().any() for grad in grads)


@pytest.mark.parametrize("scattered", [False, True])
def test_the_grouped_kernel_passes_gradcheck(scattered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relative_blocks, "ROWS", 2)
    layout = order(layout_of([4, 3, 4], [3, 0, 4], Full()), 1, scattered)
    tables, lowest = random_relative(layout, 1, 3)
    apart, *of = random_segments(layout, 1)
    inputs = [x.double().requires_grad_() for x in (*random_qkv(layout, 0, 3), *tables, apart)]

    def work(q: Tensor, k: Tensor, v: Tensor, *x: Tensor) -> Tensor:
        relative = RelativeScores(*x[:3], lowest, SegmentScores(x[3], *of))
        return grouped_relative.attend(q, k, v, layout, 0.0, relative)

    assert torch.autograd.gradcheck(work, inputs, atol=1e-8, rtol=1e-5, fast_mode=True)


def test_a_call_says_what_it_needs() -> None:
    layout, q = layout_of([4], None, Full()), torch.zeros(4, 2, 8)
    tables, lowest = random_relative(layout, 0)
    relative = RelativeScores(*tables, lowest)
    apart, *of = random_segments(layout, 0)
    ranks = torch.zeros(4, dtype=torch.int32)
    for layout_, relative_, needs in (
        (layout, None, (False, False, False)),
        (layout, relative, (True, False, False)),
        (layout, relative._replace(segments=SegmentScores(apart, *of)), (True, False, True)),
        (layout._replace(ranks=Ranks(ranks, ranks)), relative, (True, True, False)),
        (layout._replace(positions=ranks), None, (False, True, False)),
    ):
        case = case_of(q, layout_, 0.0, relative_)
        assert (case.relative, case.ranked, case.segments) == needs
