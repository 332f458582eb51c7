"""Kernels with scores by distance follow the definition, forward and backward."""

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bertree.model.kernels import grouped_relative, relative_blocks, triton_relative
from bertree.model.kernels.layout import Kernel, Layout, RelativeScores
from bertree.model.kernels.table import KERNELS
from bertree.model.masks import Causal, Full, Mask, SlidingWindow
from tests.support.attention import MASKS, definition, layout_of, random_qkv, random_relative, with_gradients
from tests.support.quick import example_count

NAMES = ("mixed", "q", "k", "v", "r", "bias u", "bias v")
INTERPRETED = not triton_relative.KERNEL.supports.missing and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda" if torch.cuda.is_available() else None
DTYPE, TOLERANCE = (torch.float32, 1e-5) if INTERPRETED else (torch.bfloat16, 5e-2)
ON_CPU = [kernel for kernel in KERNELS if kernel.supports.relative and kernel.supports.device in (None, "cpu")]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("kernel", ON_CPU, ids=lambda kernel: kernel.name)
@example_count(20)
@given(st.data(), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.booleans(), st.integers(0, 99))
def test_kernels_follow_the_definition(
    monkeypatch: pytest.MonkeyPatch,
    kernel: Kernel,
    mask: Mask,
    data: st.DataObject,
    sizes: list[int],
    memorize: bool,
    seed: int,
) -> None:
    # Small blocks, so that there are many, of several heads, of several sequences and of one.
    monkeypatch.setattr(relative_blocks, "ROWS", data.draw(st.sampled_from([1, 3, 64])))
    monkeypatch.setattr(relative_blocks, "CELLS", data.draw(st.sampled_from([1, 100, 10**6])))
    memory = data.draw(st.lists(st.integers(0, 7), min_size=len(sizes), max_size=len(sizes))) if memorize else None
    layout = layout_of(sizes, memory, mask)
    scores, lowest = random_relative(layout, seed)
    inputs = [*random_qkv(layout, seed, spare=3 if memorize else 0), *scores]

    def ours(q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> Tensor:
        return kernel.attend(q, k, v, layout, 0.0, RelativeScores(*tables, lowest))

    def exact(q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> Tensor:
        return definition(q, k, v, layout, RelativeScores(*tables, lowest))

    for name, left, right in zip(NAMES, with_gradients(ours, inputs), with_gradients(exact, inputs), strict=True):
        assert left.shape == right.shape
        assert torch.allclose(left, right, rtol=1e-5, atol=4e-6 if name == "mixed" else 2e-5), name


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("memory", [None, [3, 0, 4]])
def test_the_grouped_kernel_passes_gradcheck(
    mask: Mask, memory: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relative_blocks, "ROWS", 2)
    layout = layout_of([4, 3, 4], memory, mask)
    tables, lowest = random_relative(layout, 1, 3)
    inputs = [x.double().requires_grad_() for x in (*random_qkv(layout, 0, 3), *tables)]
    assert torch.autograd.gradcheck(
        lambda q, k, v, *tables: grouped_relative.attend(q, k, v, layout, 0.0, RelativeScores(*tables, lowest)),
        inputs,
        atol=1e-8,
        rtol=1e-5,
        fast_mode=True,
    )


def test_the_grouped_kernel_computes_half_precision_in_single() -> None:
    layout = layout_of([70, 9, 70], [3, 0, 3], Causal())
    tables, lowest = random_relative(layout, 1, 16)
    inputs = [x.bfloat16() for x in (*random_qkv(layout, 0, 16), *tables)]

    def ours(q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> Tensor:
        out = grouped_relative.attend(q, k, v, layout, 0.0, RelativeScores(*tables, lowest))
        assert out.dtype == q.dtype
        return out

    with torch.autocast("cpu", torch.bfloat16):
        out = ours(*inputs[:3], *inputs[3:])
    assert torch.equal(out, ours(*inputs)), "autocast changes nothing within"
    for name, left, right in zip(
        NAMES, with_gradients(ours, inputs), with_gradients(ours, [x.float() for x in inputs]), strict=True
    ):
        assert (left - right).norm() <= 1e-2 * right.norm(), name


@pytest.mark.parametrize("kernel", ON_CPU, ids=lambda kernel: kernel.name)
def test_a_query_without_keys_gets_nothing(kernel: Kernel) -> None:
    for mask, blind in ((Causal(), 3), (Full(), 2), (SlidingWindow(1, 0), 3)):
        layout = Layout(*(torch.tensor(ends, dtype=torch.int32) for ends in ([0, 2, 5], [0, 0, 2])), 3, 2, mask)
        tables, lowest = random_relative(layout, 1)
        out, q_grad, *grads = with_gradients(
            lambda q, k, v, *tables, lowest=lowest, layout=layout: kernel.attend(
                q, k, v, layout, 0.0, RelativeScores(*tables, lowest)
            ),
            [*random_qkv(layout, 0), *tables],
        )
        assert not out[:blind].any()
        assert not q_grad[:blind].any()
        assert out[blind:].abs().min() > 0
        assert not any(grad.isnan().any() for grad in grads)


def test_the_grouped_kernel_compiles_whole() -> None:
    torch._dynamo.reset()

    def work(q: Tensor, k: Tensor, v: Tensor, r: Tensor, u: Tensor, w: Tensor, cu_q: Tensor, cu_k: Tensor) -> Tensor:
        layout = Layout(cu_q, cu_k, 8, 12, Causal())
        return grouped_relative.attend(q, k, v, layout, 0.0, RelativeScores(r, u, w, 0))

    compiled = torch.compile(work, fullgraph=True, dynamic=True, backend="aot_eager")
    for sizes in ([4, 3, 8], [6, 5], [8]):
        layout = layout_of(sizes, [4] * len(sizes), Causal())
        inputs = [*random_qkv(layout, 0), *random_relative(layout._replace(max_k=12), 1)[0]]
        ours, expected = (
            with_gradients(lambda *x, f=f, layout=layout: f(*x, layout.cu_q, layout.cu_k), inputs)
            for f in (compiled, work)
        )
        assert all(torch.equal(left, right) for left, right in zip(ours, expected, strict=True))


def on_device(mask: Mask, lengths: list[int], memory: list[int] | None, width: int) -> list[list[Tensor]]:
    """What Triton's kernel gives (twice) and what the definition gives, with the gradients."""
    layout, layouts = (layout_of(lengths, memory, mask, device) for device in ("cpu", DEVICE))
    tables, lowest = random_relative(layout, 1, width)
    inputs = [*random_qkv(layout, 0, width, spare=5 if memory else 0), *tables]
    inputs = [x.to(DTYPE) for x in inputs]  # the definition computes with the rounded values

    def ours(q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> Tensor:
        return triton_relative.attend(q, k, v, layouts, 0.0, RelativeScores(*tables, lowest))

    def exact(q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> Tensor:
        return definition(q, k, v, layout, RelativeScores(*tables, lowest))

    inputs = [x.to(DEVICE) for x in inputs]
    return [*(with_gradients(ours, inputs) for _ in range(2)), with_gradients(exact, [x.cpu() for x in inputs])]


@pytest.mark.skipif(DEVICE is None, reason="needs CUDA, or Triton with TRITON_INTERPRET=1")
@pytest.mark.parametrize(
    ("mask", "width", "lengths", "memory"),
    [
        (Causal(), 64, [200, 70, 129], [130, 0, 64]),
        (Full(), 64, [50, 180], [0, 30]),
        (Full(), 32, [50, 0, 65], None),
        (SlidingWindow(89, 0), 41, [330], [90]),
        (SlidingWindow(20, 70), 16, [130, 3], [1, 90]),
        (Causal(), 16, [1, 0, 65], [0, 0, 1]),
    ],
)
def test_the_triton_kernel_follows_the_definition(
    mask: Mask, width: int, lengths: list[int], memory: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if DEVICE == "cpu":  # interpreted: small blocks, so that there are many
        for name in ("FORWARD", "QUERIES", "KEYS"):
            monkeypatch.setattr(triton_relative, name, (16, 16, 1, 1))
        lengths, memory = ([size // 3 for size in sizes] if sizes else None for sizes in (lengths, memory))
    output, again, expected = on_device(mask, lengths, memory, width)
    for name, left, right in zip(NAMES, output, expected, strict=True):
        assert (left.cpu() - right).norm() <= TOLERANCE * right.norm(), name
    assert all(torch.equal(left, right) for left, right in zip(output, again, strict=True)), "the same bytes every time"


@pytest.mark.skipif(DEVICE is None, reason="needs CUDA, or Triton with TRITON_INTERPRET=1")
def test_a_query_without_keys_gets_nothing_from_the_triton_kernel() -> None:
    bounds = [torch.tensor(ends, dtype=torch.int32) for ends in ([0, 2, 5], [0, 0, 2])]
    layout = Layout(*bounds, 3, 2, Causal())
    tables, lowest = random_relative(layout, 1, 16)
    inputs = [x.to(DEVICE, DTYPE) for x in (*random_qkv(layout, 0, 16), *tables)]
    layout_on_device = layout._replace(cu_q=bounds[0].to(DEVICE), cu_k=bounds[1].to(DEVICE))
    out, q_grad, *grads = with_gradients(
        lambda q, k, v, *tables: triton_relative.attend(
            q, k, v, layout_on_device, 0.0, RelativeScores(*tables, lowest)
        ),
        inputs,
    )
    assert not out[:3].any()  # two of a sequence without keys, one before the first key
    assert not q_grad[:3].any()
    assert out[3:].abs().min() > 0
    assert not any(grad.isnan().any() for grad in grads)
