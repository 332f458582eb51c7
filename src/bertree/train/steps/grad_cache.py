"""Gradient caching (Gao et al. 2021): steps too large for memory whose loss needs all examples at once.

With in-batch negatives every text of a step matters to every other, so the loss is not a sum over micro-batches. But it
depends on them only through their vectors. So all micro-batches are embedded without gradients, the loss and its
gradient with respect to the vectors are computed once, and each micro-batch is embedded again and given the gradient of
its vectors. It costs a second forward pass; memory is that of one micro-batch.
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
    """An objective that needs all micro-batches of a step at once, through the vectors of each."""

    def part(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the vectors of a micro-batch."""

    def together(self, network: nn.Module, parts: Sequence[Tensor], batches: Sequence[Batch]) -> dict[str, Loss]:
        """Return the loss of each term on all micro-batches of a step."""


class GradCacheLoop(Loop):
    """A loop whose objective needs all micro-batches of a step at once."""

    def gradients(self, step_batches: StepBatches) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Run the backward passes of all micro-batches; return the sum and the count of each term."""
        if len(step_batches.batches) == 1:
            return super().gradients(step_batches)
        objective = self.objective
        assert isinstance(objective, WholeStepObjective)
        self.network.train()
        counts = dict.fromkeys(objective.weights, 0)
        for batch in step_batches.batches:
            for name, count in objective.counts(batch).items():
                counts[name] += count
        batches = [batch.to(self.device) for batch in step_batches.batches]
        with torch.no_grad():
            parts = [self._part(objective, step_batches, number, batch) for number, batch in enumerate(batches)]
        leaves = [part.requires_grad_() for part in parts]
        losses = objective.together(self.network, leaves, batches)
        terms = [objective.weights[n] / max(1, counts[n]) * loss.sum for n, loss in losses.items()]
        torch.stack(terms).sum().backward()
        for number, (batch, leaf) in enumerate(zip(batches, leaves, strict=True)):
            part = self._part(objective, step_batches, number, batch)
            assert leaf.grad is not None
            part.backward(leaf.grad)
        return {name: loss.sum.detach() for name, loss in losses.items()}, counts

    def _part(self, objective: WholeStepObjective, step_batches: StepBatches, number: int, batch: Batch) -> Tensor:
        """Return the vectors of a micro-batch, with the same dropout both times."""
        torch.manual_seed(int(counter_random.key(self._seed, step_batches.update.number, number, "dropout")) >> 1)
        with self.autocast():
            return objective.part(self.network, batch)
