"""Choosing the next token, against transformers' logits processors."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from bertree.errors import UserError
from bertree.inference.causal.sampling import Sampling, draw_numbers
from tests.support.quick import example_count

VOCAB = 30


@given(
    seed=st.integers(0, 1000),
    temperature=st.floats(0.1, 3),
    top_k=st.integers(0, VOCAB + 5),
    top_p=st.floats(0.05, 0.99) | st.just(1.0),
    penalty=st.floats(0.5, 2),
)
@example_count(40)
def test_probabilities_are_those_of_transformers(
    seed: int, temperature: float, top_k: int, top_p: float, penalty: float
) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, VOCAB, generator=random) * 3
    ids = torch.randint(0, VOCAB, (3, 6), generator=random)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(ids, logits.clone())
    theirs = TemperatureLogitsWarper(temperature)(ids, theirs)
    theirs = TopKLogitsWarper(top_k)(ids, theirs) if top_k else theirs
    theirs = TopPLogitsWarper(top_p)(ids, theirs) if top_p < 1 else theirs
    seen = torch.zeros(3, VOCAB, dtype=torch.bool).scatter_(1, ids, True)
    ours = Sampling(temperature, top_k, top_p, penalty).probabilities(logits, seen)
    theirs = theirs.softmax(1)
    # A token whose rank lies within rounding of top_p may be kept by one and dropped by the other.
    same = (ours > 1e-30) == (theirs > 1e-30)  # what is smaller may be rounded to 0
    if same.all():
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    else:
        assert (~same).sum() <= 1


def test_temperature_zero_takes_the_likeliest() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 1.0, 0.0]])
    assert Sampling(0).choose(logits, [0.99, 0.99]).tolist() == [1, 0]
    assert Sampling(0).probabilities(logits)[0].tolist() == [0, 1, 0]
    seen = torch.tensor([[False, True, False], [False, False, False]])
    assert Sampling(0, penalty=10).choose(logits, [0, 0], seen).tolist() == [2, 0]


def test_tokens_are_drawn_with_their_probabilities() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    sampling = Sampling(top_k=3)
    draws = draw_numbers(0, [1, 2, 3], 0, 20_000)
    chosen = sampling.choose(logits.expand(len(draws), -1), draws)
    values = np.bincount(chosen.numpy(), minlength=4) / len(draws)
    np.testing.assert_allclose(values, sampling.probabilities(logits)[0].numpy(), atol=0.015)
    assert values[3] == 0


def test_the_largest_draw_still_chooses_a_possible_token() -> None:
    logits = torch.tensor([[5.0, 1.0, -30.0, -30.0]])
    assert Sampling(top_k=2).choose(logits, [1 - 2**-53]).item() == 1


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(top_p=1e-300),
        Sampling(temperature=1e-300),
        Sampling(temperature=1e-300, top_p=1e-300, top_k=3),
        Sampling(temperature=1e308),
        Sampling(penalty=1000.0),
        Sampling(penalty=0.001),
    ],
)
def test_extreme_settings_still_choose_a_token(sampling: Sampling) -> None:
    never = -float("inf")
    logits = torch.tensor([[0.0, 30.0, -30.0, 29.0, never], [-1e4, -2e4, -3e4, -1.5e4, never]])
    seen = torch.tensor([[True, False, False, False, False], [False, False, False, True, True]])
    shares = sampling.probabilities(logits, seen)
    assert torch.allclose(shares.sum(1), torch.ones(2))
    chosen = sampling.choose(logits, [0.0, 1 - 2**-53], seen)
    assert (shares.gather(1, chosen[:, None]) > 0).all()
    if min(sampling.temperature, sampling.top_p) < 1e-9:
        assert chosen.tolist() == [1, 0]


def test_draws_depend_on_seed_prompt_and_number_alone() -> None:
    assert draw_numbers(0, [5, 6], 0, 4) == draw_numbers(0, [5, 6], 0, 9)[:4]
    others = [draw_numbers(*key, 4) for key in ((1, [5, 6], 0), (0, [5, 7], 0), (0, [5, 6], 1), (0, [56], 0))]
    assert draw_numbers(0, [5, 6], 0, 4) not in others
    assert all(0 <= value < 1 for value in draw_numbers(3, [], 0, 1000))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("penalty", 0),
    ],
)
def test_settings_without_meaning_are_refused(name: str, value: float) -> None:
    with pytest.raises(UserError, match=name):
        Sampling(**{name: value})
