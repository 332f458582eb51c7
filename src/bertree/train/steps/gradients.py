"""How the gradients of a step are computed: micro-batch by micro-batch, added up."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.objectives.objective import Loss
from bertree.train.learner import Learner

Scales = Mapping[str, float] | Mapping[str, Tensor]  # the factor of each term's sum
SeedDropout = Callable[[int], None]  # of a micro-batch, by its number


class GradientMethod(Protocol):
    """A way to compute the gradients of a step."""

    def __call__(
        self, learner: Learner, batches: Sequence[Batch], scales: Scales, seed_dropout: SeedDropout
    ) -> dict[str, Tensor]:
        """Run the backward passes of all micro-batches; return the sum of each term."""


def plain_gradients(
    learner: Learner, batches: Sequence[Batch], scales: Scales, seed_dropout: SeedDropout
) -> dict[str, Tensor]:
    """Run a forward and a backward pass of each micro-batch."""
    sums: dict[str, Tensor] = {}
    for number, batch in enumerate(batches):
        seed_dropout(number)
        with learner.autocast():
            losses = learner.compute(learner.network, batch.to(learner.device))
        weighted_sum(losses, scales).backward()
        for name, loss in losses.items():
            sums[name] = sums.get(name, 0.0) + loss.sum.detach()
    return sums


def weighted_sum(losses: Mapping[str, Loss], scales: Scales) -> Tensor:
    """Return what is differentiated: the sum of all terms."""
    return torch.stack([scales[name] * loss.sum for name, loss in losses.items()]).sum()
