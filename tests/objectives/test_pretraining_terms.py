"""A pretraining objective describes itself: adding one to the registry is all that other modules need."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from bertree.batch import Batch, PretrainingLabels
from bertree.errors import UserError
from bertree.model.network import HEADS
from bertree.objectives.pretraining import (
    LABELS,
    TERMS,
    WEIGHTS,
    MaskedTokens,
    pretraining_objective,
    register_objective,
)
from bertree.pretraining import recipe


@pytest.mark.parametrize("name", TERMS)
def test_terms_are_complete(name: str) -> None:
    term = TERMS[name]
    assert term.name == name
    assert term.head in HEADS
    assert term.targets in PretrainingLabels.__dataclass_fields__
    assert WEIGHTS[name] == term.weight == recipe.Recipe().objective[name]
    assert LABELS[name] == term.label
    assert LABELS[term.accuracy] == term.accuracy_label
    assert all(isinstance(value, float) for value in term.more_figures(1.0).values())


def test_counts_are_the_targets() -> None:
    batch = Batch.pack([[1, 2, 3], [4, 5]])
    targets = torch.tensor([7, -100, 8])
    batch = replace(batch, labels=PretrainingLabels(torch.tensor([0, 1, 4]), targets, torch.tensor([1, -100])))
    assert pretraining_objective(mlm=1.0, nsp=2.0).counts(batch) == {"mlm": 2, "nsp": 1}
    assert pretraining_objective(mlm=1.0, nsp=0.0).weights == {"mlm": 1.0}


@pytest.fixture
def registry() -> Iterator[None]:
    before = [dict(names) for names in (TERMS, WEIGHTS, LABELS)]
    yield
    for names, old in zip((TERMS, WEIGHTS, LABELS), before, strict=True):
        names.clear()  # type: ignore[attr-defined]
        names.update(old)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("registry")
def test_an_objective_of_a_user_is_a_setting_that_is_0_unless_it_is_set() -> None:
    @register_objective
    class Mine(MaskedTokens):
        name = "mine"

    assert recipe.Recipe().objective["mine"] == 0
    assert isinstance(pretraining_objective(mine=1.0).terms["mine"], Mine)
    assert (LABELS["mine"], LABELS["mine_accuracy"]) == ("mine loss", "mine accuracy")
    assert WEIGHTS["mlm"] == MaskedTokens.weight == 1.0
    with pytest.raises(UserError, match="objective: mlm and mine have the same targets; set one of them to 0"):
        recipe.load("bert-base-tiny", ["objective.mine=1", "objective.nsp=0", "data.format=full-sentences"])
    alone = ["objective.mine=1", "objective.mlm=0", "objective.nsp=0", "data.format=full-sentences"]
    assert recipe.load("bert-base-tiny", alone).objective == {"mlm": 0, "nsp": 0, "sop": 0, "mine": 1}


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("base", "attributes", "message"),
    [
        (MaskedTokens, {}, "Mine: name: must be a word, the NAME of the setting objective.NAME, not None"),
        (MaskedTokens, {"name": "sop"}, "sop: there is such an objective already"),
        (object, {"name": "mine", "head": "mask"}, "Mine: has no targets, format, count, loss, more_figures;"),
    ],
)
def test_an_objective_that_cannot_be_used_is_refused(base: type, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        register_objective(type("Mine", (base,), attributes))
