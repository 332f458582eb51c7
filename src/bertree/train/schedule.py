"""The schedule of a run: which batches each step reads and at which learning rate, known before it starts.

A run is counted in batches of its phases' size. The learning rate rises in the warm-up and then follows the schedule's
shape. Where the batch may grow, a step reads 2, 4, 8 ... batches as soon as the shape has fallen to 1/2, 1/4, 1/8 ...,
and the rate is multiplied by the same factor: rate divided by batch size, the noise of the gradient, follows the shape
exactly, with fewer and larger steps ("Don't decay the learning rate, increase the batch size", Smith et al. 2018).
With a batch factor every step reads that many batches, at a rate multiplied by it or by its square root.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from bertree.config.sections import RATE_SCALINGS, Phase, ScheduleSettings
from bertree.errors import UserError

MOST_STEPS = 20_000_000


@dataclass(frozen=True)
class ScheduledStep:
    """One step: batches `first` up to `first + batches` of its phase."""

    number: int
    phase: int
    first: int
    batches: int
    lr: float


class TrainingSchedule:
    """All steps of a run."""

    def __init__(self, phases: Sequence[Phase], schedule: ScheduleSettings, lr: float) -> None:
        self.phases = tuple(phases)
        self._schedule = schedule
        self.batches = sum(phase.steps for phase in phases)
        if self.batches > MOST_STEPS:
            raise UserError(f"{self.batches} steps in all are more than the {MOST_STEPS} supported; set fewer")
        self.updates: list[ScheduledStep] = []
        factor = schedule.batch_factor
        scaling = factor ** RATE_SCALINGS[schedule.rate_scaling] / factor
        before = 0
        for number, phase in enumerate(phases):
            first = 0
            while first < phase.steps:
                size = min(factor * self._growth(before + first), phase.steps - first)
                rate = lr * self._shape(before + first) * (size * scaling)
                self.updates.append(ScheduledStep(len(self.updates), number, first, size, rate))
                first += size
            before += phase.steps

    def __len__(self) -> int:
        return len(self.updates)

    @cached_property
    def tokens_after(self) -> list[int]:
        """Tokens read after 0, 1, 2 ... steps, from which the remaining time is estimated."""
        return [0, *accumulate(step.batches * self.phases[step.phase].batch_tokens for step in self.updates)]

    def _shape(self, at: int) -> float:
        """Return the share of the learning rate at a batch of the run."""
        warmup, final = self._schedule.warmup, self._schedule.final
        if at < warmup:
            return (at + 1) / warmup
        if self._schedule.shape == "constant":
            return 1.0
        left = 1 - (at - warmup) / max(1, self.batches - warmup)
        if self._schedule.shape == "cosine":
            left = (1 + math.cos(math.pi * (1 - left))) / 2
        return final + (1 - final) * left

    def _growth(self, at: int) -> int:
        """Return how many batches make one step: a power of two."""
        if at < self._schedule.warmup:
            return 1
        return int(2 ** math.floor(math.log2(min(self._schedule.growth, 1 / max(self._shape(at), 1e-9)))))
