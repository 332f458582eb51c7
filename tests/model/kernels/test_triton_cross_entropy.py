"""The cross-entropy of a linear layer with its gradients in one operator; without a GPU its kernel is plain PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bertree.batch import IGNORED
from bertree.model.kernels import triton_cross_entropy
from tests.support.interpreter import DEVICE, INTERPRETED, needs_triton


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if INTERPRETED and "kernel" in request.node.name:
        monkeypatch.setattr(triton_cross_entropy, "usable", lambda x: True)


def case(rows: int, width: int, size: int, device: str = "cpu") -> tuple[list[Tensor], Tensor]:
    """Return random inputs, and targets of which every fourth is ignored."""
    generator = torch.Generator().manual_seed(rows)
    inputs = [torch.randn(*shape, generator=generator).to(device) for shape in ((rows, width), (size, width), (size,))]
    targets_m = torch.randint(size, (rows,), generator=generator)
    targets_m[::4] = IGNORED
    return inputs, targets_m.to(device)


def exact(inputs: list[Tensor], targets_m: Tensor) -> list[Tensor]:
    """Return loss and gradients in float64."""
    x_mh, weight_vh, bias_v = (tensor.detach().double().requires_grad_() for tensor in inputs)
    loss = F.cross_entropy(F.linear(x_mh, weight_vh, bias_v), targets_m, ignore_index=IGNORED, reduction="sum")
    return [loss.detach(), *torch.autograd.grad(loss, [x_mh, weight_vh, bias_v])]


@pytest.mark.parametrize("rows", [0, 1, 13])
def test_operator_gives_loss_and_gradients_in_chunks(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_cross_entropy, "CHUNK", 5 * 64)
    inputs, targets_m = case(rows, 6, 37)
    values = triton_cross_entropy._linear_cross_entropy(*inputs, targets_m)
    for value, expected in zip(values, exact(inputs, targets_m), strict=True):
        torch.testing.assert_close(value.double(), expected, atol=1e-5, rtol=1e-5)


def test_gradient_of_the_operator_is_scaled_by_that_of_the_loss() -> None:
    inputs, targets_m = case(9, 6, 37)
    leaves = [tensor.requires_grad_() for tensor in inputs]
    loss = triton_cross_entropy._linear_cross_entropy(*leaves, targets_m)[0]
    for value, expected in zip(torch.autograd.grad(loss / 3, leaves), exact(inputs, targets_m)[1:], strict=True):
        torch.testing.assert_close(value.double(), expected / 3, atol=1e-5, rtol=1e-5)


def test_operator_is_known_to_compilers() -> None:
    inputs, targets_m = case(9, 6, 37)
    torch.library.opcheck(triton_cross_entropy._linear_cross_entropy, (*inputs, targets_m))


@needs_triton
@pytest.mark.parametrize(("rows", "width", "size"), [(5, 16, 37), (300, 64, 5000), (70, 128, 20001)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernel_follows_the_definition(rows: int, width: int, size: int, dtype: torch.dtype) -> None:
    inputs, targets_m = case(rows, width, size, DEVICE)
    inputs = [(tensor * width**-0.5).to(dtype) for tensor in inputs]
    values = triton_cross_entropy._linear_cross_entropy(*inputs, targets_m)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for value, expected in zip(values, exact(inputs, targets_m), strict=True):
        torch.testing.assert_close(value.double(), expected, atol=tolerance, rtol=tolerance)
