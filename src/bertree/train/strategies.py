"""Two other ways to compute a step: gradient caching, and CUDA graphs.

Gradient caching (Gao et al. 2021) is for steps too large for memory whose loss needs all examples at once. With
in-batch negatives every text of a step matters to every other, so the loss is not a sum over micro-batches. But it
depends on them only through their vectors. So all micro-batches are embedded without gradients, the loss and its
gradient with respect to the vectors are computed once, and each micro-batch is embedded again and given the gradient of
its vectors. It costs a second forward pass; memory is that of one micro-batch. The same holds for ranks: each gathers
the vectors of all, computes the loss of the whole step, and takes the gradient of its own. A rank with one micro-batch
needs no second pass.

Steps recorded as CUDA graphs and replayed are for models and batches so small that the GPU waits for the host.
Fine-tuning takes thousands of steps of a few hundred tokens. Each launches about a thousand kernels of a few
microseconds, and launching them takes longer than running them. So the step (forward, backward, clipping, optimizer) is
recorded as a CUDA graph the first time a shape of batch is met, and replayed in one call afterwards. The price: batches
must have few different shapes, and all inputs of a step, including the learning rate, must be on the GPU.
"""

import gc
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.objectives.objective import Loss, Objective
from bertree.scale.world import World
from bertree.train.feed import StepBatches
from bertree.train.loop import Loop, Scales, StepRecorder, plain_gradients, weighted_sum


