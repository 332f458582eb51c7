"""The gated part of a feed-forward block in one kernel each way; without a GPU the operators are plain PyTorch."""

import pytest
import torch

from bertree.model.kernels import triton_activations
from tests.support.interpreter import DEVICE, INTERPRETED, needs_triton


@pytest.mark.parametrize("activation", triton_activations.GATE_ACTIVATIONS)
def test_operators_are_known_to_compilers_and_have_the_right_gradient(activation: str) -> None:
    both = torch.randn(3, 16, requires_grad=True)
    torch.library.opcheck(triton_activations._gated, (both, activation))
    torch.library.opcheck(triton_activations._gated_backward, (torch.randn(3, 8), both.detach(), activation))
    exact = torch.randn(3, 16, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda arguments: triton_activations.gated(arguments, activation), (exact,))


@needs_triton
@pytest.mark.parametrize("activation", triton_activations.GATE_ACTIVATIONS)
@pytest.mark.parametrize("inner", [24, 1500, 2048])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_follow_the_definition(
    monkeypatch: pytest.MonkeyPatch, inner: int, activation: str, dtype: torch.dtype
) -> None:
    if INTERPRETED:
        monkeypatch.setattr(triton_activations, "gated_usable", lambda both, activation: True)
    draw = torch.Generator().manual_seed(inner)
    both = torch.randn(37, 2 * inner, generator=draw).to(DEVICE, dtype).requires_grad_()
    grad = torch.randn(37, inner, generator=draw).to(DEVICE, dtype)
    output = triton_activations.gated(both, activation)
    output.backward(grad)
    exact = both.detach().double().requires_grad_()
    expected = triton_activations._plain_gated(exact, activation)
    expected.backward(grad.double())
    assert both.grad is not None
    assert exact.grad is not None
    tolerance = 2e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(both.grad.double(), exact.grad, atol=tolerance, rtol=tolerance)
