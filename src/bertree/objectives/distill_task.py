"""Distillation on a task: the true labels, and the teacher's logits in one of three ways.

The teacher was run beforehand, so a batch carries its logits (`TaskLabels.soft`): a row for each row of the student's,
NaN where there are none (padding, or examples the teacher was not run on). Labels and logits are two terms with counts
of their own, because augmented examples have no label.

Shape letters: m rows of the head (sequences or chosen tokens), q questions, w grid width, c classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bertree.batch import Batch
from bertree.model.heads import NO_PROBABILITY
from bertree.model.network import Network
from bertree.objectives.divergences import divergence
from bertree.objectives.objective import Loss, Term, WeightedTerms
from bertree.objectives.supervised import HEAD_KINDS, head_term
from bertree.objectives.task_labels import TaskLabels

KINDS = ("soft", "hard", "mse")
Divergence = Callable[
    [Tensor, Tensor], Tensor
]  # scores of student and teacher (... x classes) -> a number for each row


@dataclass(frozen=True)
class RowDistillation:
    """The teacher's logits of a sequence, or of each chosen token."""

    head: str
    divergence: Divergence

    def count(self, batch: Batch) -> int:
        """Count the rows that have the teacher's logits."""
        _, soft_mc = _soft_labels(batch)
        return int((~soft_mc[:, 0].isnan()).sum())

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Sum the divergence from the teacher over them."""
        labels, soft_mc = _soft_labels(batch)
        scores_mc = network.class_logits(self.head, hidden_th, batch, labels.chosen)
        divergence_m = self.divergence(scores_mc.float(), soft_mc.nan_to_num())
        return Loss(torch.where(soft_mc[:, 0].isnan(), 0.0, divergence_m).sum(), None)


@dataclass(frozen=True)
class GridDistillation:
    """The teacher's logits of the options of a question, or of the tokens of a passage (mean of start and end)."""

    head: str
    divergence: Divergence

    def count(self, batch: Batch) -> int:
        """Count the questions that have the teacher's logits."""
        labels, soft_mc = _soft_labels(batch)
        assert labels.cells is not None
        return int((labels.cells[~soft_mc[:, 0].isnan()] // max(1, labels.width)).unique().numel())

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Sum the divergence from the teacher over them."""
        labels, soft_mc = _soft_labels(batch)
        scores_mc = network.class_logits(self.head, hidden_th, batch, labels.chosen)
        student_cqw = labels.grid.scatter(scores_mc).movedim(-1, 0)
        teacher_cqw = labels.grid.scatter(soft_mc.nan_to_num(nan=NO_PROBABILITY)).movedim(-1, 0)
        known_q = teacher_cqw[0].amax(-1) > NO_PROBABILITY / 2
        divergence_q = self.divergence(student_cqw, teacher_cqw).mean(0)
        return Loss(torch.where(known_q, divergence_q, 0.0).sum(), None)


def _soft_labels(batch: Batch) -> tuple[TaskLabels, Tensor]:
    labels = TaskLabels.of(batch)
    assert labels.soft is not None, "the teacher must be run beforehand"
    return labels, labels.soft


def hard_label_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the cross-entropy with the teacher's likeliest class."""
    likeliest = teacher.argmax(-1, keepdim=True)
    return -F.log_softmax(student.float(), -1).gather(-1, likeliest).squeeze(-1)


def squared_difference(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean squared difference of the logits that are not padding (Tang et al. 2019)."""
    there = teacher > NO_PROBABILITY / 2
    return torch.where(there, student - teacher, 0.0).square().sum(-1) / there.sum(-1).clamp(min=1)


def task_distillation_objective(
    head: str, regression: bool, kind: str, alpha: float, temperature: float
) -> WeightedTerms:
    """Return `alpha` times the loss on true labels plus the rest times that on the teacher's logits.

    A term without weight is left out. A regression is always distilled by squared errors."""
    assert kind in KINDS
    assert 0 <= alpha <= 1
    divergences: dict[str, Divergence] = {
        "soft": lambda s, t: divergence(s, t, temperature),
        "hard": hard_label_loss,
        "mse": squared_difference,
    }
    chosen = squared_difference if regression else divergences[kind]
    labels = head_term(head, regression)
    logits: Term = GridDistillation(head, chosen) if HEAD_KINDS[head].competing else RowDistillation(head, chosen)
    terms, weights = {"hard": labels, "soft": logits}, {"hard": alpha, "soft": 1 - alpha}
    kept = [name for name in terms if weights[name] > 0]
    return WeightedTerms({name: terms[name] for name in kept}, {name: weights[name] for name in kept})
