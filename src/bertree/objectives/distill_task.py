"""What a task's student is asked beside the true answers: to say what its teacher said, in one of three ways.

The teacher was asked beforehand, so a batch carries its scores (`Batch.soft`): a row for each row of the student's,
NaN where there is no question (what fills a batch up) or nobody asked it. A term that is told what the truth is and
one that is told what the teacher said are counted apart, because what was made up has no truth.

Shape letters: m rows of the head (sequences or chosen tokens), q questions, w grid width, c classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bertree.batch import Batch
from bertree.model.network import Network
from bertree.objectives.divergences import divergence
from bertree.objectives.objective import Loss, Term, WeightedTerms
from bertree.objectives.supervised import HEAD_KINDS, NO_PROBABILITY, head_term, scatter_to_grid

KINDS = ("soft", "hard", "mse")
Divergence = Callable[
    [Tensor, Tensor], Tensor
]  # scores of student and teacher (... x classes) -> a number for each row


@dataclass(frozen=True)
class RowDistillation:
    """The teacher's scores of a sequence, or of each chosen token."""

    head: str
    apart: Divergence

    def count(self, batch: Batch) -> int:
        """Rows about which the teacher was asked."""
        assert batch.soft is not None
        return int((~batch.soft[:, 0].isnan()).sum())

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """How far the student is from it, summed over them."""
        assert batch.soft is not None
        scores_mc = network.class_logits(self.head, hidden_th, batch, batch.chosen)
        apart_m = self.apart(scores_mc.float(), batch.soft.nan_to_num())
        return Loss(torch.where(batch.soft[:, 0].isnan(), 0.0, apart_m).sum(), None)


@dataclass(frozen=True)
class GridDistillation:
    """The teacher's scores of the options of a question, or of the tokens of a passage: start and end apart, which
    share the weight."""

    head: str
    apart: Divergence

    def count(self, batch: Batch) -> int:
        """Questions that the teacher was asked."""
        assert batch.soft is not None
        assert batch.cells is not None
        return int((batch.cells[~batch.soft[:, 0].isnan()] // max(1, batch.width)).unique().numel())

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """How far the student is from it, summed over them."""
        assert batch.soft is not None
        assert batch.answers is not None
        scores_mc = network.class_logits(self.head, hidden_th, batch, batch.chosen)
        questions = len(batch.answers)
        student_cqw = scatter_to_grid(scores_mc, batch, questions).movedim(-1, 0)
        teacher_cqw = scatter_to_grid(batch.soft.nan_to_num(nan=NO_PROBABILITY), batch, questions).movedim(-1, 0)
        asked_q = teacher_cqw[0].amax(-1) > NO_PROBABILITY / 2
        apart_q = self.apart(student_cqw, teacher_cqw).mean(0)
        return Loss(torch.where(asked_q, apart_q, 0.0).sum(), None)


def hard_label_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Cross-entropy with the class the teacher finds likeliest."""
    likeliest = teacher.argmax(-1, keepdim=True)
    return -F.log_softmax(student.float(), -1).gather(-1, likeliest).squeeze(-1)


def squared_difference(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of the scores, over those that are there (Tang et al. 2019)."""
    there = teacher > NO_PROBABILITY / 2
    return torch.where(there, student - teacher, 0.0).square().sum(-1) / there.sum(-1).clamp(min=1)


def task_distillation_objective(
    head: str, regression: bool, kind: str, alpha: float, temperature: float
) -> WeightedTerms:
    """`alpha` of the truth and the rest of what the teacher said; either is left out where it has no weight.

    Of a score there is one way to be wrong: whatever the kind, a regression is taught by squared errors."""
    assert kind in KINDS
    assert 0 <= alpha <= 1
    ways: dict[str, Divergence] = {
        "soft": lambda s, t: divergence(s, t, temperature),
        "hard": hard_label_loss,
        "mse": squared_difference,
    }
    way = squared_difference if regression else ways[kind]
    true = head_term(head, regression)
    said: Term = GridDistillation(head, way) if HEAD_KINDS[head].competing else RowDistillation(head, way)
    terms, weights = {"hard": true, "soft": said}, {"hard": alpha, "soft": 1 - alpha}
    kept = [name for name in terms if weights[name] > 0]
    return WeightedTerms({name: terms[name] for name in kept}, {name: weights[name] for name in kept})
