"""Each loss between student and teacher: hand-computed values, limits of the temperature, gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bertree.batch import Batch
from bertree.objectives.distill_task import (
    cosine_distance,
    divergence,
    normalized_squared_distance,
    relation_divergence,
    top_k_divergence,
    top_k_log_probabilities,
)

LOG2, LOG3 = math.log(2), math.log(3)


def test_divergence_by_hand() -> None:
    student, teacher = torch.tensor([[0.0, 0.0]]), torch.tensor([[LOG3, 0.0]])  # 1/2, 1/2 and 3/4, 1/4
    wanted = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert divergence(student, teacher, 1.0).tolist() == pytest.approx([wanted], rel=1e-5)
    # At temperature 2 the teacher's odds are the square root of 3; the loss is multiplied by 4.
    p = math.sqrt(3) / (1 + math.sqrt(3))
    wanted = 4 * (p * math.log(2 * p) + (1 - p) * math.log(2 * (1 - p)))
    assert divergence(student, teacher, 2.0).tolist() == pytest.approx([wanted], rel=1e-5)


def test_divergence_is_per_row_and_zero_where_they_agree() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 3, 7)
    loss = divergence(student, teacher, 3.0)
    assert loss.shape == (3,)
    assert (loss > 0).all()
    assert torch.allclose(loss[1], divergence(student[1:2], teacher[1:2], 3.0)[0])
    assert torch.allclose(divergence(teacher + 5.0, teacher, 3.0), torch.zeros(3), atol=1e-5)


def test_cold_the_teacher_is_one_hot() -> None:
    # As T -> 0, T^2 KL -> T (largest score of the student - its score at the teacher's choice).
    student, teacher = torch.tensor([[1.0, 3.0, 0.0]]), torch.tensor([[2.0, 1.0, 0.5]])
    for temperature in (1e-2, 1e-3):
        loss = float(divergence(student, teacher, temperature)) / temperature
        assert loss == pytest.approx(3.0 - 1.0, rel=1e-4)
    scores, ids = top_k_log_probabilities(teacher, 2, 1e-2)
    assert scores.exp().tolist()[0] == pytest.approx([1.0, 0.0])
    assert ids.tolist() == [[0, 1]]


def test_hot_the_teacher_is_uniform_and_the_loss_compares_scores() -> None:
    # As T -> infinity, both are uniform, and T^2 KL -> half the variance of the difference of the scores.
    student, teacher = torch.tensor([[1.0, 3.0, 0.0]]), torch.tensor([[2.0, 1.0, 0.5]])
    apart = student - teacher
    wanted = 0.5 * float(apart.var(-1, unbiased=False))
    assert float(divergence(student.double(), teacher.double(), 100.0)) == pytest.approx(wanted, rel=0.02)
    assert top_k_log_probabilities(teacher, 3, 1e6)[0].exp().tolist()[0] == pytest.approx([1 / 3] * 3, abs=1e-5)


def test_coarse_divergence_by_hand() -> None:
    teacher = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    student = torch.tensor([[0.25, 0.25, 0.25, 0.25]]).log()
    kept, ids = top_k_log_probabilities(teacher, 1, 1.0)
    wanted = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert top_k_divergence(student, kept, ids, 1.0).tolist() == pytest.approx([wanted])


def test_coarse_divergence_is_a_lower_bound_that_becomes_exact() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 50, 20) * 2
    whole = divergence(student, teacher, 2.0)
    before = torch.zeros(50)
    for k in (1, 4, 12, 19):
        loss = top_k_divergence(student, *top_k_log_probabilities(teacher, k, 2.0), 2.0)
        assert (loss <= whole + 1e-5).all()
        assert (loss >= before - 1e-5).all(), "more is known, so more is seen"
        before = loss
    assert torch.allclose(before, whole, atol=1e-5), "all but one are all"
    assert top_k_divergence(teacher, *top_k_log_probabilities(teacher, 4, 2.0), 2.0).abs().max() < 1e-5


def test_coarse_divergence_survives_a_teacher_that_is_sure() -> None:
    sure = torch.tensor([[50.0, 0.0, 0.0, 0.0]])
    student = torch.tensor([[60.0, 0.0, 0.0, 0.0]], requires_grad=True)
    kept, ids = top_k_log_probabilities(sure, 2, 1.0)
    loss = top_k_divergence(student, kept.half(), ids, 1.0)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert student.grad is not None
    assert student.grad.isfinite().all()


def test_angle_by_hand() -> None:
    student = torch.tensor([[1.0, 0.0], [2.0, 2.0], [1.0, 0.0]])
    teacher = torch.tensor([[0.0, 3.0], [1.0, 1.0], [-4.0, 0.0]])
    assert cosine_distance(student, teacher).tolist() == pytest.approx([1.0, 0.0, 2.0], abs=1e-6)


def test_distance_by_hand() -> None:
    # Normed, (1, 3) is (-1, 1) and (7, 3) is (1, -1), whatever their size: 4 apart in each of the two.
    student, teacher = torch.tensor([[1.0, 3.0], [1.0, 3.0]]), torch.tensor([[7.0, 3.0], [10.0, 30.0]])
    assert normalized_squared_distance(student, teacher).tolist() == pytest.approx([4.0, 0.0], abs=1e-4)


def looks(*vectors: list[float]) -> Tensor:
    """The same vectors as queries, keys and values."""
    return torch.tensor(vectors)[:, None, :].expand(-1, 3, -1)


def test_relations_by_hand() -> None:
    # Two tokens. Teacher: each is related to itself alone (products 4 and 0); student: to nothing in particular.
    batch = Batch.pack([[1, 2], [3]])
    teacher = looks([2.0, 0.0], [0.0, 2.0], [5.0, 5.0])
    student = looks([0.0], [0.0], [1.0])
    p = 1 / (1 + math.exp(-4 / math.sqrt(2)))
    apart = p * math.log(2 * p) + (1 - p) * math.log(2 * (1 - p))
    assert relation_divergence(student, teacher, batch, 1).tolist() == pytest.approx([apart, apart, 0.0], abs=1e-6)


def test_relations_do_not_see_other_sequences() -> None:
    torch.manual_seed(1)
    batch = Batch.pack([[1, 2, 3], [4, 5], [6, 7, 8, 9]])
    student, teacher = torch.randn(9, 3, 8), torch.randn(9, 3, 24)
    together = relation_divergence(student, teacher, batch, 4)
    for first, last in ((0, 3), (3, 5), (5, 9)):
        alone = Batch.pack([list(range(last - first))])
        assert torch.allclose(
            together[first:last], relation_divergence(student[first:last], teacher[first:last], alone, 4), atol=1e-6
        )


def test_relations_against_the_definition() -> None:
    torch.manual_seed(2)
    student, teacher, heads = torch.randn(5, 3, 8, dtype=torch.float64), torch.randn(5, 3, 12, dtype=torch.float64), 4
    wanted = torch.zeros(5, dtype=torch.float64)
    for kind in range(3):
        for head in range(heads):
            both = [x[:, kind].unflatten(-1, (heads, -1))[:, head] for x in (student, teacher)]
            mine, teacher_relations = (F.softmax(x @ x.T / math.sqrt(x.shape[1]), -1) for x in both)
            wanted += (teacher_relations * (teacher_relations.log() - mine.log())).sum(-1) / (3 * heads)
    loss = relation_divergence(student, teacher, Batch.pack([[1, 2, 3, 4, 5]]), heads)
    assert torch.allclose(loss.double(), wanted, atol=1e-6)


@pytest.mark.parametrize("name", ["divergence", "coarse", "angle", "distance", "relation"])
def test_gradients_by_finite_differences(name: str) -> None:
    torch.manual_seed(3)
    student, teacher = torch.randn(4, 6), torch.randn(4, 6)
    batch = Batch.pack([[1, 2, 3], [4]])

    def loss(x: Tensor) -> Tensor:
        if name == "divergence":
            return divergence(x, teacher, 2.0).sum()
        if name == "coarse":
            return top_k_divergence(x, *top_k_log_probabilities(teacher, 2, 2.0), 2.0).sum()
        if name == "relation":
            both = (y[:, None, :].expand(-1, 3, -1) for y in (x, teacher))
            return relation_divergence(*both, batch, 2).sum()
        return (cosine_distance if name == "angle" else normalized_squared_distance)(x, teacher).sum()

    inputs = student.clone().requires_grad_()
    loss(inputs).backward()
    assert inputs.grad is not None
    step = 1e-2
    for row in range(4):
        for column in range(6):
            moved = torch.zeros_like(student)
            moved[row, column] = step
            slope = (float(loss(student + moved)) - float(loss(student - moved))) / (2 * step)
            assert float(inputs.grad[row, column]) == pytest.approx(slope, abs=3e-3)
