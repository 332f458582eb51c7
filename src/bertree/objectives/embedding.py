"""The objective that trains sentence vectors, and the functions that its losses (embedding_losses.py) are made of.

All texts of a question (two of a pair, three of a triplet, more with hard negatives) lie in one packed batch, so both
towers are one pass through the encoder. Their vectors are laid into a table of questions x texts, in which the first
text is the anchor and the second the positive. Everything here is fp32, whatever the encoder is computed in: the
cosines of good vectors differ in the third digit.

Shape letters: q questions, w texts of a question, s sequences, d width of a vector, n negatives, c classes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import IGNORED, Batch
from bertree.model.encoder import State
from bertree.model.heads import PairClassifier
from bertree.model.network import Network
from bertree.objectives.objective import Computed, Loss
from bertree.objectives.supervised import TaskLabels

Distance = Callable[[Tensor, Tensor], Tensor]
# `vector_norm` has gradient 0 at 0, where a square root would have an infinite one.
DISTANCE_FUNCTIONS: dict[str, Distance] = {
    "euclidean": lambda a, b: torch.linalg.vector_norm(a - b, dim=-1),
    "manhattan": lambda a, b: torch.linalg.vector_norm(a - b, ord=1, dim=-1),
    "cosine": lambda a, b: 1 - torch.cosine_similarity(a, b, dim=-1),
}


def cosine_errors(u_qd: Tensor, v_qd: Tensor, wanted_q: Tensor) -> Tensor:
    """Return the squared difference of the cosines and their targets (q)."""
    return (torch.cosine_similarity(u_qd, v_qd, dim=-1) - wanted_q).square()


def cosent_error(table_qwd: Tensor, scores_q: Tensor, scale: float) -> Tensor:
    """Return log(1 + sum of exp(scale * (the cosine of a row - that of a row with a higher score)))."""
    cosines_q = scale * torch.cosine_similarity(table_qwd[:, 0], table_qwd[:, 1], dim=-1)
    differences_qq = cosines_q[:, None] - cosines_q
    wrong_qq = scores_q[:, None] < scores_q  # False where a score is NaN
    rest = differences_qq.masked_fill(~wrong_qq, -torch.inf).flatten()
    return torch.cat([rest, rest.new_zeros(1)]).logsumexp(0)


def margin_errors(table_qwd: Tensor, wanted_q: Tensor, scale: float) -> Tensor:
    """Return the squared difference of (cosine of the positive - that of the first negative) and its target (q)."""
    near_q, far_q = (torch.cosine_similarity(table_qwd[:, 0], table_qwd[:, n], dim=-1) for n in (1, 2))
    return (scale * (near_q - far_q) - wanted_q).square()


def triplet_errors(table_qwd: Tensor, distance: Distance, margin: float) -> Tensor:
    """Return by how much each negative is nearer than the positive plus a margin, or 0 (q x n)."""
    anchors_q1d = table_qwd[:, :1]
    near_q1, far_qn = distance(anchors_q1d, table_qwd[:, 1:2]), distance(anchors_q1d, table_qwd[:, 2:])
    return F.relu(near_q1 - far_qn + margin)


def ranking_errors(table_qwd: Tensor, names_qw: Tensor, scale: float, symmetric: bool) -> Tensor:
    """Return the cross-entropy of finding an anchor's positive among all positives and negatives of the batch (q).

    `names_qw` are numbers that tell texts apart, IGNORED where there is none. A candidate that is the same text as the
    anchor or its positive, or the positive of an equal anchor, is no wrong answer and does not compete. `symmetric`:
    the mean of that and of finding the anchor among all anchors."""
    unit_qwd = F.normalize(table_qwd, dim=-1)
    others_qwd = unit_qwd[:, 1:]
    scores_qqw = (scale * unit_qwd[:, 0] @ others_qwd.flatten(0, 1).T).unflatten(1, others_qwd.shape[:2])
    never_qqw = _not_competing(names_qw)
    right_q = scores_qqw[..., 0].diagonal()
    errors_q = scores_qqw.masked_fill(never_qqw, -torch.inf).flatten(1).logsumexp(-1) - right_q
    if not symmetric:
        return errors_q
    same_qq = torch.eye(len(names_qw), dtype=torch.bool, device=names_qw.device)
    never_qq = never_qqw[..., 0].T | ((names_qw[:, 0] == IGNORED) & ~same_qq)
    back_q = scores_qqw[..., 0].T.masked_fill(never_qq, -torch.inf).logsumexp(-1) - right_q
    return (errors_q + back_q) / 2


def _not_competing(names_qw: Tensor) -> Tensor:
    """Mask the candidates (second index: of which row, third: its positive, its negatives) that are not wrong answers
    for an anchor (first index)."""
    anchors_q11, positives_q11, candidates_qw = names_qw[:, :1, None], names_qw[:, 1:2, None], names_qw[:, 1:]
    same_qqw = (candidates_qw == anchors_q11) | (candidates_qw == positives_q11) | (candidates_qw == IGNORED)
    first_w = torch.arange(candidates_qw.shape[1], device=names_qw.device) == 0
    kin_qqw = (names_qw[:, :1] == names_qw[:, 0])[..., None] & first_w
    own_qqw = torch.eye(len(names_qw), dtype=torch.bool, device=names_qw.device)[..., None] & first_w
    return (same_qqw | kin_qqw) & ~own_qqw


def vector_table(vectors_sd: Tensor, labels: TaskLabels) -> Tensor:
    """Lay vectors into their cells (q x w x d), in fp32; empty cells hold ones, which have finite cosines."""
    assert labels.cells is not None
    cells = len(labels.answers) * labels.width
    empty = vectors_sd.new_ones((cells, vectors_sd.shape[1]), dtype=torch.float32)
    return empty.index_put((labels.cells,), vectors_sd.float()).unflatten(0, (-1, labels.width))


def pair_logits(network: Network, table_qwd: Tensor) -> Tensor:
    """Return the classifier's logits for each pair (q x c)."""
    head = network.heads["compare"]
    assert isinstance(head, PairClassifier)
    scores_qc: Tensor = head(table_qwd[:, 0], table_qwd[:, 1])
    return scores_qc


