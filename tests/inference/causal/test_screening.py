"""The likeliest output by a rough product first: always the one of the exact product."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bertree.inference.causal.fast_decoder import ScreenedOutput, can_screen
from tests.support.language_models import language_model
from tests.support.quick import example_count


@pytest.fixture(autouse=True, scope="module")
def screens() -> None:
    if not can_screen():
        pytest.skip("this CPU has no fast product with 8-bit weights")


def layer(seed: int, spread: float, bias: bool) -> tuple[nn.Linear, torch.Tensor]:
    torch.manual_seed(seed)
    linear = nn.Linear(96, 500, bias=bias)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(500, 96) * torch.rand(500, 1).mul(spread).exp())
        linear.weight[7] = linear.weight[3] * (1 + 1e-6)  # all but the same
        if bias:
            linear.bias.copy_(torch.randn(500))
    return linear, torch.randn(1, 96) * (1 + 20 * torch.rand(1))


@pytest.mark.slow
@given(seed=st.integers(0, 10_000), spread=st.floats(0, 4), bias=st.booleans(), banned=st.integers(0, 3))
@example_count(150)
@torch.no_grad()
def test_the_largest_output_is_always_found(seed: int, spread: float, bias: bool, banned: int) -> None:
    linear, x = layer(seed, spread, bias)
    wanted = nn.functional.linear(x.double(), linear.weight.double(), linear.bias.double() if bias else None)
    never = torch.zeros(500)
    never[wanted[0].topk(banned).indices] = -torch.inf
    screened = ScreenedOutput(linear)(x, never)
    wanted += never
    seen = screened > -torch.inf
    assert torch.allclose(screened[seen].double(), wanted[seen], rtol=1e-4, atol=1e-4)
    best = int(screened.argmax())
    assert wanted[0, best] >= wanted.max() - 1e-5 * wanted.abs().nan_to_num(posinf=0).max()
    assert never[best] == 0


@torch.no_grad()
def test_few_outputs_are_computed_exactly() -> None:
    linear, x = layer(0, 0.0, False)
    assert int((ScreenedOutput(linear)(x) > -torch.inf).sum()) < 25


def test_greedy_texts_are_the_same_alone_and_in_a_batch() -> None:
    model = language_model("gpt2")
    prompts = ["the boat", "tree of the river and", "a", "lamp on a stone"]
    together = model.generate(prompts, temperature=0, tokens=40)
    for prompt, text in zip(prompts, together, strict=True):
        assert model.generate(prompt, temperature=0, tokens=40)[0].ids == text.ids
