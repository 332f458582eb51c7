"""What training vectors asks: classes of pairs, their similarity, the order of triplets, the right one of many.

All texts of a question (two of a pair, three of a triplet, more with hard negatives) lie in one packed batch, so both
towers are one pass through the encoder. Their vectors are laid into a table of questions x texts, in which the first
text is the anchor and the second the positive. Everything here is fp32, whatever the encoder is computed in: the
cosines of good vectors differ in the third digit.

Shape letters: q questions, w texts of a question, s sequences, d width of a vector, n negatives.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.comparison import Comparison
from bertree.model.network import Network
from bertree.objectives.objective import IGNORED, Loss, cross_entropy

Distance = Callable[[Tensor, Tensor], Tensor]
# A norm of nothing has no slope, and `vector_norm` says 0 where a root would say infinity.
DISTANCES: dict[str, Distance] = {
    "euclidean": lambda a, b: torch.linalg.vector_norm(a - b, dim=-1),
    "manhattan": lambda a, b: torch.linalg.vector_norm(a - b, ord=1, dim=-1),
    "cosine": lambda a, b: 1 - torch.cosine_similarity(a, b, dim=-1),
}


def cosine_errors(u_qd: Tensor, v_qd: Tensor, wanted_q: Tensor) -> Tensor:
    """Squared difference of the cosines and what they should be (q)."""
    return (torch.cosine_similarity(u_qd, v_qd, dim=-1) - wanted_q).square()


def triplet_errors(table_qwd: Tensor, distance: Distance, margin: float) -> Tensor:
    """How much each negative is too near, measured by the positive and a margin (q x negatives)."""
    anchors_q1d = table_qwd[:, :1]
    near_q1, far_qn = distance(anchors_q1d, table_qwd[:, 1:2]), distance(anchors_q1d, table_qwd[:, 2:])
    return F.relu(near_q1 - far_qn + margin)


def ranking_errors(table_qwd: Tensor, names_qw: Tensor, scale: float, symmetric: bool) -> Tensor:
    """Cross-entropy of finding an anchor's positive among all positives and negatives of the batch (q).

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
    """Which candidates (second index: whose, third: its positive, its negatives) are no answer for which anchor."""
    anchors_q11, positives_q11, candidates_qw = names_qw[:, :1, None], names_qw[:, 1:2, None], names_qw[:, 1:]
    same_qqw = (candidates_qw == anchors_q11) | (candidates_qw == positives_q11) | (candidates_qw == IGNORED)
    first_w = torch.arange(candidates_qw.shape[1], device=names_qw.device) == 0
    kin_qqw = (names_qw[:, :1] == names_qw[:, 0])[..., None] & first_w
    own_qqw = torch.eye(len(names_qw), dtype=torch.bool, device=names_qw.device)[..., None] & first_w
    return (same_qqw | kin_qqw) & ~own_qqw


class Question(Protocol):
    """What is asked about the table of a batch."""

    def count(self, answers: Tensor) -> int:
        """How many of the questions have an answer; on the host."""

    def __call__(self, network: Network, table_qwd: Tensor, answers: Tensor) -> Loss:
        """The sum of the losses over them."""


class Softmax:
    """A class of each pair, by the network's `compare` head."""

    def count(self, answers: Tensor) -> int:
        """Pairs with a class."""
        return int((answers != IGNORED).sum())

    def __call__(self, network: Network, table_qwd: Tensor, answers: Tensor) -> Loss:
        """Cross-entropy."""
        return cross_entropy(compared(network, table_qwd), answers)


class Cosine:
    """A cosine of each pair, given as a number; one that is not a number is not asked for."""

    def count(self, answers: Tensor) -> int:
        """Pairs with a score."""
        return int((~answers.isnan()).sum())

    def __call__(self, network: Network, table_qwd: Tensor, answers: Tensor) -> Loss:
        """Squared error."""
        errors_q = cosine_errors(table_qwd[:, 0], table_qwd[:, 1], answers.nan_to_num())
        return Loss(torch.where(answers.isnan(), 0.0, errors_q).sum(), None)


