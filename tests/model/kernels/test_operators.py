"""Operators that compilers leave alone on a GPU; the same operators can be called on the CPU."""

import pytest
import torch

from bertree.model.kernels import grouped, operators


def test_angles_of_places_are_those_of_the_definition_and_known_to_compilers() -> None:
    positions, width, base = torch.tensor([0, 1, 7, 500]), 8, 10_000.0
    torch.library.opcheck(operators._rotary_angles, (positions, width, base))
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
    angles = positions[:, None, None].double() / base**exponents
    for result in (operators._rotary_angles(positions, width, base), operators.rotary_angles(positions, width, base)):
        torch.testing.assert_close(result[0].double(), angles.cos(), atol=5e-5, rtol=0)
        torch.testing.assert_close(result[1].double(), angles.sin(), atol=5e-5, rtol=0)


def test_a_gradient_of_a_gradient_of_attention_is_refused() -> None:
    q, k, v = (torch.randn(5, 2, 4, requires_grad=True) for _ in range(3))
    mixed, _ = grouped._attend(q, k, v, torch.tensor([0, 2, 5], dtype=torch.int32), None, -1, -1, False)
    (grad,) = torch.autograd.grad(mixed.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="a gradient of a gradient is not available here"):
        grad.sum().backward()
