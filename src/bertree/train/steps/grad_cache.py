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
from bertree.objectives.objective import Loss, Objective
from bertree.train.learner import Learner
from bertree.train.steps.gradients import MicroBatches, plain_gradients, weighted_sum


@runtime_checkable
class WholeStepObjective(Objective, Protocol):
    """An objective that needs all micro-batches of a step at once, through the vectors of each."""

    def part(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the vectors of a micro-batch."""

    def together(self, network: nn.Module, parts: Sequence[Tensor], batches: Sequence[Batch]) -> dict[str, Loss]:
        """Return the loss of each term on all micro-batches of a step."""


def cached_gradients(learner: Learner, micro: MicroBatches) -> dict[str, Tensor]:
    """Run the backward passes of micro-batches whose objective needs all of them at once."""
    if len(micro.batches) == 1:
        return plain_gradients(learner, micro)
    objective = learner.objective
    assert isinstance(objective, WholeStepObjective)

    def embed(number: int, batch: Batch) -> Tensor:
        """Return the vectors of a micro-batch, with the same dropout both times."""
        micro.seed_dropout(number)
        with learner.autocast():
            return objective.part(learner.network, batch)

    batches = [batch.to(learner.device) for batch in micro.batches]
    with torch.no_grad():
        parts = [embed(number, batch) for number, batch in enumerate(batches)]
    leaves = [part.requires_grad_() for part in parts]
    losses = objective.together(learner.network, leaves, batches)
    weighted_sum(losses, micro.scales).backward()
    for number, (batch, leaf) in enumerate(zip(batches, leaves, strict=True)):
        part = embed(number, batch)
        assert leaf.grad is not None
        part.backward(leaf.grad)
    return {name: loss.sum.detach() for name, loss in losses.items()}