class VectorLoss(Protocol):
    """A loss on a table of vectors."""

    def count(self, answers: Tensor) -> int:
        """Return how many losses are summed, on the host."""

    def __call__(self, network: Network, table_qwd: Tensor, answers: Tensor) -> Loss:
        """Return the sum of the losses."""


class NamedLoss(VectorLoss, Protocol):
    """A loss with a name, which may depend on all rows of a step."""

    name: ClassVar[str]
    whole_step: ClassVar[bool]


@dataclass(frozen=True)
class TruncatedLoss:
    """A loss summed over truncated vectors of length 1, so that the first dimensions of a vector work alone
    (Matryoshka training)."""

    loss: VectorLoss
    dimensions: tuple[int, ...]

    def count(self, answers: Tensor) -> int:
        """Return the count of the loss, whose sums over all dimensions are added."""
        return self.loss.count(answers)

    def __call__(self, network: Network, table_qwd: Tensor, answers: Tensor) -> Loss:
        """Sum over the dimensions."""
        tables = (F.normalize(table_qwd[..., :width], dim=-1) for width in self.dimensions)
        return Loss(torch.stack([self.loss(network, table, answers).sum for table in tables]).sum(), None)


@dataclass(frozen=True)
class EmbeddingObjective:
    """A loss on the vectors of a batch. Each row is compared with its own texts alone, so a step may be cut into
    micro-batches anywhere."""

    name: str
    loss: VectorLoss

    @property
    def weights(self) -> Mapping[str, float]:
        """There is one term."""
        return {self.name: 1.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return how many losses a batch (on the host) has."""
        return {self.name: self.loss.count(TaskLabels.of(batch).answers)}

    def __call__(self, network: nn.Module, batch: Batch, memory: State | None = None) -> Computed:
        """Return the loss on a batch. There is no memory: a text's vector does not depend on other texts."""
        return Computed(self.loss_on(network, self.part(network, batch), TaskLabels.of(batch).answers))

    def part(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the table of vectors of a batch."""
        assert isinstance(network, Network)
        return vector_table(network.vectors(network(batch), batch), TaskLabels.of(batch))

    def loss_on(self, network: nn.Module, table_qwd: Tensor, answers: Tensor) -> dict[str, Loss]:
        """Return the loss on a table of vectors."""
        assert isinstance(network, Network)
        with torch.autocast(table_qwd.device.type, enabled=False):
            return {self.name: self.loss(network, table_qwd, answers)}


class ContrastiveObjective(EmbeddingObjective):
    """A loss that depends on all rows of a step, so its micro-batches must come together."""

    @property
    def all_ranks(self) -> bool:
        """Whether the rows of all ranks come together; else those of each rank. A loss may have a setting for it."""
        loss = self.loss.loss if isinstance(self.loss, TruncatedLoss) else self.loss
        return bool(getattr(loss, "all_ranks", True))

    def answers(self, batch: Batch) -> Tensor:
        """Return the gold label of each row."""
        return TaskLabels.of(batch).answers

    def together(self, network: nn.Module, parts: Sequence[Tensor], answers: Sequence[Tensor]) -> dict[str, Loss]:
        """Return the loss on the tables of all micro-batches of a step."""
        return self.loss_on(network, torch.cat(list(parts)), torch.cat(list(answers)))


class ClassPairs:
    """Texts of one class should have a cosine of 1, texts of different classes 0: squared errors over all pairs of a
    step, where both kinds of pairs weigh the same (SetFit)."""

    name: ClassVar[str] = "pairs"
    whole_step: ClassVar[bool] = True

    def count(self, answers: Tensor) -> int:
        """Count the texts."""
        return len(answers)

    def __call__(self, network: Network, table_qwd: Tensor, answers: Tensor) -> Loss:
        """Sum, over the texts, of the mean error of a pair. There is one vector in each row of the table."""
        unit_qd = F.normalize(table_qwd[:, 0].float(), dim=-1)
        same_qq = answers[:, None] == answers
        errors_qq = (unit_qd @ unit_qd.T - same_qq.float()).square()
        alike_qq = same_qq & ~torch.eye(len(answers), dtype=torch.bool, device=answers.device)
        means = [(errors_qq * kind).sum() / kind.sum().clamp(min=1) for kind in (alike_qq, ~same_qq)]
        return Loss(len(answers) * (means[0] + means[1]) / 2, None)


class ClassContrast(ContrastiveObjective):
    """`ClassPairs` on what the head of a task on whole texts reads."""

    def part(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the table of vectors of a batch: one in each row."""
        assert isinstance(network, Network)
        return network.text_states("sequence", network(batch), batch)[:, None]


CLASS_CONTRAST = ClassContrast(ClassPairs.name, ClassPairs())


def embedding_objective(loss: NamedLoss, dimensions: tuple[int, ...] = ()) -> EmbeddingObjective:
    """Build the objective of a loss; with `dimensions`, of its sum over vectors truncated to each of them."""
    kind = ContrastiveObjective if loss.whole_step else EmbeddingObjective
    return kind(loss.name, TruncatedLoss(loss, dimensions) if dimensions else loss)
