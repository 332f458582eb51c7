"""The CRF against every way to tag a sequence, one by one."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bertree.model.readout import Crf
from tests.support.quick import example_count

CLASSES = 3


def drawn(lengths: list[int], seed: int) -> tuple[Crf, Tensor, Tensor, int, Tensor]:
    """A CRF, scores, cells, width and answers for sequences of these lengths."""
    torch.manual_seed(seed)
    crf = Crf(CLASSES).double()
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_()
    width = max(lengths, default=0) + 1  # a column that nobody fills
    cells = torch.tensor([row * width + at for row, n in enumerate(lengths) for at in range(n)], dtype=torch.int64)
    scores = torch.randn(len(cells), CLASSES, dtype=torch.float64) * 2
    return crf, scores, cells, width, torch.randint(CLASSES, (len(cells),))


def score(crf: Crf, scores_lc: Tensor, tags: tuple[int, ...]) -> Tensor:
    total = crf.start[tags[0]] + crf.end[tags[-1]]
    for place, tag in enumerate(tags):
        total = total + scores_lc[place, tag]
        if place:
            total = total + crf.transitions[tags[place - 1], tag]
    return total


@example_count(30)
@given(lengths=st.lists(st.integers(0, 4), min_size=0, max_size=4), seed=st.integers(0, 99))
def test_against_all_tag_sequences(lengths: list[int], seed: int) -> None:
    crf, scores, cells, width, answers = drawn(lengths, seed)
    expected, best = torch.zeros((), dtype=torch.float64), []
    for part, gold in zip(scores.split(lengths), answers.split(lengths), strict=True):
        if len(part):
            ways = list(product(range(CLASSES), repeat=len(part)))
            all_scores = torch.stack([score(crf, part, way) for way in ways])
            expected = expected + all_scores.logsumexp(0) - score(crf, part, tuple(gold.tolist()))
            best += ways[int(all_scores.argmax())]
    assert torch.allclose(crf.loss(scores, cells, width, answers).double(), expected)
    assert crf.decode(scores, cells, width).tolist() == best


def test_gradients_by_finite_differences() -> None:
    crf, scores, cells, width, answers = drawn([3, 0, 1, 4], 0)
    leaves = (scores.requires_grad_(), *crf.parameters())
    assert torch.autograd.gradcheck(lambda *_: crf.loss(scores, cells, width, answers), leaves)


def test_it_begins_as_the_plain_classifier() -> None:
    _, scores, cells, width, answers = drawn([3, 2], 1)
    crf = Crf(CLASSES)
    expected = torch.nn.functional.cross_entropy(scores, answers, reduction="sum")
    assert torch.allclose(crf.loss(scores, cells, width, answers), expected)
    assert torch.equal(crf.decode(scores, cells, width), scores.argmax(-1))


def test_precision_and_what_is_refused() -> None:
    crf, scores, cells, width, answers = drawn([3, 2], 2)
    crf.float()
    exact = crf.loss(scores.float(), cells, width, answers)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(crf.loss(scores.float(), cells, width, answers), exact)
        assert crf.loss(scores.bfloat16(), cells, width, answers).dtype == torch.float32
    assert crf.bfloat16().loss(scores.bfloat16(), cells, width, answers).dtype == torch.float32
    with pytest.raises(AssertionError, match="answer at every"):
        crf.loss(scores, cells, width, answers - 100)
    with pytest.raises(AssertionError, match="from the left"):
        crf.loss(scores, cells + 1, width, answers)