@runtime_checkable
class WholeStepObjective(Objective, Protocol):
    """An objective that needs all micro-batches of a step at once, through the vectors of each."""

    @property
    def all_ranks(self) -> bool:
        """Whether it needs those of all data ranks; else each rank's alone."""

    def part(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the vectors of a micro-batch."""

    def answers(self, batch: Batch) -> Tensor:
        """Return the gold label of each row of vectors."""

    def together(self, network: nn.Module, parts: Sequence[Tensor], answers: Sequence[Tensor]) -> dict[str, Loss]:
        """Return the loss of each term on all micro-batches of a step."""


def cached_gradients(loop: Loop, step_batches: StepBatches, scales: Scales) -> dict[str, Tensor]:
    """Run the backward passes of micro-batches whose objective needs all of them at once."""
    objective, world = loop.objective, loop.world
    assert isinstance(objective, WholeStepObjective)
    gathers = world.data > 1 and objective.all_ranks
    if len(step_batches.batches) <= 1 and not gathers:
        return plain_gradients(loop, step_batches, scales)
    numbers = step_batches.micro_numbers

    def embed(number: int, batch: Batch) -> Tensor:
        """Return the vectors of a micro-batch, with the same dropout both times."""
        loop.seed_dropout(step_batches.update.number, number)
        with loop.autocast():
            return objective.part(loop.network, batch)

    batches = [batch.to(loop.device) for batch in step_batches.batches]
    once = len(batches) == 1
    with torch.set_grad_enabled(once):
        parts = [embed(number, batch) for number, batch in zip(numbers, batches, strict=True)]
    tables, answers = [part.detach() for part in parts], [objective.answers(batch) for batch in batches]
    first, rows = 0, [len(table) for table in tables]
    if gathers:
        tables, answers = _of_all_ranks(world, tables, answers, loop.device)
        first = sum(len(table) for table in tables[: world.data_rank])
    table = torch.cat(tables).requires_grad_()
    losses = objective.together(loop.network, [table], answers)
    total = weighted_sum(losses, scales)
    counted = not gathers or world.data_rank == 0
    if counted:
        total.backward()
    else:  # what else the loss reads of the network learns on the first rank, and gradients are summed over ranks
        (table.grad,) = torch.autograd.grad(total, [table])
    assert table.grad is not None
    gradients = table.grad[first : first + sum(rows)].split(rows)
    for number, batch, part, gradient in zip(numbers, batches, parts, gradients, strict=True):
        (part if once else embed(number, batch)).backward(gradient)
    return {name: loss.sum.detach() * counted for name, loss in losses.items()}


def _of_all_ranks(
    world: World, tables: Sequence[Tensor], answers: Sequence[Tensor], device: torch.device
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the vectors of each rank (a rank may have none) and their gold labels."""
    fractions = world.agree({"fractions": int(bool(answers) and answers[0].is_floating_point())})["fractions"]
    none = torch.zeros(0, device=device)
    own_answers = torch.cat(list(answers)).double() if answers else none.double()
    kind = torch.float32 if fractions else torch.int64
    vectors = world.gather_rows(torch.cat(list(tables)) if tables else none)
    return vectors, [answer.to(kind) for answer in world.gather_rows(own_answers)]


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    batch: Batch  # input of the graph: each step copies its batch here
    scales: Tensor  # input: the factor of each term's sum
    numbers: Tensor  # output: norm of the gradient, sum of each term


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Freeing a CUDA graph or pinned memory while another graph is recorded would end the recording."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CudaGraphRecorder(StepRecorder):
    """Replays recorded steps of one micro-batch each, on a GPU."""

    def __init__(self, loop: Loop) -> None:
        # No reference cycle: recordings are freed with their loop, not by a garbage collection in a later recording.
        self._loop: Loop = weakref.proxy(loop)
        self.recordings: dict[tuple[Any, ...], _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(loop.device)
        groups = loop.optimizer.param_groups
        self._rates = [(torch.zeros((), device=loop.device), group.get("rate", 1.0)) for group in groups]
        for group, (rate, _) in zip(groups, self._rates, strict=True):
            group["lr"] = rate

    def step(self, step_batches: StepBatches, counts: Mapping[str, int]) -> Tensor:
        """Take one step of gradient descent."""
        (batch,) = step_batches.batches
        assert batch.continuation is None, "a recording has no memory"
        shape = tuple(value.shape if isinstance(value, Tensor) else value for value in batch.leaves())
        recording = self.recordings.get(shape) or self.recordings.setdefault(shape, self._record(step_batches, counts))
        self._loop.seed_dropout(step_batches.update.number, 0)
        for value, target in zip(batch.leaves(), recording.batch.leaves(), strict=True):
            if isinstance(value, Tensor):
                target.copy_(value.pin_memory(), non_blocking=True)
        scales = list(self._loop.scales(counts).values())
        recording.scales.copy_(torch.tensor(scales).pin_memory(), non_blocking=True)
        for rate, factor in self._rates:
            rate.fill_(step_batches.update.lr * factor)
        recording.graph.replay()
        return recording.numbers

    def _record(self, step_batches: StepBatches, counts: Mapping[str, int]) -> _Recording:
        self._loop.network.train()
        device, optimizer = self._loop.device, self._loop.optimizer
        (batch,) = step_batches.batches
        inputs = replace(step_batches, batches=[batch.to(device)])
        scales = torch.ones(len(counts), device=device)
        self._stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            # Once without recording: this loads kernels and creates the optimizer's state, but changes no parameter.
            self._compute(inputs, counts, scales, skip_update=True)
            optimizer.zero_grad()
            torch.cuda.synchronize()
            with _without_garbage_collection():
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    numbers = self._compute(inputs, counts, scales)
                except BaseException:  # left open, it would make every later call of this process fail
                    with suppress(RuntimeError):
                        graph.capture_end()
                    raise
                graph.capture_end()
            optimizer.zero_grad()  # the next recording may use their memory
        torch.cuda.current_stream().wait_stream(self._stream)
        return _Recording(graph, inputs.batches[0], scales, numbers)

    def _compute(
        self, inputs: StepBatches, counts: Mapping[str, int], scales: Tensor, skip_update: bool = False
    ) -> Tensor:
        sums = plain_gradients(self._loop, inputs, dict(zip(counts, scales.unbind(), strict=True)))
        norm = self._loop.update(skip=skip_update)
        return torch.stack([norm, *(sums[name] for name in counts)])
