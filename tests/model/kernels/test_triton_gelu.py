"""GELU, and the bias before it, in one kernel each way; without a GPU the operators are plain PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bertree.model.kernels import triton_activations
from tests.support.interpreter import DEVICE, INTERPRETED, needs_triton


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if INTERPRETED and "kernel" in request.node.name:
        monkeypatch.setattr(triton_activations, "gelu_usable", lambda x: True)


def exact(x: Tensor, bias: Tensor | None, grad: Tensor) -> list[Tensor]:
    """Values and gradients in float64."""
    inputs = [tensor.detach().double().requires_grad_() for tensor in (x, bias) if tensor is not None]
    out = F.gelu(sum(inputs))
    return [out, *torch.autograd.grad(out, inputs, grad.double())]


@pytest.mark.parametrize("biased", [False, True])
def test_operators_are_known_to_compilers_and_have_the_right_gradient(biased: bool) -> None:
    x, bias = torch.randn(3, 8, requires_grad=True), torch.randn(8, requires_grad=True) if biased else None
    torch.library.opcheck(triton_activations._gelu, (x, bias))
    inputs = (x.detach(), None if bias is None else bias.detach())
    torch.library.opcheck(triton_activations._gelu_backward, (torch.randn(3, 8), *inputs))
    x, bias = torch.randn(3, 8).double().requires_grad_(), torch.randn(8).double().requires_grad_() if biased else None
    assert torch.autograd.gradcheck(triton_activations._gelu, (x, bias))


@needs_triton
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(37, 24), (3, 40, 300), (130, 768)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_follow_the_definition(shape: tuple[int, ...], biased: bool, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(shape[0])
    x, grad = (torch.randn(*shape, generator=draw).to(DEVICE, dtype) for _ in range(2))
    bias = torch.randn(shape[-1], generator=draw).to(DEVICE) if biased else None
    expected = exact(x, bias, grad)
    gradients = [triton_activations._gelu(x, bias), *triton_activations._gelu_backward(grad, x, bias)]
    tolerance = 2e-6 if dtype == torch.float32 else 1e-2
    for left, right in zip(gradients[:2], expected[:2], strict=True):
        torch.testing.assert_close(left.double(), right, atol=tolerance, rtol=tolerance)
    if biased:  # added up before it is rounded
        torch.testing.assert_close(gradients[2].double(), expected[2], atol=2e-5, rtol=2e-5)
    else:
        assert gradients[2].numel() == 0


@needs_triton
def test_kernels_are_as_exact_as_bfloat16_at_every_number_it_has() -> None:
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = numbers[numbers.isfinite() & (numbers.abs() < 1e18)].view(-1, 4).to(DEVICE).T.contiguous()
    value, slope = exact(x, None, torch.ones_like(x))
    value = x.double() * torch.special.erfc(x.double() * -(0.5**0.5)) / 2  # PyTorch's loses the tail to rounding
    single, grad = x.float(), torch.ones_like(x, dtype=torch.float32)
    output = triton_activations._gelu(single, None)
    found_slope = triton_activations._gelu_backward(grad, single, None)[0]
    assert ((output.double() - value).abs() <= 5e-6 * value.abs() + 1e-18).all()
    assert ((found_slope.double() - slope).abs() <= 2e-6).all()


@needs_triton
def test_kernels_compute_the_same_bytes_every_time() -> None:
    x, grad, bias = (torch.randn(*shape, device=DEVICE) for shape in ((200, 300), (200, 300), (300,)))
    first, second = (triton_activations._gelu_backward(grad, x, bias) for _ in range(2))
    assert all(torch.equal(left, right) for left, right in zip(first, second, strict=True))
