"""The training loop and everything that one step does. It names no model and no objective.

A step computes the gradients of its micro-batches, divides their sums by the counts of all micro-batches and ranks,
clips the gradient and lets the optimizer take its step. Dropout is seeded by the step, so the training state of a run
is weights, optimizer state and one number and, where batches continue each other, the memory of each lane
(lane_memory.py). A step whose gradient is not finite is skipped and counted; too many in a row end the run. Logging,
evaluation, saving and stopping are hooks (hooks.py), called after each step. session.py runs the loop of every kind of
training; finetuning/tuner.py and pretraining/job.py build it.

Two strategies live in a file of their own (strategies.py): `gradients` (losses that need all micro-batches at once) and
`recorder` (steps recorded once and replayed).
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bertree import keyed_random
from bertree.batch import Batch
from bertree.model.encoder import State, Stateful, all_finite
from bertree.model.torch_internals import prepare_compiler
from bertree.objectives.objective import Computed, Loss, Objective
from bertree.scale.distribute import Distribution
from bertree.scale.shards import local
from bertree.scale.world import SharedError
from bertree.train.feed import StepBatches
from bertree.train.lane_memory import LaneMemories

T = TypeVar("T")
Compute = Callable[[nn.Module, Batch, State | None], Computed]
Scales = Mapping[str, float] | Mapping[str, Tensor]  # the factor of each term's sum


ADVICE = "start a new run with a lower learning rate (lr), a longer warmup or a smaller clip"


class StepResult:
    """A step and, when they are read, its loss and gradient norm.

    The numbers are copied to the host after the step's own work. Reading them waits for that step; not reading them
    lets the host continue and keep the GPU busy.
    """

    def __init__(
        self,
        step_batches: StepBatches,
        *,
        counts: Mapping[str, int],
        weights: Mapping[str, float],
        numbers: Tensor,
        tokens: int,
        own_tokens: int,
        stop: bool = False,
    ) -> None:
        """`numbers`: the norm of the gradient, then the sum of each term in the order of `counts`; `tokens`: of all
        ranks; `own_tokens`: of this one; `stop`: a rank asked to end the run after this step."""
        self.step = step_batches.update.number + 1  # steps done, this one counted
        self.phase, self.lr, self.epoch = step_batches.update.phase, step_batches.update.lr, step_batches.epoch
        self.tokens, self.own_tokens, self.stop = tokens, own_tokens, stop
        self.waited = 0.0  # seconds the loop waited for the batches
        self._counts, self._weights = counts, weights
        self._numbers = numbers.to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event() if numbers.is_cuda else None
        if self._copied:
            self._copied.record()

    @cached_property
    def _values(self) -> list[float]:
        if self._copied:
            self._copied.synchronize()
        return list(self._numbers.tolist())

    @property
    def norm(self) -> float:
        """Norm of the gradient, before clipping."""
        return self._values[0]

    @property
    def skipped(self) -> bool:
        """Whether the gradient was not finite, so that no parameter changed."""
        return not math.isfinite(self.norm)

    @property
    def losses(self) -> dict[str, float]:
        """Mean of each term."""
        pairs = zip(self._counts.items(), self._values[1:], strict=True)
        return {name: total / max(1, count) for (name, count), total in pairs}

    @property
    def loss(self) -> float:
        """Weighted sum of the terms."""
        return sum(self._weights[name] * loss for name, loss in self.losses.items())


Hook = Callable[[StepResult], None]


class Diverged(SharedError):
    """Loss, gradient or weights are not finite: there is no model to write."""

    exit_code = 1


class StopTraining(Exception):
    """Raised by a hook to end the run after the current step."""


class GradientMethod(Protocol):
    """Computes the gradients of a step."""

    def __call__(self, loop: "Loop", step_batches: StepBatches, scales: Scales) -> dict[str, Tensor]:
        """Run the backward passes of all micro-batches; return the sum of each term."""


class StepRecorder(Protocol):
    """Records steps and replays them instead of launching each operation."""

    def __init__(self, loop: "Loop") -> None: ...

    def step(self, step_batches: StepBatches, counts: Mapping[str, int]) -> Tensor:
        """Take one step; return the norm of the gradient, then the sum of each term in the order of `counts`."""


def plain_gradients(loop: "Loop", step_batches: StepBatches, scales: Scales) -> dict[str, Tensor]:
    """Run a forward and a backward pass of each micro-batch; return the sum of each term."""
    sums: dict[str, Tensor] = {}
    for number, batch in zip(step_batches.micro_numbers, step_batches.batches, strict=True):
        loop.distribution.before_micro_batch(is_last=batch is step_batches.batches[-1])
        if loop.recorder is None:  # a recording cannot hold the seed: it is set before each replay
            loop.seed_dropout(step_batches.update.number, number)
        slot = number % step_batches.slots  # micro-batches of one slot continue each other from step to step
        with loop.autocast():
            memory = None
            if batch.continuation is not None:
                memory = loop.memories.get(slot) or loop.start_memory(batch.continuation.count)
            losses, memory = loop.compute(loop.network, batch.to(loop.device), memory)
        weighted_sum(losses, scales).backward()
        if batch.continuation is not None:
            loop.memories.put(slot, memory)
        for name, loss in losses.items():
            sums[name] = sums.get(name, 0.0) + loss.sum.detach()
    return sums


def weighted_sum(losses: Mapping[str, Loss], scales: Scales) -> Tensor:
    """Return the value that is differentiated: the sum of all terms, each times its factor."""
    return torch.stack([scales[name] * loss.sum for name, loss in losses.items()]).sum()


class Loop:
    """A network, its objective and its optimizer, and the steps of gradient descent that train it."""

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
        recorder: type[StepRecorder] | None = None,
        distribution: Distribution | None = None,
    ) -> None:
        """`clip`: largest norm of the gradient (0: any); `bad_steps`: skipped steps in a row that end the run."""
        self.network: Any = network  # of the kind that the objective expects
        self.objective, self.optimizer = objective, optimizer
        if compiled:
            prepare_compiler()
        self.compute: Compute = torch.compile(objective, dynamic=False) if compiled else objective
        self.distribution = distribution or Distribution()
        self.world = self.distribution.world
        self.memories = LaneMemories()
        self.wants_to_stop: Callable[[], bool] = lambda: False  # on this rank
        self._max_norm, self._seed, self._bf16 = clip or math.inf, seed, bf16
        self._gradients, self._bad_steps = gradients, bad_steps
        self._skipped_in_a_row = self._steps_taken = 0
        if self.distribution.sharding is not None:
            self.trainable  # noqa: B018  # computed now: within a step some sharded parameters are gathered
        self.recorder = recorder(self) if recorder else None

    @cached_property
    def device(self) -> torch.device:
        """The device on which the network is computed."""
        device: torch.device = next(self.network.parameters()).device
        return self.distribution.device or device

    @cached_property
    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that are trained, with their names."""
        return [(name, p) for name, p in self.network.named_parameters() if p.requires_grad]

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which the network is computed: bfloat16 where that is chosen."""
        return torch.autocast(self.device.type, torch.bfloat16) if self._bf16 else nullcontext()

    def run(self, steps: Iterable[StepBatches], hooks: Sequence[Hook] = ()) -> None:
        """Take the steps. The host stays one step ahead of the device, no more."""
        previous: StepResult | None = None
        began = time.perf_counter()
        for step_batches in steps:
            waited = time.perf_counter() - began
            result = self.step(step_batches)
            result.waited = waited
            if previous is not None:
                self._count_bad_steps(previous)
            for hook in hooks:
                hook(result)
            previous, began = result, time.perf_counter()
        if previous is not None:
            self._count_bad_steps(previous)

    def step(self, step_batches: StepBatches) -> StepResult:
        """Take one step of gradient descent."""
        counts = self.count_targets(step_batches)
        tokens = sum(batch.ids.numel() for batch in step_batches.batches) - step_batches.padding
        # Sums over all ranks; no term's name begins with a dot.
        agreed = self.world.agree({**counts, ".tokens": tokens, ".stop": int(self.wants_to_stop())})
        counts = {name: agreed[name] for name in counts}
        numbers = self.recorder.step(step_batches, counts) if self.recorder else self._step(step_batches, counts)
        return StepResult(
            step_batches,
            counts=counts,
            weights=self.objective.weights,
            numbers=numbers,
            tokens=agreed[".tokens"],
            own_tokens=tokens,
            stop=bool(agreed[".stop"]),
        )

    def _step(self, step_batches: StepBatches, counts: Mapping[str, int]) -> Tensor:
        """Take a step; return the norm of the gradient, then the sum of each term in the order of `counts`."""
        for group in self.optimizer.param_groups:
            group["lr"] = step_batches.update.lr * group.get("rate", 1.0)  # "rate": the group's own factor
        sums = self.compute_gradients(step_batches, counts)
        norm = self.update()
        self.optimizer.zero_grad()
        zero = torch.zeros((), device=self.device)  # the sum of a rank that has no example in this step
        totals = self.world.sum_over_data(torch.stack([sums.get(name, zero) for name in counts]))
        return torch.cat([norm.to(totals.device)[None], totals])

    def count_targets(self, step_batches: StepBatches) -> dict[str, int]:
        """Count the targets of all micro-batches of a step, by term."""
        counts = dict.fromkeys(self.objective.weights, 0)
        for batch in step_batches.batches:
            for name, count in self.objective.counts(batch).items():
                counts[name] += count
        return counts

    def compute_gradients(self, step_batches: StepBatches, counts: Mapping[str, int]) -> dict[str, Tensor]:
        """Run the backward passes of all micro-batches; return the sum of each term."""
        self.network.train()
        if step_batches.update.first == 0:
            self.memories.clear()  # a phase starts fresh: its batches may have other lanes
        return self._gradients(self, step_batches, self.scales(counts))

    def scales(self, counts: Mapping[str, int]) -> dict[str, float]:
        """Return the factor of each term's sum: its weight, divided by its count."""
        return {name: self.objective.weights[name] / max(1, count) for name, count in counts.items()}

    def seed_dropout(self, step: int, number: int) -> None:
        """Seed the dropout of a micro-batch of a step."""
        seed = int(keyed_random.key(self._seed, step, number, "dropout")) >> 1
        # torch.manual_seed formats the call stack for every kind of device that is not in use yet.
        (torch.default_generator if self.device.type == "cpu" else torch).manual_seed(seed)

    def start_memory(self, lanes: int) -> State | None:
        """Return the network's memory before its first batch; made here, so that a compiled step always gets one."""
        memory = self.network.start_state(lanes) if isinstance(self.network, Stateful) else None
        # Sharded weights may be kept on another device than the one that computes the network.
        return None if memory is None else {name: tensor.to(self.device) for name, tensor in memory.items()}

    @torch.no_grad()
    def update(self, skip: bool = False) -> Tensor:
        """Clip the gradient and let the optimizer take its step, unless the gradient is not finite; return its norm."""
        norm = self.distribution.clip_gradients(self.trainable, self._max_norm)
        # Where this is 1, no optimizer changes anything. AdamW reads it on the device, so the host need not wait.
        bad = torch.ones_like(norm) if skip else (~norm.isfinite()).float()
        self.optimizer.found_inf = bad  # type: ignore[attr-defined]
        self.optimizer.step()
        return norm

    def without_gradients(self, work: Callable[[], T]) -> T:
        """Do work that uses the network between two steps, and free what was gathered for it."""
        with self.distribution.evaluation():
            return work()

    def _count_bad_steps(self, result: StepResult) -> None:
        """Count steps in a row whose gradient was not finite; too many end the run."""
        self._steps_taken += 1
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if result.skipped else 0
        if self._skipped_in_a_row >= self._bad_steps:
            raise Diverged(
                f"step {result.step}: the gradient was not finite for {self._skipped_in_a_row} steps in a row; {ADVICE}"
            )

    def check_end(self, loss: float | None) -> None:
        """Raise an error if a run has ended with weights, steps or a held-out loss that are not finite."""
        weights = all(all_finite(local(parameter.detach())) for parameter in self.network.parameters())
        steps = not self._steps_taken or self._skipped_in_a_row < self._steps_taken
        flags = {
            "weights": weights,
            "the gradient of every step": steps,
            "the held-out loss": loss is None or math.isfinite(loss),
        }
        wrong = self.world.agree({name: int(not finite) for name, finite in flags.items()})
        if names := [name for name, count in wrong.items() if count]:
            raise Diverged(f"{names[0]} not finite at the end of the run, so no model is written; {ADVICE}")
