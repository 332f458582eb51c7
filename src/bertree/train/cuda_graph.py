"""Steps recorded as CUDA graphs and replayed: for models and batches so small that the GPU waits for the host.

Fine-tuning takes thousands of steps of a few hundred tokens. Each launches about a thousand kernels of a few
microseconds, and launching them takes longer than running them. So the step (forward, backward, clipping, optimizer) is
recorded as a CUDA graph the first time a shape of batch is met, and replayed in one call afterwards. The price: batches
must have few different shapes, and all inputs of a step, including the learning rate, must be on the GPU.
"""

import gc
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.train.feed import StepBatches
from bertree.train.loop import Loop, StepRecorder, plain_gradients


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
