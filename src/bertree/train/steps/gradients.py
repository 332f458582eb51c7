"""How the gradients of a step are computed: micro-batch by micro-batch, added up."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.objectives.objective import Loss
from bertree.train.carried_state import CarriedState
from bertree.train.learner import Learner

Scales = Mapping[str, float] | Mapping[str, Tensor]  # the factor of each term's sum
SeedDropout = Callable[[int], None]  # of a micro-batch, by its number


@dataclass(frozen=True)
class MicroBatches:
    """The micro-batches of a step, and what is needed to compute their gradients."""

    batches: Sequence[Batch]
    scales: Scales
    seed_dropout: SeedDropout
    carried: CarriedState
    slots: int = 1  # a micro-batch continues the one before it with the same number modulo this
    numbers: Sequence[int] = ()  # of each micro-batch among those of all ranks; none: from 0 on


class GradientMethod(Protocol):
    """A way to compute the gradients of a step."""

    def __call__(self, learner: Learner, micro: MicroBatches) -> dict[str, Tensor]:
        """Run the backward passes of all micro-batches; return the sum of each term."""


def plain_gradients(learner: Learner, micro: MicroBatches) -> dict[str, Tensor]:
    """Run a forward and a backward pass of each micro-batch."""
    sums: dict[str, Tensor] = {}
    numbers = micro.numbers or range(len(micro.batches))
    for number, batch in zip(numbers, micro.batches, strict=True):
        learner.distribution.before_micro_batch(is_last=batch is micro.batches[-1])
        micro.seed_dropout(number)
        slot = number % micro.slots
        with learner.autocast():
            state = None
            if batch.continuation is not None:
                state = micro.carried.take(slot) or learner.start_state(batch.continuation.count)
            losses, state = learner.compute(learner.network, batch.to(learner.device), state)
        weighted_sum(losses, micro.scales).backward()
        if batch.continuation is not None:
            micro.carried.put(slot, state)
        for name, loss in losses.items():
            sums[name] = sums.get(name, 0.0) + loss.sum.detach()
    return sums


def weighted_sum(losses: Mapping[str, Loss], scales: Scales) -> Tensor:
    """Return what is differentiated: the sum of all terms."""
    return torch.stack([scales[name] * loss.sum for name, loss in losses.items()]).sum()
