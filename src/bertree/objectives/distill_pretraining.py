"""Distillation in pretraining: DistilBERT's three terms, two for students of another width, and sentence vectors.

    ce         the teacher's distribution at the masked tokens, softened by a temperature
    mlm        the true tokens
    cos        the direction of the last hidden states, at every token
    hidden     the hidden states of layers in between, at every token
    relation   the relations of tokens by the last layer's queries, keys and values, at every token
    vector     the direction of the sentence vector, of every sequence

Student and teacher read the same batch, the teacher without gradients. For `vector` the teacher reads the text without
masks, and a teacher without an MLM head, which knows no masks, always does. Where widths differ, the student's hidden
states are projected by a linear map that is trained with it and not kept.

Shape letters: t tokens, s sequences, h width, m predicted tokens, v vocabulary.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bertree.batch import IGNORED, Batch, PretrainingLabels
from bertree.errors import UserError
from bertree.model.encoder import State
from bertree.model.layers.attention import Attention
from bertree.model.layers.residual import Block, PostNorm, PreNorm
from bertree.model.network import Network
from bertree.model.transformer import TransformerEncoder
from bertree.objectives.distill_task import (
    cosine_distance,
    divergence,
    normalized_squared_distance,
    relation_divergence,
    top_k_divergence,
)
from bertree.objectives.objective import Computed, Loss, cross_entropy

TERMS = ("ce", "mlm", "cos", "hidden", "relation", "vector")
TEACHER_STATE_TERMS = (
    "cos",
    "hidden",
    "relation",
    "vector",
)  # terms that need the teacher's hidden states, not its logits
LAST = -1


class StudentWithProjections(nn.Module):
    """A student and linear maps to the teacher's width. Both are trained; only the student is kept."""

    def __init__(self, student: Network, projections: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.student = student
        self.bridges = nn.ModuleDict(projections)  # checkpoints hold this name

    def project(self, name: str, states_th: Tensor) -> Tensor:
        """Project the student's hidden states to the teacher's width if they differ."""
        return self.bridges[name](states_th) if name in self.bridges else states_th


def add_projections(
    student: Network, width: int, teacher_width: int, weights: Mapping[str, float], matched: int
) -> StudentWithProjections:
    """Return a student with the projections that its terms need; `matched` is how many of its layers are compared."""
    names = [*(["cos"] if weights.get("cos") else []), *(f"hidden-{n}" for n in range(matched))]
    projections = (
        {name: nn.Linear(width, teacher_width, bias=False) for name in names} if width != teacher_width else {}
    )
    for projection in projections.values():
        nn.init.normal_(projection.weight, std=width**-0.5)
    return StudentWithProjections(student, projections)


@dataclass(frozen=True, kw_only=True)
class PretrainingDistillation:
    """A weighted sum of `TERMS`; one that has no weight is not computed."""

    weights: Mapping[str, float]
    teacher: Network | None  # None: batches carry its likeliest tokens
    temperature: float = 2.0
    everywhere: bool = False  # `ce` at every token, not only at those masked
    pairs: Sequence[tuple[int, int]] = ()  # layers whose hidden states are compared: student's, teacher's
    relation: tuple[int, int, int] = (0, 0, 1)  # layers whose relations are compared, and in how many heads

    def counts(self, batch: Batch) -> dict[str, int]:
        """Count the targets of a batch on the host, by term."""
        _, targets_m = PretrainingLabels.of(batch).predicted
        masked, states = int((targets_m != IGNORED).sum()), batch.ids.numel()
        states += 0 if batch.permutation is None else batch.permutation.queries.numel()
        counts = {n: masked if n == "mlm" or (n == "ce" and not self.everywhere) else states for n in self.weights}
        return counts | ({"vector": int((batch.lengths > 0).sum())} if "vector" in counts else {})

    def __call__(self, network: nn.Module, batch: Batch, memory: State | None = None) -> Computed:
        """Return the loss of each term on a batch. Student and teacher are compared without a memory."""
        assert isinstance(network, StudentWithProjections)
        student, teacher = network.student, self.teacher
        states = _states(student, batch, {s for s, _ in self.pairs} | {self.relation[0] - 1})
        teacher_states, unmasked_states = self._teacher_states(batch)
        losses: dict[str, Loss] = {}
        if "ce" in self.weights or "mlm" in self.weights:
            losses |= self._vocabulary_losses(student, states[LAST], teacher_states, batch)
        if "cos" in self.weights:
            losses["cos"] = _sum(cosine_distance(network.project("cos", states[LAST]), teacher_states[LAST]))
        if "hidden" in self.weights:
            distances = [
                normalized_squared_distance(network.project(f"hidden-{n}", states[s]), teacher_states[t])
                for n, (s, t) in enumerate(self.pairs)
            ]
            losses["hidden"] = _sum(torch.stack(distances).mean(0))
        if "relation" in self.weights:
            assert teacher is not None
            s, t, heads = self.relation
            with torch.no_grad():
                teacher_qkv = _layer_qkv(teacher, teacher_states, t)
            losses["relation"] = _sum(relation_divergence(_layer_qkv(student, states, s), teacher_qkv, batch, heads))
        if "vector" in self.weights:
            assert teacher is not None
            with torch.no_grad():
                wanted_sd = teacher.vectors(unmasked_states[LAST], batch)
            distance_s = cosine_distance(student.vectors(states[LAST], batch), wanted_sd)
            losses["vector"] = _sum(torch.where(batch.lengths > 0, distance_s, 0.0))
        return Computed({name: losses[name] for name in self.weights})

    def _teacher_states(self, batch: Batch) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Return the teacher's hidden states of the batch, and of the text without masks; empty if not needed."""
        teacher = self.teacher
        if teacher is None:
            return {}, {}
        depths = {t for _, t in self.pairs} | {self.relation[1] - 1}
        knows_masks = "mask" in teacher.heads
        masked: dict[int, Tensor] = {}
        unmasked: dict[int, Tensor] = {}
        with torch.no_grad():
            if "vector" in self.weights or not knows_masks:
                unmasked = _states(teacher, without_masks(batch), depths)
            if not knows_masks:
                return unmasked, unmasked
            if set(self.weights) - {"mlm", "vector"}:
                masked = _states(teacher, batch, depths)
        return masked, unmasked

    def _vocabulary_losses(
        self, student: Network, states_th: Tensor, teacher_states: Mapping[int, Tensor], batch: Batch
    ) -> dict[str, Loss]:
        """Return the losses over the vocabulary, `ce` and `mlm`; the head is computed once for both."""
        labels = PretrainingLabels.of(batch)
        masked_m, targets_m = labels.predicted
        everywhere = self.everywhere and "ce" in self.weights
        index_m = torch.arange(batch.ids.numel(), device=batch.ids.device) if everywhere else masked_m
        logits_mv = student.mask_logits(states_th, index_m, pad_vocab=True)
        losses = {}
        if "ce" in self.weights:
            if self.teacher is None:
                assert labels.teacher is not None
                kl_m = top_k_divergence(logits_mv, labels.teacher.scores, labels.teacher.ids.long(), self.temperature)
            else:
                with torch.no_grad():
                    teacher_mv = self.teacher.mask_logits(teacher_states[LAST], index_m, pad_vocab=True)
                kl_m = divergence(logits_mv, teacher_mv, self.temperature)
            counted_m = torch.ones_like(index_m, dtype=torch.bool) if everywhere else targets_m != IGNORED
            losses["ce"] = _sum(torch.where(counted_m, kl_m, 0.0))
        if "mlm" in self.weights:
            losses["mlm"] = cross_entropy(logits_mv[masked_m] if everywhere else logits_mv, targets_m)
        return losses


def without_masks(batch: Batch) -> Batch:
    """Return a batch with the tokens that were masked."""
    masked_m, targets_m = PretrainingLabels.of(batch).predicted
    known_m = torch.where(targets_m == IGNORED, batch.ids[masked_m], targets_m)
    return replace(batch, ids=batch.ids.index_put((masked_m,), known_m))


def _states(network: Network, batch: Batch, depths: Set[int]) -> dict[int, Tensor]:
    """Return the hidden states at these depths, and the last as `LAST`."""
    states = {}
    for depth, state in enumerate(network.encoder.states(batch)):
        states[LAST] = state
        if depth in depths:
            states[depth] = state
    return states


def _sum(rows: Tensor) -> Loss:
    return Loss(rows.sum(), None)


def _layer_qkv(network: Network, states: Mapping[int, Tensor], layer: int) -> Tensor:
    """Return the queries, keys and values of a layer (t x 3 x h), from its input."""
    assert isinstance(network.encoder, TransformerEncoder), "no other encoder is pretrained"
    stack = network.encoder.stack
    block = stack.attention[stack.sharing[layer - 1][0]]
    part = getattr(block, "part", None)
    if type(block) is not Block or type(part) is not Attention or part.positions is not None:
        kinds = f"{type(block).__name__} of {type(part).__name__}"
        kinds += f" with {type(part.positions).__name__}" if isinstance(part, Attention) and part.positions else ""
        raise UserError(f"relation: the queries and keys of layer {layer} cannot be read: it is a {kinds}")
    if type(stack.residual) not in (PostNorm, PreNorm):
        kind = type(stack.residual).__name__
        raise UserError(f"relation: the input of layer {layer} cannot be read: its residual connection is a {kind}")
    qkv_t3h: Tensor = part.qkv(stack.residual.read(states[layer - 1], block)).unflatten(-1, (3, -1))
    return qkv_t3h


def distillation_objective(
    weights: Mapping[str, float],
    teacher: Network | None,
    *,
    temperature: float = 2.0,
    everywhere: bool = False,
    pairs: Sequence[tuple[int, int]] = (),
    relation: tuple[int, int, int] = (0, 0, 1),
) -> PretrainingDistillation:
    """Return the sum of the terms whose weight is not 0."""
    used = {name: weights[name] for name in TERMS if weights.get(name)}
    assert teacher is not None or not set(used) & set(TEACHER_STATE_TERMS), "hidden states are not cached on disk"
    return PretrainingDistillation(
        weights=used,
        teacher=teacher,
        temperature=temperature,
        everywhere=everywhere,
        pairs=tuple(pairs),
        relation=relation,
    )
