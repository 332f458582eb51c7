"""The loop: steps of gradient descent on an objective, nothing else. It names no model and no objective.

A step's sums are divided by the counts of all its micro-batches together, the gradient is clipped, the optimiser
moves. Dropout is seeded by the step, so the state of a run is weights, moments and one number. A step whose
gradient is not finite is skipped and counted; too many in a row end the run. Everything else (logging,
evaluation, saving, stopping) is a hook, called after each step.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from bertree.batch import Batch
from bertree.data import draws
from bertree.errors import UserError
from bertree.model.network import Network
from bertree.objectives.losses import Loss, Objective
from bertree.train.feed import Work

Compute = Callable[[Network, Batch], dict[str, Loss]]


@dataclass(frozen=True)
class Result:
    """What a step was and what came of it."""

    step: int  # steps done, this one counted
    phase: int
    losses: dict[str, float]  # mean of each term
    loss: float  # their weighted sum
    lr: float
    norm: float  # of the gradient, before clipping
    tokens: int
    epoch: float
    skipped: bool
    waited: float  # seconds the loop stood still for its batches


Hook = Callable[[Result], None]


class Stop(Exception):
    """Raised by a hook to end the run after the step at hand."""


class Loop:
    """Network, objective and optimiser, and how a step is computed."""

    def __init__(
        self,
        network: Network,
        objective: Objective,
        optimiser: Optimizer,
        *,
        clip: float = 0.0,
        seed: int = 0,
        half: bool = False,
        compiled: bool = False,
        bad_steps: int = 20,
    ) -> None:
        self.network, self.objective, self.optimiser = network, objective, optimiser
        self.device = next(network.parameters()).device
        self._clip, self._seed, self._half, self._bad_steps = clip, seed, half, bad_steps
        self.compute: Compute = torch.compile(objective, dynamic=False) if compiled else objective
        self.bad = 0  # steps in a row

    def autocast(self) -> AbstractContextManager[object]:
        """The precision in which the network is computed."""
        return torch.autocast(self.device.type, torch.bfloat16) if self._half else nullcontext()

    def run(self, steps: Iterable[Work], hooks: Sequence[Hook] = ()) -> None:
        """Take the steps, one after the other."""
        began = time.perf_counter()
        for work in steps:
            result = self.step(work, time.perf_counter() - began)
            for hook in hooks:
                hook(result)
            began = time.perf_counter()

    def step(self, work: Work, waited: float = 0.0) -> Result:
        """One step of descent."""
        update = work.update
        for group in self.optimiser.param_groups:
            group["lr"] = update.lr
        sums, counts = self.gradients(work)
        norm = float(torch.nn.utils.clip_grad_norm_(self.network.parameters(), self._clip or math.inf))
        finite = math.isfinite(norm)
        if finite:
            self.optimiser.step()
        self.optimiser.zero_grad()
        losses = {name: float(total) / max(1, counts[name]) for name, total in sums.items()}
        result = Result(
            step=update.number + 1,
            phase=update.phase,
            losses=losses,
            loss=sum(self.objective.weights[name] * loss for name, loss in losses.items()),
            lr=update.lr,
            norm=norm,
            tokens=sum(batch.ids.numel() for batch in work.batches),
            epoch=work.epoch,
            skipped=not finite,
            waited=waited,
        )
        self._watch(result)
        return result

    def gradients(self, work: Work) -> tuple[dict[str, Tensor], Counter[str]]:
        """Backward passes of all micro-batches: the sum of each term, and how much it was divided by."""
        self.network.train()
        counts: Counter[str] = Counter()
        for batch in work.batches:
            counts.update(self.objective.counts(batch))
        sums: dict[str, Tensor] = {}
        for number, batch in enumerate(work.batches):
            torch.manual_seed(int(draws.key(self._seed, work.update.number, number, "dropout")) >> 1)
            with self.autocast():
                losses = self.compute(self.network, batch.to(self.device))
            terms = [self.objective.weights[n] / max(1, counts[n]) * loss.sum for n, loss in losses.items()]
            torch.stack(terms).sum().backward()
            for name, loss in losses.items():
                sums[name] = sums.get(name, 0.0) + loss.sum.detach()
        return sums, counts

    def _watch(self, result: Result) -> None:
        self.bad = self.bad + 1 if result.skipped else 0
        if self.bad >= self._bad_steps:
            raise UserError(
                f"step {result.step}: the gradient was not finite for {self.bad} steps in a row; lower optim.lr, "
                "lengthen schedule.warmup, or set optim.clip, and go on from an earlier checkpoint"
            )
