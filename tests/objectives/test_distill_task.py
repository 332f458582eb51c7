"""What a student is told beside the truth: each way by hand, its limits, its gradient, and what does not count."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.finetuning.feed import ShapeBuckets, UnitFeed
from bertree.objectives.distill_task import KINDS, task_distillation_objective
from bertree.objectives.objective import WeightedTerms
from bertree.objectives.supervised import supervised_objective
from bertree.tasks.batches import collate, logit_rows
from bertree.tasks.task import Unit
from bertree.text.tokenizer import Encoded
from tests.support.units import HEADS, OPTIONS, network, regression_network, units

TAUGHT = [kind for kind in HEADS if kind[0] != "beam-span"]
CLASSES = {"sequence": 3, "token": 4, "span": 2, "choice": 1}
LN3 = math.log(3)


class Says:
    """A network that has made up its mind."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def class_logits(self, *_: object) -> Tensor:
        return self.scores


def softmax(row: list[float], t: float = 1.0) -> list[float]:
    whole = sum(math.exp(x / t) for x in row)
    return [math.exp(x / t) / whole for x in row]


def kl(student: list[float], teacher: list[float], t: float) -> float:
    """With its factor, in plain arithmetic."""
    pairs = zip(softmax(teacher, t), softmax(student, t), strict=True)
    return t * t * sum(p * math.log(p / q) for p, q in pairs)


def cross_entropy(student: list[float], right: int) -> float:
    return -math.log(softmax(student)[right])


def squares(student: list[float], teacher: list[float]) -> float:
    return sum((a - b) ** 2 for a, b in zip(student, teacher, strict=True)) / len(student)


WAYS = {
    "soft": lambda s, t: kl(s, t, 2.0),
    "hard": lambda s, t: cross_entropy(s, t.index(max(t))),
    "mse": squares,
}


def unit(sequences: int, chosen: int | None, soft: object) -> Unit:
    some = tuple(Encoded([5, 6, 7, 8, 9], None, 0) for _ in range(sequences))
    return Unit(0, some, None if chosen is None else list(range(chosen)), None, None, soft)


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


def soft_of(objective: WeightedTerms, student: list[list[float]], batch: Batch) -> float:
    loss = objective.terms["soft"].loss(Says(torch.tensor(student)), torch.zeros(0), batch)
    return loss.sum.item()


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_a_sequence(kind: str) -> None:
    student, teacher = [[0.0, 0.0], [1.0, -2.0], [3.0, 4.0]], [[LN3, 0.0], [-1.0, 0.5], None]
    batch = collate([unit(1, None, None if t is None else rows(t)) for t in teacher], "sequence")
    objective = task_distillation_objective("sequence", False, kind, 0.5, 2.0)
    assert objective.counts(batch) == {"hard": 0, "soft": 2}
    expected = WAYS[kind]([0.0, 0.0], [LN3, 0.0]) + WAYS[kind]([1.0, -2.0], [-1.0, 0.5])
    assert soft_of(objective, student, batch) == pytest.approx(expected, rel=1e-5)


