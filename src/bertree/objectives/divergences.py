"""How far a student is from its teacher: in logits, in the direction of states, in states, in token relations.

Every function returns one number per row (a masked token, a token, a sequence), so that the caller can leave rows out
and sum the rest: a loss is a sum and a count.

Shape letters: m rows, c classes or vocabulary, k likeliest classes, t tokens, h width, s sequences, l longest sequence,
r relation heads, d width of one.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bertree.batch import Batch


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
    """Return 1 - cosine of the two states of each token (t)."""
    return 1 - F.cosine_similarity(student_th.float(), teacher_th.float(), -1)


def normalized_squared_distance(student_th: Tensor, teacher_th: Tensor) -> Tensor:
    """Return the mean squared difference of the two states of each token (t), both normalized to mean 0, variance 1.

    The size of states differs by depth, in pre-norm encoders by a lot, and layers read them normalized.
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
