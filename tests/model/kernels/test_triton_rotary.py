"""Queries and keys are rotated where they lie beside the values; without a GPU the operator is plain PyTorch."""

import pytest
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.model.kernels import triton_rotary
from bertree.model.kernels.operators import rotary_angles
from bertree.model.layers.attention import Attention
from bertree.model.layers.positions import RotaryPositions
from tests.support.interpreter import DEVICE, INTERPRETED, needs_triton


def angles(tokens: int, width: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    cos, sin = rotary_angles(torch.arange(tokens), width, 10_000.0)
    return cos.to(dtype), sin.to(dtype)


@pytest.mark.slow
def test_the_operator_is_known_to_compilers_and_has_the_right_gradient() -> None:
    qkv = torch.randn(5, 3, 2, 8, requires_grad=True)
    torch.library.opcheck(triton_rotary._rotate, (qkv, *angles(5, 8), False))
    exact = torch.randn(5, 3, 2, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: triton_rotary.rotate(x, *angles(5, 8, torch.float64)), (exact,))


def test_attention_is_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    part = Attention(24, 3, 0.0, positions=RotaryPositions(8, 100.0))
    batch, x = Batch.pack([[1] * n for n in (3, 1, 7)]), torch.randn(11, 24)
    apart = part(x, batch)
    monkeypatch.setattr(triton_rotary, "usable", lambda x, width: True)
    monkeypatch.setattr(triton_rotary, "_rotate", triton_rotary._plain)
    torch.testing.assert_close(part(x, batch), apart, atol=1e-6, rtol=0)


@needs_triton
@pytest.mark.parametrize(("heads", "width"), [(12, 64), (3, 8), (1, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_follows_the_definition(
    monkeypatch: pytest.MonkeyPatch, heads: int, width: int, dtype: torch.dtype
) -> None:
    if INTERPRETED:
        monkeypatch.setattr(triton_rotary, "usable", lambda x, width: True)
    cos, sin = (x.to(DEVICE) for x in angles(37, width))
    draw = torch.Generator().manual_seed(width)
    qkv = torch.randn(37, 3, heads, width, generator=draw).to(DEVICE, dtype).requires_grad_()
    grad = torch.randn(37, 3, heads, width, generator=draw).to(DEVICE, dtype)
    output = triton_rotary.rotate(qkv, cos, sin)
    output.backward(grad)
    assert qkv.grad is not None
    tolerance = 2e-6 if dtype == torch.float32 else 2e-2
    expected = triton_rotary._plain(qkv.detach().double(), cos.double(), sin.double(), False)
    torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=tolerance)
    expected = triton_rotary._plain(grad.double(), cos.double(), sin.double(), True)
    torch.testing.assert_close(qkv.grad.double(), expected, atol=tolerance, rtol=tolerance)
    assert torch.equal(output[:, 2], qkv[:, 2]), "values are as they were"
