"""Distillation on a task: the true labels, and the teacher's logits in one of three ways.

The teacher was run beforehand, so a batch carries its logits (`TaskLabels.teacher_logits`): a row for each row of the
student's, NaN where there are none (padding, or examples the teacher was not run on). Labels and logits are two terms
with counts of their own, because augmented examples have no label.

The divergences are functions of their own, which distillation on text uses too: how far a student is from its teacher
in logits, in the direction of hidden states, in hidden states, in relations of tokens. Each returns one number per row
(a masked token, a token, a sequence), so that the caller can leave rows out and sum the rest.

Shape letters: m rows (sequences, tokens or masked tokens), q questions, w grid width, c classes or vocabulary, k
likeliest classes, t tokens, h width, s sequences, l longest sequence, r relation heads, d width of one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bertree.batch import Batch
from bertree.model.heads import NO_PROBABILITY
from bertree.model.network import Network
from bertree.objectives.objective import Loss, Term, WeightedTerms
from bertree.objectives.supervised import HEAD_KINDS, TaskLabels, head_term

KINDS = ("soft", "hard", "mse")
# Scores of student and teacher (... x classes) -> a number for each row.
Divergence = Callable[[Tensor, Tensor], Tensor]


def divergence(student_mc: Tensor, teacher_mc: Tensor, temperature: float) -> Tensor:
    """Return KL(teacher || student) of the softmaxes at a temperature, times its square (m).

    The square keeps the size of the gradient: softer targets make it smaller by that factor (Hinton et al. 2015).
    With growing temperature this tends to half the variance of the difference of the logits.
    """
    student_mc = F.log_softmax(student_mc.float() / temperature, -1)
    teacher_mc = F.log_softmax(teacher_mc.float() / temperature, -1)
    return temperature**2 * (teacher_mc.exp() * (teacher_mc - student_mc)).sum(-1)


def top_k_log_probabilities(teacher_mc: Tensor, k: int, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of the teacher's k likeliest classes, and their indices (m x k)."""
    top = F.log_softmax(teacher_mc.float() / temperature, -1).topk(k, -1)
    return top.values, top.indices


def top_k_divergence(student_mc: Tensor, kept_mk: Tensor, ids_mk: Tensor, temperature: float) -> Tensor:
    """Return `divergence` where only the teacher's k likeliest classes are known (m): all others count as one class.

    It is at most the full divergence, and 0 where the student agrees; the teacher's other probabilities are lost.
    """
    student_mc = F.log_softmax(student_mc.float() / temperature, -1)
    student_mk = student_mc.gather(-1, ids_mk)
    kept_mk = kept_mk.float()
    known_m = (kept_mk.exp() * (kept_mk - student_mk)).sum(-1)
    teacher_m, rest_m = _log_remainder(kept_mk), _log_remainder(student_mk)
    return temperature**2 * (known_m + teacher_m.exp() * (teacher_m - rest_m))


def _log_remainder(kept_mk: Tensor) -> Tensor:
    """Return the log of the remaining probability, bounded away from 0 because of rounding."""
    return torch.log1p(-kept_mk.exp().sum(-1).clamp(max=1 - 1e-6))


def cosine_distance(student_th: Tensor, teacher_th: Tensor) -> Tensor:
    """Return 1 - cosine of the two hidden states of each token (t)."""
    return 1 - F.cosine_similarity(student_th.float(), teacher_th.float(), -1)


def normalized_squared_distance(student_th: Tensor, teacher_th: Tensor) -> Tensor:
    """Return the mean squared difference of the two hidden states of each token (t), normalized to mean 0, variance 1.

    The size of hidden states differs by depth, in pre-norm encoders by a lot, and layers read them normalized.
    """
    normed = [F.layer_norm(x.float(), x.shape[-1:]) for x in (student_th, teacher_th)]
    return (normed[0] - normed[1]).square().mean(-1)