@dataclass(frozen=True)
class Triplet:
    """The positive nearer than each negative."""

    margin: float = 5.0
    distance: str = "euclidean"

    def count(self, answers: Tensor) -> int:
        """Triplets: as many as there are negatives."""
        return int((answers[:, 2:] != IGNORED).sum())

    def __call__(self, network: Network, table_qwd: Tensor, answers: Tensor) -> Loss:
        """What is too near."""
        errors_qn = triplet_errors(table_qwd, DISTANCES[self.distance], self.margin)
        return Loss(torch.where(answers[:, 2:] == IGNORED, 0.0, errors_qn).sum(), None)


@dataclass(frozen=True)
class Ranking:
    """The positive before everything else in the batch."""

    scale: float = 20.0
    symmetric: bool = False

    def count(self, answers: Tensor) -> int:
        """Anchors."""
        return int((answers[:, 0] != IGNORED).sum())

    def __call__(self, network: Network, table_qwd: Tensor, answers: Tensor) -> Loss:
        """Cross-entropy."""
        errors_q = ranking_errors(table_qwd, answers, self.scale, self.symmetric)
        return Loss(torch.where(answers[:, 0] == IGNORED, 0.0, errors_q).sum(), None)


def table(vectors_sd: Tensor, batch: Batch) -> Tensor:
    """Vectors in their cells (q x w x d), fp32; a cell nobody fills holds a 1 in every place, which is harmless."""
    assert batch.cells is not None
    assert batch.answers is not None
    cells = len(batch.answers) * batch.width
    empty = vectors_sd.new_ones((cells, vectors_sd.shape[1]), dtype=torch.float32)
    return empty.index_put((batch.cells,), vectors_sd.float()).unflatten(0, (-1, batch.width))


def compared(network: Network, table_qwd: Tensor) -> Tensor:
    """What the classifier says about each pair (q x c)."""
    head = network.heads["compare"]
    assert isinstance(head, Comparison)
    scores_qc: Tensor = head(table_qwd[:, 0], table_qwd[:, 1])
    return scores_qc


@dataclass(frozen=True)
class Siamese:
    """One question about the vectors of a batch. Each question of it is answered by its own texts alone, so a step
    may be cut into pieces anywhere."""

    name: str
    question: Question

    @property
    def weights(self) -> Mapping[str, float]:
        """There is one term."""
        return {self.name: 1.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Questions a batch (on the host) asks."""
        assert batch.answers is not None
        return {self.name: self.question.count(batch.answers)}

    def __call__(self, network: nn.Module, batch: Batch) -> dict[str, Loss]:
        """The loss on a batch."""
        return self.asked(network, self.part(network, batch), batch.answers)

    def part(self, network: nn.Module, batch: Batch) -> Tensor:
        """The table of a batch."""
        assert isinstance(network, Network)
        return table(network.vectors(network(batch), batch), batch)

    def asked(self, network: nn.Module, table_qwd: Tensor, answers: Tensor | None) -> dict[str, Loss]:
        """The loss on a table."""
        assert isinstance(network, Network)
        assert answers is not None
        with torch.autocast(table_qwd.device.type, enabled=False):
            return {self.name: self.question(network, table_qwd, answers)}


class Contrastive(Siamese):
    """A question whose answer depends on all that is in the step, so its pieces must come together."""

    def together(self, network: nn.Module, parts: Sequence[Tensor], batches: Sequence[Batch]) -> dict[str, Loss]:
        """The loss on the tables of a whole step."""
        answers = [batch.answers for batch in batches if batch.answers is not None]
        return self.asked(network, torch.cat(list(parts)), torch.cat(answers))


def siamese(
    loss: str,
    *,
    margin: float = 5.0,
    distance: str = "euclidean",
    scale: float = 20.0,
    symmetric: bool = False,
) -> Siamese:
    """The objective of that name: softmax, cosine, triplet or ranking."""
    if loss == "ranking":
        return Contrastive(loss, Ranking(scale, symmetric))
    questions: dict[str, Question] = {"softmax": Softmax(), "cosine": Cosine(), "triplet": Triplet(margin, distance)}
    return Siamese(loss, questions[loss])