def test_numbers_anyone_can_check() -> None:
    """Teacher 3 : 1, student 1 : 1."""
    batch = collate([unit(1, None, rows([LN3, 0.0]))], "sequence")
    losses = {
        kind: soft_of(task_distillation_objective("sequence", False, kind, 0.0, 1.0), [[0.0, 0.0]], batch)
        for kind in KINDS
    }
    assert losses["soft"] == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel=1e-5)
    assert losses["hard"] == pytest.approx(math.log(2), rel=1e-5)
    assert losses["mse"] == pytest.approx(LN3**2 / 2, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_is_met_by_squares_whatever_the_kind(kind: str) -> None:
    batch = collate([unit(1, None, rows([2.0])), unit(1, None, None), unit(1, None, rows([-1.0]))], "sequence", True)
    objective = task_distillation_objective("sequence", True, kind, 0.5, 2.0)
    assert objective.counts(batch) == {"hard": 0, "soft": 2}
    assert soft_of(objective, [[0.5], [9.0], [1.0]], batch) == pytest.approx(1.5**2 + 2.0**2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_a_token(kind: str) -> None:
    student = [[0.0, 1.0], [2.0, 0.5], [1.0, 1.0]]
    batch = collate([unit(1, 2, rows([1.0, 0.0], [0.0, 3.0])), unit(1, 1, None)], "token")
    objective = task_distillation_objective("token", False, kind, 0.5, 2.0)
    assert objective.counts(batch) == {"hard": 0, "soft": 2}
    expected = WAYS[kind](student[0], [1.0, 0.0]) + WAYS[kind](student[1], [0.0, 3.0])
    assert soft_of(objective, student, batch) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_start_and_end_share_the_weight(kind: str) -> None:
    """Two passages of three tokens and of two; a third was not asked about."""
    student = [[0.0, 1.0], [2.0, 0.0], [-1.0, 0.5], [1.0, 2.0], [0.0, 3.0], [4.0, 4.0]]
    teacher = [[1.0, 0.0], [0.0, 2.0], [0.5, -1.0], [0.0, 1.0], [2.0, 0.0]]
    some = [unit(1, 3, rows(*teacher[:3])), unit(1, 2, rows(*teacher[3:])), unit(1, 1, None)]
    batch = collate(some, "span")
    objective = task_distillation_objective("span", False, kind, 0.5, 2.0)
    assert objective.counts(batch) == {"hard": 0, "soft": 2}
    expected = 0.0
    for first, last in ((0, 3), (3, 5)):
        for end in (0, 1):
            mine, teacher_row = ([row[end] for row in table[first:last]] for table in (student, teacher))
            expected += WAYS[kind](mine, teacher_row) / 2
    assert soft_of(objective, student, batch) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_options_compete(kind: str) -> None:
    student, teacher = [0.0, 1.0, 2.0, 5.0, -1.0], [1.0, 0.0, 0.5, -1.0, 2.0]
    some = [unit(3, None, rows(*[[x] for x in teacher[:3]])), unit(2, None, rows(*[[x] for x in teacher[3:]]))]
    objective = task_distillation_objective("choice", False, kind, 0.5, 2.0)
    batch = collate(some, "choice")
    assert objective.counts(batch) == {"hard": 0, "soft": 2}
    expected = WAYS[kind](student[:3], teacher[:3]) + WAYS[kind](student[3:], teacher[3:])
    assert soft_of(objective, [[x] for x in student], batch) == pytest.approx(expected, rel=1e-5)


HANDS = {  # head -> units, scores of the student
    "sequence": ([unit(1, None, rows([2.0, 0.0, -1.0]))], [[0.5, 1.0, 0.0]]),
    "token": ([unit(1, 2, rows([2.0, 0.0], [0.0, 1.0]))], [[0.5, 1.0], [0.5, 0.0]]),
    "span": ([unit(1, 3, rows([2.0, 0.0], [0.0, 1.0], [-1.0, 3.0])), unit(1, 1, rows([1.0, 1.0]))],
             [[0.5, 1.0], [0.5, 0.0], [1.0, 2.0], [3.0, 3.0]]),
    "choice": ([unit(3, None, rows([2.0], [0.0], [-1.0])), unit(2, None, rows([1.0], [0.0]))],
               [[0.5], [1.0], [0.0], [2.0], [1.0]]),
}  # fmt: skip


def softmaxes(head: str) -> list[tuple[list[float], list[float], float]]:
    """Student, teacher and weight of every softmax that the hand-made units of a head are asked for."""
    some, student = HANDS[head]
    pairs, place = [], 0
    for unit in some:
        count = logit_rows(unit, head)
        mine, teacher_rows = np.array(student[place : place + count]), unit.teacher_logits
        place += count
        if head in ("sequence", "token"):
            pairs += [(list(a), list(b), 1.0) for a, b in zip(mine, teacher_rows, strict=True)]
        else:
            pairs += [(list(mine[:, c]), list(teacher_rows[:, c]), 1 / mine.shape[1]) for c in range(mine.shape[1])]
    return pairs


@pytest.mark.parametrize("head", HANDS)
def test_cold_it_is_one_hot(head: str) -> None:
    """T -> 0: the teacher names one class, and what is left of the loss is T times how far the student's score of it
    lies below its highest."""
    some, student = HANDS[head]
    t = 1e-3
    loss = soft_of(task_distillation_objective(head, False, "soft", 0.0, t), student, collate(some, head)) / t
    expected = sum(
        weight * (max(mine) - mine[teacher_row.index(max(teacher_row))])
        for mine, teacher_row, weight in softmaxes(head)
    )
    assert loss == pytest.approx(expected, rel=1e-3)
    assert expected > 0.2


@pytest.mark.parametrize("head", HANDS)
def test_hot_it_is_half_the_variance(head: str) -> None:
    """T -> infinity: both are nearly uniform, and the loss is half the variance of the difference of the scores."""
    some, student = HANDS[head]
    expected = sum(w * np.var(np.array(mine) - np.array(teacher_row)) / 2 for mine, teacher_row, w in softmaxes(head))
    apart = [
        abs(soft_of(task_distillation_objective(head, False, "soft", 0.0, t), student, collate(some, head)) - expected)
        for t in (3.0, 30.0)
    ]
    assert apart[1] < 0.02 * expected
    assert apart[1] < apart[0] / 3 or apart[0] < 0.01 * expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", HANDS)
def test_gradients_by_finite_differences(head: str, kind: str) -> None:
    some, student = HANDS[head]
    batch, objective = collate(some, head), task_distillation_objective(head, False, kind, 0.0, 2.0)
    scores = torch.tensor(student, requires_grad=True)
    objective.terms["soft"].loss(Says(scores), torch.zeros(0), batch).sum.backward()
    step = 2e-2
    for place in np.ndindex(*scores.shape):
        either = []
        for sign in (1, -1):
            moved = np.array(student, np.float64)
            moved[place] += sign * step
            either.append(soft_of(objective, moved.tolist(), batch))
        slope = (either[0] - either[1]) / (2 * step)
        assert float(scores.grad[place]) == pytest.approx(slope, rel=2e-3, abs=2e-4)


def test_the_gradient_keeps_its_size_when_it_is_hot() -> None:
    """It is T (q - p): the square before the divergence makes up for what softening takes."""
    some, student = HANDS["sequence"]
    for t in (0.5, 1.0, 4.0):
        scores = torch.tensor(student, requires_grad=True)
        objective = task_distillation_objective("sequence", False, "soft", 0.0, t)
        objective.terms["soft"].loss(Says(scores), torch.zeros(0), collate(some, "sequence")).sum.backward()
        (teacher_row,) = some[0].teacher_logits.tolist()
        expected = [t * (q - p) for q, p in zip(softmax(student[0], t), softmax(teacher_row, t), strict=True)]
        assert scores.grad[0].tolist() == pytest.approx(expected, rel=1e-4)


def asked(head: str, regression: bool, count: int, seed: int) -> list[Unit]:
    """Random units, some without an answer, and a few about which the teacher was not asked either."""
    draw = np.random.default_rng(seed)
    classes = 1 if regression else CLASSES[head]
    labeled = []
    for number, unit in enumerate(units(head, count, seed, regression)):
        logits = draw.normal(size=(logit_rows(unit, head), classes)).astype(np.float32)
        labeled.append(unit._replace(teacher_logits=None if number % 4 == 3 else logits))
    return labeled


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("head", "regression"), TAUGHT)
def test_filling_counts_for_nothing(head: str, regression: bool, kind: str) -> None:
    """What makes batches one of a few shapes, so that steps can be replayed on a GPU."""
    model = (regression_network if regression else network)()
    some = asked(head, regression, 7, 1)
    batch = collate(some, head, regression)
    filled = ShapeBuckets(head, 9, OPTIONS if head == "choice" else 1)(batch)
    assert len(filled.labels.teacher_logits) > len(batch.labels.teacher_logits)
    objective = task_distillation_objective(head, regression, kind, 0.3, 2.0)
    assert objective.counts(filled) == objective.counts(batch)
    both = []
    for inputs in (batch, filled):
        model.zero_grad()
        losses = objective(model, inputs).losses
        (losses["hard"].sum + losses["soft"].sum).backward()
        sums = {name: loss.sum.item() for name, loss in losses.items()}
        both.append((sums, [p.grad.clone() if p.grad is not None else torch.zeros(1) for p in model.parameters()]))
    assert both[0][0] == pytest.approx(both[1][0], rel=1e-5)
    assert both[0][0]["soft"] > 0
    for plain, full in zip(both[0][1], both[1][1], strict=True):
        assert torch.isfinite(full).all()
        assert (plain - full).abs().max() <= 2e-6 * max(1.0, float(plain.abs().max()))


@pytest.mark.parametrize(("head", "regression"), TAUGHT)
def test_the_truth_counts_where_it_is_known_and_the_teacher_everywhere(head: str, regression: bool) -> None:
    some = [
        unit._replace(teacher_logits=unit.teacher_logits)
        for unit in asked(head, regression, 12, 2)
        if unit.teacher_logits is not None
    ]
    batch = collate(some, head, regression)
    objective = task_distillation_objective(head, regression, "soft", 0.3, 2.0)
    labeled = [unit for unit in some if unit.answer is not None]
    assert 0 < len(labeled) < len(some)
    counts = objective.counts(batch)
    if head == "token":
        assert counts["soft"] == sum(len(unit.chosen) for unit in some)
        assert counts["hard"] == sum(tag != -100 for unit in labeled for tag in unit.answer)
    else:
        assert counts == {"hard": len(labeled), "soft": len(some)}
    assert objective.weights == {"hard": 0.3, "soft": 0.7}
    model = (regression_network if regression else network)()
    unasked = replace(batch, labels=replace(batch.labels, teacher_logits=None))
    plain = supervised_objective(head, regression)(model, unasked).losses[head]
    assert objective(model, batch).losses["hard"].sum.item() == pytest.approx(plain.sum.item())


def test_a_term_without_weight_is_left_out() -> None:
    assert list(task_distillation_objective("span", False, "soft", 0.0, 2.0).terms) == ["soft"]
    assert list(task_distillation_objective("span", False, "soft", 1.0, 2.0).terms) == ["hard"]


def test_how_a_step_is_cut_changes_nothing() -> None:
    """Sums are divided by the counts of the whole step, of each term its own."""
    from bertree.config.sections import OptimSettings, Phase, ScheduleSettings
    from bertree.train.feed import TrainingSchedule
    from bertree.train.loop import Loop
    from bertree.train.optimizer import build_optimizer

    some = asked("sequence", False, 12, 3)
    some = [
        unit._replace(teacher_logits=rows([0.1, 0.2, 0.4]) if unit.teacher_logits is None else unit.teacher_logits)
        for unit in some
    ]
    norms = []
    for limit in (0, 30):
        model = network()
        schedule = TrainingSchedule([Phase(steps=1)], ScheduleSettings(), 1e-3)
        loop = Loop(
            model,
            task_distillation_objective("sequence", False, "soft", 0.4, 2.0),
            build_optimizer(model, OptimSettings()),
        )
        step = UnitFeed(schedule, some, 12, "sequence", limit=limit)[0]
        assert (len(step.batches) > 1) == (limit > 0)
        result = loop.step(step)
        norms.append((result.norm, result.loss, result.losses["hard"], result.losses["soft"]))
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