def relation_divergence(student_t3h: Tensor, teacher_t3h: Tensor, batch: Batch, heads: int) -> Tensor:
    """Return how far the token relations of the two differ (t): the mean KL(teacher || student) over `heads` and over
    queries, keys and values, each related to itself (MiniLM v2, Wang et al. 2021).

    Widths and numbers of attention heads may differ: relations have one shape, tokens x tokens.
    """
    longest = batch.max_seqlen
    slots_l = torch.arange(longest, device=batch.ids.device)
    real_sl = slots_l < batch.lengths[:, None]
    token_sl = torch.where(real_sl, batch.cu_seqlens[:-1, None].long() + slots_l, 0)
    total_sl = torch.zeros(token_sl.shape, device=batch.ids.device)
    for kind in range(3):
        teacher = _relations(teacher_t3h[:, kind], token_sl, real_sl, heads)
        student = _relations(student_t3h[:, kind], token_sl, real_sl, heads)
        kl = torch.where(real_sl[:, None, None, :], teacher.exp() * (teacher - student), 0.0)
        total_sl = total_sl + kl.sum(-1).mean(1) / 3
    tokens_t = torch.arange(batch.ids.numel(), device=batch.ids.device)
    row_t = torch.searchsorted(batch.cu_seqlens[1:].long(), tokens_t, right=True)
    return total_sl[row_t, tokens_t - batch.cu_seqlens.long()[row_t]]


def _relations(x_th: Tensor, token_sl: Tensor, real_sl: Tensor, heads: int) -> Tensor:
    """Return the log-softmax of every token's products with the tokens of its sequence (s x r x l x l)."""
    x_srld = x_th.unflatten(-1, (heads, -1))[token_sl].transpose(1, 2)
    scores = (x_srld @ x_srld.transpose(-1, -2)).float() / math.sqrt(x_srld.shape[-1])
    return F.log_softmax(scores.masked_fill(~real_sl[:, None, None, :], -1e9), -1)


@dataclass(frozen=True)
class RowDistillation:
    """The teacher's logits of a sequence, or of each chosen token."""

    head: str
    divergence: Divergence

    def count(self, batch: Batch) -> int:
        """Count the rows that have the teacher's logits."""
        _, teacher_mc = _labels_with_teacher(batch)
        return int((~teacher_mc[:, 0].isnan()).sum())

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Sum the divergence from the teacher over them."""
        labels, teacher_mc = _labels_with_teacher(batch)
        scores_mc = network.class_logits(self.head, hidden_th, batch, labels.chosen)
        divergence_m = self.divergence(scores_mc.float(), teacher_mc.nan_to_num())
        return Loss(torch.where(teacher_mc[:, 0].isnan(), 0.0, divergence_m).sum(), None)


@dataclass(frozen=True)
class GridDistillation:
    """The teacher's logits of the options of a question, or of the tokens of a passage (mean of start and end)."""

    head: str
    divergence: Divergence

    def count(self, batch: Batch) -> int:
        """Count the questions that have the teacher's logits."""
        labels, teacher_mc = _labels_with_teacher(batch)
        assert labels.cells is not None
        return int((labels.cells[~teacher_mc[:, 0].isnan()] // max(1, labels.width)).unique().numel())

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Sum the divergence from the teacher over them."""
        labels, teacher_mc = _labels_with_teacher(batch)
        scores_mc = network.class_logits(self.head, hidden_th, batch, labels.chosen)
        student_cqw = labels.grid.scatter(scores_mc).movedim(-1, 0)
        teacher_cqw = labels.grid.scatter(teacher_mc.nan_to_num(nan=NO_PROBABILITY)).movedim(-1, 0)
        known_q = teacher_cqw[0].amax(-1) > NO_PROBABILITY / 2
        divergence_q = self.divergence(student_cqw, teacher_cqw).mean(0)
        return Loss(torch.where(known_q, divergence_q, 0.0).sum(), None)


def _labels_with_teacher(batch: Batch) -> tuple[TaskLabels, Tensor]:
    labels = TaskLabels.of(batch)
    assert labels.teacher_logits is not None, "the teacher must be run beforehand"
    return labels, labels.teacher_logits


def hard_label_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the cross-entropy with the teacher's likeliest class."""
    likeliest = teacher.argmax(-1, keepdim=True)
    return -F.log_softmax(student.float(), -1).gather(-1, likeliest).squeeze(-1)


def squared_difference(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean squared difference of the logits that are not padding (Tang et al. 2019)."""
    scored = teacher > NO_PROBABILITY / 2
    return torch.where(scored, student - teacher, 0.0).square().sum(-1) / scored.sum(-1).clamp(min=1)


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
