"""A pretraining objective describes itself: adding one to the registry is all that other modules need."""

from dataclasses import replace

import pytest
import torch

from bertree.batch import Batch, PretrainingLabels
from bertree.model.network import HEADS
from bertree.objectives.pretraining import LABELS, TERMS, WEIGHTS, pretraining_objective
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
