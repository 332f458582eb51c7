"""Steps recorded as CUDA graphs and replayed: for models and batches so small that the GPU waits for the host.

Fine-tuning takes thousands of steps of a few hundred tokens. Each launches about a thousand kernels of a few
microseconds, and launching them takes longer than running them. So the step (forward, backward, clipping, optimizer) is
recorded as a CUDA graph the first time a shape of batch is met, and replayed in one call afterwards. The price: batches
must come in a few shapes, and all inputs of a step, the learning rate too, lie on the GPU.
"""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bertree.batch import Batch
from bertree.data import counter_random
from bertree.model.network import Network
from bertree.objectives.objective import Objective
from bertree.train.feed import StepBatches
from bertree.train.loop import Loop, StepResult


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    batch: Batch  # where the graph reads
    scales: Tensor  # factor of each term's sum
    numbers: Tensor  # where it writes: norm of the gradient, sum of each term


class CudaGraphLoop(Loop):
    """A loop on a GPU whose steps have one micro-batch each."""

    def __init__(self, network: Network, objective: Objective, optimizer: Optimizer, **options: Any) -> None:
        super().__init__(network, objective, optimizer, **options)
        self._recordings: dict[tuple[Any, ...], _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(self.device)
        self._rate = torch.zeros((), device=self.device)
        for group in optimizer.param_groups:
            group["lr"] = self._rate

    def step(self, step_batches: StepBatches) -> StepResult:
        """Take one step of gradient descent."""
        (batch,) = step_batches.batches
        shape = tuple(value.shape if isinstance(value, Tensor) else value for _, value in _fields(batch))
        recording = self._recordings.get(shape) or self._recordings.setdefault(shape, self._record(batch))
        counts = self.objective.counts(batch)
        torch.manual_seed(int(counter_random.key(self._seed, step_batches.update.number, 0, "dropout")) >> 1)
        for (_, value), (_, place) in zip(_fields(batch), _fields(recording.batch), strict=True):
            if isinstance(value, Tensor):
                place.copy_(value.pin_memory(), non_blocking=True)
        scales = [self.objective.weights[name] / max(1, count) for name, count in counts.items()]
        recording.scales.copy_(torch.tensor(scales).pin_memory(), non_blocking=True)
        self._rate.fill_(step_batches.update.lr)
        recording.graph.replay()
        return StepResult(step_batches, counts, self.objective.weights, recording.numbers)

    def _record(self, batch: Batch) -> _Recording:
        self.network.train()
        place = batch.to(self.device)
        scales = torch.ones(len(self.objective.weights), device=self.device)
        self._stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            # Once without recording: kernels are loaded, the optimizer makes its state, no parameter changes.
            self._compute(place, scales, skip_update=True)
            self.optimizer.zero_grad()
            torch.cuda.synchronize()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            numbers = self._compute(place, scales)
            graph.capture_end()
            self.optimizer.zero_grad()  # the next recording may use their memory
        torch.cuda.current_stream().wait_stream(self._stream)
        return _Recording(graph, place, scales, numbers)

    def _compute(self, batch: Batch, scales: Tensor, skip_update: bool = False) -> Tensor:
        with self.autocast():
            losses = self.objective(self.network, batch)
        sums = torch.stack([loss.sum for loss in losses.values()])
        (sums * scales).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(self.trainable, self._limit)
        bad = torch.ones_like(norm) if skip_update else (~norm.isfinite()).float()
        self.optimizer.found_inf = bad  # type: ignore[attr-defined]
        self.optimizer.step()
        return torch.cat([norm[None], sums.detach()])


def _fields(batch: Batch) -> list[tuple[str, Any]]:
    return [(field.name, getattr(batch, field.name)) for field in fields(batch)]
