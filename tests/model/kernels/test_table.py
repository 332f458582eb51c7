"""Every kernel computes attention by its definition, forward and backward, for each mask it claims."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertree.model.kernels.layout import Case, Kernel, Layout
from bertree.model.kernels.table import KERNELS, attend, attend_fused, choose, refusals
from bertree.model.masks import Causal, Full, Mask, SlidingWindow
from tests.support.attention import MASKS, definition, layout_of, random_qkv, sees, with_gradients
from tests.support.quick import example_count

BY_NAME = {kernel.name: kernel for kernel in KERNELS}
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def claims(kernel: Kernel, mask: Mask, memory: object) -> bool:
    return type(mask) in kernel.supports.masks and (memory is None or kernel.supports.separate_keys)


lengths = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("name", ["grouped", "padded"])
@example_count(30)
@given(st.data(), lengths, st.booleans(), st.integers(0, 99))
def test_kernels_follow_the_definition(
    name: str, mask: Mask, data: st.DataObject, sizes: list[int], memorize: bool, seed: int
) -> None:
    memory = data.draw(st.lists(st.integers(0, 7), min_size=len(sizes), max_size=len(sizes))) if memorize else None
    kernel = BY_NAME[name]
    assert claims(kernel, mask, memory)
    layout = layout_of(sizes, memory, mask)
    qkv = random_qkv(layout, seed)
    ours = with_gradients(lambda q, k, v: kernel.attend(q, k, v, layout, 0.0, None), qkv)
    exact = with_gradients(lambda q, k, v: definition(q, k, v, layout), qkv)
    for left, right, tolerance in zip(ours, exact, (3e-6, 1e-5, 1e-5, 1e-5), strict=True):
        assert left.shape == right.shape
        assert (left - right).abs().max() < tolerance if left.numel() else True


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_query_without_keys_gets_nothing(mask: Mask) -> None:
    bounds = [torch.tensor(ends, dtype=torch.int32) for ends in ([0, 2, 5], [0, 0, 4])]
    layout = Layout(*bounds, 3, 4, mask)
    qkv = random_qkv(layout, 0)
    for name in ("grouped", "padded"):
        out, *grads = with_gradients(lambda *x, name=name: BY_NAME[name].attend(*x, layout, 0.0, None), qkv)
        assert not out[:2].any()
        assert not grads[0][:2].any()
        assert out[2:].abs().min() > 0
        assert not any(grad.isnan().any() for grad in grads)


def test_masks_on_places_of_one_and_of_several_sequences() -> None:
    positions, keys = torch.arange(4), torch.arange(-3, 6)
    for mask in MASKS:
        expected = torch.tensor([[sees(mask, q, k) for k in keys.tolist()] for q in positions.tolist()])
        assert torch.equal(mask.sees(positions, keys), expected)
        several = mask.sees(torch.stack([positions, positions + 1]), keys)
        assert several.shape == (2, 4, 9)
        assert torch.equal(several[0], expected)
    assert [mask.looks_ahead for mask in MASKS] == [True, False, True, False, False]
    with pytest.raises(AssertionError, match="negative"):
        SlidingWindow(-1, 0)


def case(device: str = "cuda", dtype: torch.dtype = torch.bfloat16, longest: int = 128, **other: object) -> Case:
    return Case(device, dtype, **({"head_width": 64, "longest": longest, "mask": Full} | other))


def test_the_first_kernel_that_supports_a_call_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from bertree.model.kernels import table

    present = [replace(kernel, supports=replace(kernel.supports, missing="")) for kernel in KERNELS]
    monkeypatch.setattr(table, "KERNELS", present)  # as with Triton
    for given_case, name in (
        (case(), "short"),
        (case(longest=129), "blocks"),
        (case(mask=Causal), "varlen"),
        (case(mask=SlidingWindow), "varlen"),
        (case(separate_keys=True), "varlen"),
        (case(head_width=48), "varlen"),
        (case(dropout=True), "padded"),
        (case(relative=True), "relative"),
        (case(relative=True, mask=SlidingWindow, separate_keys=True, head_width=41), "relative"),
        (case(relative=True, head_width=256), "padded"),
        (case(relative=True, dropout=True), "padded"),
        (case(relative=True, dtype=torch.float32), "padded"),
        (case(dtype=torch.float32), "padded"),
        (case("cpu", torch.float32), "grouped"),
        (case("cpu", torch.bfloat16, mask=SlidingWindow, separate_keys=True), "grouped"),
        (case("cpu", torch.float32, dropout=True), "padded"),
        (case("cpu", torch.float32, relative=True), "grouped_relative"),
        (case("cpu", torch.float32, relative=True, dropout=True), "padded"),
        (case("cpu", torch.float32, relative=True, ranked=True, segments=True), "grouped_relative"),
        (case("cpu", torch.float32, ranked=True), "padded"),
    ):
        assert choose(given_case).name == name, given_case
    assert refusals(case(mask=SlidingWindow, dropout=True)) == {
        "short": "has no window mask",
        "blocks": "has no window mask",
        "varlen": "has no dropout",
        "relative": "has no dropout",
        "grouped": "needs cpu",
        "grouped_relative": "needs cpu",
    }
    assert refusals(case(longest=129)) == {"short": "only up to 128 tokens"}
    monkeypatch.setattr(table, "KERNELS", [replace(k, supports=replace(k.supports, missing="")) for k in present[2:]])
    assert choose(case()).name == "varlen"


@cuda
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("memory", [None, [3, 0, 40, 0, 130, 1, 64]])
@pytest.mark.parametrize("name", ["short", "blocks", "varlen", "padded"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_kernels_follow_the_definition_on_cuda(
    name: str, memory: list[int] | None, mask: Mask, dtype: torch.dtype
) -> None:
    kernel = BY_NAME[name]
    if not claims(kernel, mask, memory):
        pytest.skip(f"{name} does not claim it")
    sizes = [7, 64, 1, 0, 33, 7, 128]
    layout, on_gpu = (layout_of(sizes, memory, mask, device) for device in ("cpu", "cuda"))
    qkv = [x.to("cuda", dtype) for x in random_qkv(layout, 3, 64)]
    ours = with_gradients(lambda q, k, v: kernel.attend(q, k, v, on_gpu, 0.0, None), qkv)
    exact = with_gradients(lambda q, k, v: definition(q, k, v, layout), [x.float().cpu() for x in qkv])
    assert (ours[0].cpu() - exact[0]).abs().max() < 2e-2
    for left, right in zip(ours[1:], exact[1:], strict=True):
        assert (left.cpu() - right).abs().max() < 2e-2 * max(1e-2, right.abs().max())


@cuda
def test_fused_and_separate_tensors_give_the_same_on_cuda() -> None:
    for longest, mask in ((128, Full()), (300, Full()), (300, Causal()), (300, SlidingWindow(64, 64))):
        layout = layout_of([5, longest, 17], None, mask, "cuda")
        qkv = torch.stack(random_qkv(layout, 1, 64), 1).to("cuda", torch.bfloat16)
        assert torch.equal(attend_fused(qkv, layout), attend(*qkv.unbind(1), layout))
