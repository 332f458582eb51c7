"""The objective that trains sentence vectors: a loss on the vectors of a batch, or of a whole step.

Shape letters: q questions, w texts of a question, d width of a vector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.encoder import State
from bertree.model.network import Network
from bertree.objectives.embedding_losses import EmbeddingLoss
from bertree.objectives.embedding_math import vector_table
from bertree.objectives.objective import Computed, Loss
from bertree.objectives.task_labels import TaskLabels


@dataclass(frozen=True)
class TruncatedLoss:
    """A loss summed over truncated vectors of length 1, so that the first places of a vector are good on their own
    (Matryoshka training)."""

    loss: EmbeddingLoss
    dimensions: tuple[int, ...]

    def count(self, answers: Tensor) -> int:
        """That of the loss: its sums over all dimensions are added."""
        return self.loss.count(answers)

    def __call__(self, network: Network, table_qwd: Tensor, answers: Tensor) -> Loss:
        """Sum over the dimensions."""
        tables = (F.normalize(table_qwd[..., :width], dim=-1) for width in self.dimensions)
        return Loss(torch.stack([self.loss(network, some, answers).sum for some in tables]).sum(), None)


@dataclass(frozen=True)
class EmbeddingObjective:
    """A loss on the vectors of a batch. Each row is compared with its own texts alone, so a step may be cut into
    micro-batches anywhere."""

    name: str
    loss: EmbeddingLoss | TruncatedLoss

    @property
    def weights(self) -> Mapping[str, float]:
        """There is one term."""
        return {self.name: 1.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return how many losses a batch (on the host) has."""
        return {self.name: self.loss.count(TaskLabels.of(batch).answers)}

    def __call__(self, network: nn.Module, batch: Batch, state: State | None = None) -> Computed:
        """Return the loss on a batch. Vectors have no state: a text's vector does not depend on other texts."""
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
        """Return what is known of each row."""
        return TaskLabels.of(batch).answers

    def together(self, network: nn.Module, parts: Sequence[Tensor], answers: Sequence[Tensor]) -> dict[str, Loss]:
        """Return the loss on the tables of all micro-batches of a step."""
        return self.loss_on(network, torch.cat(list(parts)), torch.cat(list(answers)))


def embedding_objective(loss: EmbeddingLoss, dimensions: tuple[int, ...] = ()) -> EmbeddingObjective:
    """Build the objective of a loss; with `dimensions`, of its sum over vectors truncated to each of them."""
    kind = ContrastiveObjective if loss.whole_step else EmbeddingObjective
    return kind(loss.name, TruncatedLoss(loss, dimensions) if dimensions else loss)
