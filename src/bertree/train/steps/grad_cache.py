"""Steps too large for memory whose parts depend on each other: gradient caching (Gao et al. 2021).

In-batch negatives make every text of a step matter to every other, so a step cannot be cut into micro-batches that are
forgotten one by one. But it depends on them only through their vectors. So all micro-batches are embedded without a
trace, the loss and its slope at every vector are computed once, and each micro-batch is embedded again with its trace,
down which its vectors' slopes are sent. It costs a second forward pass; memory is that of one micro-batch.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.data import counter_random
from bertree.objectives.objective import Loss, Objective
from bertree.train.feed import StepBatches
from bertree.train.loop import Loop


@runtime_checkable
class WholeStepObjective(Objective, Protocol):
    """An objective that sees a step only as a whole, through what it makes of each batch."""

    def part(self, network: nn.Module, batch: Batch) -> Tensor:
        """What it reads of a batch."""

    def together(self, network: nn.Module, parts: Sequence[Tensor], batches: Sequence[Batch]) -> dict[str, Loss]:
        """Every term's loss on a whole step."""


class GradCacheLoop(Loop):
    """A loop whose steps are one question, however many micro-batches they are computed in."""

    def gradients(self, work: StepBatches) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Backward passes of all micro-batches: the sum of each term, and how much it was divided by."""
        if len(work.batches) == 1:
            return super().gradients(work)
        objective = self.objective
        assert isinstance(objective, WholeStepObjective)
        self.network.train()
        counts = dict.fromkeys(objective.weights, 0)
        for batch in work.batches:
            for name, count in objective.counts(batch).items():
                counts[name] += count
        batches = [batch.to(self.device) for batch in work.batches]
        with torch.no_grad():
            parts = [self._part(objective, work, number, batch) for number, batch in enumerate(batches)]
        leaves = [part.requires_grad_() for part in parts]
        losses = objective.together(self.network, leaves, batches)
        terms = [objective.weights[n] / max(1, counts[n]) * loss.sum for n, loss in losses.items()]
        torch.stack(terms).sum().backward()
        for number, (batch, leaf) in enumerate(zip(batches, leaves, strict=True)):
            part = self._part(objective, work, number, batch)
            assert leaf.grad is not None
            part.backward(leaf.grad)
        return {name: loss.sum.detach() for name, loss in losses.items()}, counts

    def _part(self, objective: WholeStepObjective, work: StepBatches, number: int, batch: Batch) -> Tensor:
        """The same dropout both times."""
        torch.manual_seed(int(counter_random.key(self._seed, work.update.number, number, "dropout")) >> 1)
        with self.autocast():
            return objective.part(self.network, batch)
