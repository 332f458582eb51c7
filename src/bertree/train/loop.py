"""The loop: steps of gradient descent on an objective, and nothing else. It names no model and no objective.

A step's sums are divided by the counts of all its micro-batches together, the gradient is clipped, the optimizer takes
its step. Dropout is seeded by the step, so the state of a run is weights, optimizer state and one number and, where a
batch continues the one before it, what the network carries between them (carried_state.py). A step whose gradient is
not finite is skipped and counted; too many in a row end the run. Everything else (logging, evaluation, saving,
stopping) is a hook, called after each step.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bertree.model.torch_internals import prepare_compiler
from bertree.objectives.objective import Objective
from bertree.scale.distribute import Distribution
from bertree.scale.world import SharedError
from bertree.train.carried_state import CarriedState
from bertree.train.feed import StepBatches
from bertree.train.learner import Compute, Learner
from bertree.train.steps.eager import EagerLaunch, StepLaunch
from bertree.train.steps.gradients import GradientMethod, plain_gradients

T = TypeVar("T")


class StepResult:
    """A step and, when they are read, its loss and gradient norm.

    The numbers are copied to the host after the step's own work. Reading them waits for that step; not reading them
    lets the host go on and keep the GPU busy.
    """

    def __init__(
        self,
        step_batches: StepBatches,
        counts: Mapping[str, int],
        weights: Mapping[str, float],
        numbers: Tensor,
        tokens: tuple[int, int],
        stop: bool = False,
    ) -> None:
        """Take `numbers`: the norm of the gradient, then the sum of each term in the order of `counts`; `tokens`: of
        all ranks and of this one; `stop`: a rank asked to end the run after this step."""
        self.step = step_batches.update.number + 1  # steps done, this one counted
        self.phase, self.lr, self.epoch = step_batches.update.phase, step_batches.update.lr, step_batches.epoch
        (self.tokens, self.own_tokens), self.stop = tokens, stop
        self.waited = 0.0  # seconds the loop waited for the batches
        self._counts, self._weights = counts, weights
        self._numbers = numbers.to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event() if numbers.is_cuda else None
        if self._copied:
            self._copied.record()

    @cached_property
    def _read(self) -> list[float]:
        if self._copied:
            self._copied.synchronize()
        return list(self._numbers.tolist())

    @property
    def norm(self) -> float:
        """Norm of the gradient, before clipping."""
        return self._read[0]

    @property
    def skipped(self) -> bool:
        """Whether the gradient was not finite, so that no parameter changed."""
        return not math.isfinite(self.norm)

    @property
    def losses(self) -> dict[str, float]:
        """Mean of each term."""
        pairs = zip(self._counts.items(), self._read[1:], strict=True)
        return {name: total / max(1, count) for (name, count), total in pairs}

    @property
    def loss(self) -> float:
        """Weighted sum of the terms."""
        return sum(self._weights[name] * loss for name, loss in self.losses.items())


Hook = Callable[[StepResult], None]


class Diverged(SharedError):
    """The gradient was not finite for too many steps."""


class StopTraining(Exception):
    """Raised by a hook to end the run after the step at hand."""


class Loop:
    """Steps of gradient descent: `gradients` says how gradients are computed, `launch` how the work is launched."""

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        optimizer: Optimizer,
        *,
        clip: float = 0.0,
        seed: int = 0,
        bf16: bool = False,
        compiled: bool = False,
        bad_steps: int = 20,
        gradients: GradientMethod = plain_gradients,
        launch: type[StepLaunch] = EagerLaunch,
        distribution: Distribution | None = None,
    ) -> None:
        compute: Compute = _compile(objective) if compiled else objective
        distribution = distribution or Distribution()
        self.world = distribution.world
        self.learner = Learner(network, objective, optimizer, compute, clip or math.inf, seed, bf16, distribution)
        self.wants_to_stop: Callable[[], bool] = lambda: False  # of this rank
        self.carried = CarriedState()
        self.launch = launch(self.learner, gradients, self.carried)
        self.network, self.optimizer = self.learner.network, optimizer
        self.device, self.autocast = self.learner.device, self.learner.autocast
        self._bad_steps = bad_steps
        self.bad = 0  # steps in a row without a finite gradient

    def run(self, steps: Iterable[StepBatches], hooks: Sequence[Hook] = ()) -> None:
        """Take the steps. The host stays one step ahead of the device, no more."""
        before: StepResult | None = None
        began = time.perf_counter()
        for step_batches in steps:
            waited = time.perf_counter() - began
            result = self.step(step_batches)
            result.waited = waited
            if before is not None:
                self._count_bad_steps(before)
            for hook in hooks:
                hook(result)
            before, began = result, time.perf_counter()
        if before is not None:
            self._count_bad_steps(before)

    def step(self, step_batches: StepBatches) -> StepResult:
        """Take one step of gradient descent."""
        counts = self.learner.counts(step_batches.batches)
        tokens = sum(batch.ids.numel() for batch in step_batches.batches) - step_batches.padding
        agreed = self.world.agree({**counts, ".tokens": tokens, ".stop": int(self.wants_to_stop())})
        counts = {name: agreed[name] for name in counts}
        numbers = self.launch.step(step_batches, counts)
        read = agreed[".tokens"], tokens
        weights = self.learner.objective.weights
        return StepResult(step_batches, counts, weights, numbers, read, bool(agreed[".stop"]))

    def without_gradients(self, work: Callable[[], T]) -> T:
        """Do work that uses the network between two steps, and free what was gathered for it."""
        with self.learner.distribution.evaluation():
            return work()

    def _count_bad_steps(self, result: StepResult) -> None:
        """Count steps in a row whose gradient was not finite; too many end the run."""
        self.bad = self.bad + 1 if result.skipped else 0
        if self.bad >= self._bad_steps:
            raise Diverged(
                f"step {result.step}: the gradient was not finite for {self.bad} steps in a row; start a new run "
                "with a lower learning rate (lr), a longer warmup or a smaller clip"
            )


def _compile(objective: Objective) -> Compute:
    prepare_compiler()
    compute: Compute = torch.compile(objective, dynamic=False)
    return compute
