"""Steps recorded as CUDA graphs and replayed: for models and batches so small that the GPU waits for the host.

Fine-tuning takes thousands of steps of a few hundred tokens. Each launches about a thousand kernels of a few
microseconds, and launching them takes longer than running them. So the step (forward, backward, clipping, optimizer) is
recorded as a CUDA graph the first time a shape of batch is met, and replayed in one call afterwards. The price: batches
must come in a few shapes, and all inputs of a step, the learning rate too, lie on the GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.train.carried_state import CarriedState
from bertree.train.feed import StepBatches
from bertree.train.learner import Learner
from bertree.train.steps.eager import StepLaunch
from bertree.train.steps.gradients import GradientMethod, MicroBatches


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    batch: Batch  # where the graph reads
    scales: Tensor  # factor of each term's sum
    numbers: Tensor  # where it writes: norm of the gradient, sum of each term


class CudaGraphLaunch(StepLaunch):
    """Replays recorded steps of one micro-batch each, on a GPU."""

    def __init__(self, learner: Learner, gradients: GradientMethod, carried: CarriedState) -> None:
        self._learner, self._gradients, self._carried = learner, gradients, carried
        self.recordings: dict[tuple[Any, ...], _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(learner.device)
        groups = learner.optimizer.param_groups
        self._rates = [(torch.zeros((), device=learner.device), group.get("rate", 1.0)) for group in groups]
        for group, (rate, _) in zip(groups, self._rates, strict=True):
            group["lr"] = rate

    def step(self, step_batches: StepBatches, counts: Mapping[str, int]) -> Tensor:
        """Take one step of gradient descent."""
        (batch,) = step_batches.batches
        assert batch.continuation is None, "a recording has no state"
        shape = tuple(value.shape if isinstance(value, Tensor) else value for value in batch.leaves())
        recording = self.recordings.get(shape) or self.recordings.setdefault(shape, self._record(batch, counts))
        self._learner.seed_dropout(step_batches.update.number, 0)
        for value, place in zip(batch.leaves(), recording.batch.leaves(), strict=True):
            if isinstance(value, Tensor):
                place.copy_(value.pin_memory(), non_blocking=True)
        scales = list(self._learner.scales(counts).values())
        recording.scales.copy_(torch.tensor(scales).pin_memory(), non_blocking=True)
        for rate, factor in self._rates:
            rate.fill_(step_batches.update.lr * factor)
        recording.graph.replay()
        return recording.numbers

    def _record(self, batch: Batch, counts: Mapping[str, int]) -> _Recording:
        self._learner.network.train()
        device, optimizer = self._learner.device, self._learner.optimizer
        place = batch.to(device)
        scales = torch.ones(len(counts), device=device)
        self._stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            # Once without recording: kernels are loaded, the optimizer makes its state, no parameter changes.
            self._compute(place, counts, scales, skip_update=True)
            optimizer.zero_grad()
            torch.cuda.synchronize()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            numbers = self._compute(place, counts, scales)
            graph.capture_end()
            optimizer.zero_grad()  # the next recording may use their memory
        torch.cuda.current_stream().wait_stream(self._stream)
        return _Recording(graph, place, scales, numbers)

    def _compute(self, batch: Batch, counts: Mapping[str, int], scales: Tensor, skip_update: bool = False) -> Tensor:
        by_term = dict(zip(counts, scales.unbind(), strict=True))
        # Dropout is seeded before each replay: a recording cannot hold it.
        micro = MicroBatches([batch], by_term, lambda number: None, self._carried)
        sums = self._gradients(self._learner, micro)
        norm = self._learner.update(skip=skip_update)
        return torch.stack([norm, *(sums[name] for name in counts)])
