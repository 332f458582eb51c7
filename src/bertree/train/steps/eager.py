"""Steps whose work is launched piece by piece, as they come."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from bertree.train.carried_state import CarriedState
from bertree.train.feed import StepBatches
from bertree.train.learner import Learner
from bertree.train.steps.gradients import GradientMethod, MicroBatches


class StepLaunch(Protocol):
    """A way to launch the work of a step."""

    def __init__(self, learner: Learner, gradients: GradientMethod, carried: CarriedState) -> None: ...

    def step(self, step_batches: StepBatches, counts: Mapping[str, int]) -> Tensor:
        """Take one step; return the norm of the gradient, then the sum of each term in the order of `counts`."""


class EagerLaunch(StepLaunch):
    """Launches each operation on its own."""

    def __init__(self, learner: Learner, gradients: GradientMethod, carried: CarriedState) -> None:
        self._learner, self._gradients, self._carried = learner, gradients, carried

    def gradients(self, step_batches: StepBatches, counts: Mapping[str, int]) -> dict[str, Tensor]:
        """Run the backward passes of all micro-batches; return the sum of each term."""
        learner, number = self._learner, step_batches.update.number
        learner.network.train()
        if step_batches.update.first == 0:
            self._carried.clear()  # a phase starts fresh: its batches may have other lanes
        micro = MicroBatches(
            step_batches.batches,
            learner.scales(counts),
            lambda place: learner.seed_dropout(number, place),
            self._carried,
            step_batches.slots,
            step_batches.numbers,
        )
        return self._gradients(learner, micro)

    def step(self, step_batches: StepBatches, counts: Mapping[str, int]) -> Tensor:
        """Take one step of gradient descent."""
        optimizer = self._learner.optimizer
        for group in optimizer.param_groups:
            group["lr"] = step_batches.update.lr * group.get("rate", 1.0)
        sums = self.gradients(step_batches, counts)
        norm = self._learner.update()
        optimizer.zero_grad()
        none = torch.zeros((), device=self._learner.device)  # of a rank that has no example in this step
        totals = self._learner.distribution.world.sum_over_data(torch.stack([sums.get(name, none) for name in counts]))
        return torch.cat([norm.to(totals.device)[None], totals])
