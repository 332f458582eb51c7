"""The schedule of a run, and the batches of each step, made ahead of the loop by a thread, in order, from any step on.

The schedule says which batches each step reads and at which learning rate, before the run starts. A run is counted in
batches of its phases' size. The learning rate rises in the warm-up and then follows the schedule's shape. Where the
batch may grow, a step reads 2, 4, 8 ... batches as soon as the shape has fallen to 1/2, 1/4, 1/8 ..., and the rate is
multiplied by the same factor: rate divided by batch size, the noise of the gradient, follows the shape exactly, with
fewer and larger steps ("Don't decay the learning rate, increase the batch size", Smith et al. 2018). With a batch
factor every step reads that many batches, at a rate multiplied by it or by its square root.
"""

import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.config.sections import RATE_SCALINGS, Phase, ScheduleSettings
from bertree.data.lane_stream import LaneStream
from bertree.data.stream import Stream
from bertree.errors import UserError
from bertree.files.formats import Json

MOST_STEPS = 20_000_000
AnyStream = Stream | LaneStream
AHEAD = 3  # steps made ahead: batches are small compared with the model, and quick to make
ROUND = 64  # sizes that must not vary in a compiled step are rounded up to a multiple of this


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


@dataclass(frozen=True)
class StepBatches:
    """A step and its micro-batches."""

    update: ScheduledStep
    batches: Sequence[Batch]
    epoch: float
    padding: int = 0  # tokens that only fill up the shape
    slots: int = (
        1  # a micro-batch continues the one before it with the same number modulo this, if its batch has a continuation
    )
    numbers: Sequence[int] = ()  # of each micro-batch among those of all ranks; none: from 0 on

    @property
    def micro_numbers(self) -> Sequence[int]:
        """The number of each micro-batch among those of all ranks."""
        return self.numbers or range(len(self.batches))


class Feed(Protocol):
    """The steps of a run."""

    schedule: TrainingSchedule

    def __getitem__(self, number: int) -> StepBatches:
        """Return the batches of a step: a pure function of the seed and the step."""

    def steps_from(self, first: int) -> Iterator[StepBatches]:
        """Yield the steps from `first` on, made ahead."""
        return prefetch(self.__getitem__, first, len(self.schedule))

    def lanes_after(self, step: int) -> Sequence[int]:
        """Return the number of lanes of each slot after a number of steps; empty if no batch continues another."""
        return ()

    def extra(self) -> Json:
        """Return what a checkpoint keeps, so that another number of ranks reads the same batches."""
        return {}


class StreamFeed(Feed):
    """The micro-batches of each step of a schedule. `streams` holds, for each phase, one stream per micro-batch.

    `fixed` pads the batches to one shape. Rank `rank` of `ranks` has as many micro-batches as every other; they are
    numbered from rank to rank."""

    def __init__(
        self,
        schedule: TrainingSchedule,
        streams: Sequence[Sequence[AnyStream]],
        fixed: bool = False,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.schedule, self.streams = schedule, streams
        self._rank, self._ranks = rank, ranks
        counts = self.micro_batches
        self._shapes = [
            self._shape(stream[0], count) if fixed else _unchanged
            for stream, count in zip(streams, counts, strict=True)
        ]

    @property
    def micro_batches(self) -> list[int]:
        """Micro-batches of all ranks in a batch, in each phase."""
        return [len(streams) * self._ranks for streams in self.streams]

    @staticmethod
    def _shape(stream: AnyStream, parts: int) -> Callable[[Batch], Batch]:
        if isinstance(stream, Stream):
            return FixedShape(stream, stream.batch_tokens // parts)
        return {"next": _predict_everywhere, "permutation": _unchanged}.get(stream.masking.unit) or FixedMasks(stream)

    def __getitem__(self, number: int) -> StepBatches:
        """Return the batches of a step: a pure function of the seed and the step."""
        update = self.schedule.updates[number]
        streams = self.streams[update.phase]
        indices = range(update.first, update.first + update.batches)
        shape = self._shapes[update.phase]
        batches = [shape(stream[index]) for index in indices for stream in streams]
        earlier = sum(
            streams[0].epoch_at(phase.steps)
            for streams, phase in zip(self.streams[: update.phase], self.schedule.phases, strict=False)
        )
        epoch = earlier + streams[0].epoch_at(update.first + update.batches)
        count, first = self.micro_batches[update.phase], self._rank * len(streams)
        numbers = [batch * count + first + i for batch in range(update.batches) for i in range(len(streams))]
        return StepBatches(update, batches, epoch, slots=count, numbers=numbers)

    def lanes_after(self, step: int) -> Sequence[int]:
        """Return the number of lanes of each micro-batch of all ranks after a number of steps."""
        streams = self.streams[self.schedule.updates[step - 1].phase] if step else ()
        lanes = next((stream.all_lanes for stream in streams if isinstance(stream, LaneStream)), 0)
        count = len(streams) * self._ranks
        return [(i + 1) * lanes // count - i * lanes // count for i in range(count)] if lanes else []

    def extra(self) -> Json:
        """Return the numbers of micro-batches."""
        return {"micro_batches": self.micro_batches}


def prefetch(make: Callable[[int], StepBatches], first: int, last: int) -> Iterator[StepBatches]:
    """Yield steps `first` up to `last`, made a few ahead by a thread that ends with the iterator."""
    ready: queue.Queue[StepBatches | BaseException] = queue.Queue(AHEAD)
    stopped = threading.Event()

    def produce() -> None:
        try:
            for number in range(first, last):
                _put(ready, make(number), stopped)
                if stopped.is_set():
                    return
        except BaseException as error:  # raised again where the steps are used
            _put(ready, error, stopped)

    thread = threading.Thread(target=produce, name="feed", daemon=True)
    thread.start()
    try:
        for _ in range(first, last):
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()


def _put(
    ready: "queue.Queue[StepBatches | BaseException]", item: StepBatches | BaseException, stopped: threading.Event
) -> None:
    while not stopped.is_set():
        try:
            return ready.put(item, timeout=0.1)
        except queue.Full:
            continue
    return None


def _unchanged(batch: Batch) -> Batch:
    return batch


def _predict_everywhere(batch: Batch) -> Batch:
    """Give every token of the lanes a target, ignored where there is none; everything else has one shape already."""
    tokens = batch.ids.numel()
    return replace(batch, labels=batch.labels and batch.labels.pad(tokens, len(batch.lengths), lambda count: tokens))


class FixedMasks:
    """Pads the targets of lanes; everything else in them has one shape already."""

    def __init__(self, stream: LaneStream) -> None:
        self._masks = stream.lanes * stream.length * stream.masking.share

    def __call__(self, batch: Batch) -> Batch:
        """Return the padded batch."""
        labels = batch.labels and batch.labels.pad(
            batch.ids.numel(), len(batch.lengths), lambda count: _room(count, self._masks)
        )
        return replace(batch, labels=labels)


class FixedShape:
    """Pads the batches of a stream to one shape, so that a compiled step is compiled once.

    Empty sequences and ignored targets fill up what varies. The size depends on the stream's averages and on the batch,
    not on earlier batches: a resumed run sees the same shapes.
    """

    def __init__(self, stream: Stream, tokens: int) -> None:
        self._longest = stream.max_length
        self._sequences = tokens * stream.examples / stream.epoch_tokens
        self._masks = tokens * stream.masking.share if stream.masking else 0.0
        self._most_queries = -(-stream.max_length // stream.masking.partial) if stream.masking else 0

    def __call__(self, batch: Batch) -> Batch:
        """Return the padded batch."""
        sequences, order = batch.cu_seqlens.numel() - 1, batch.permutation
        spare = _room(sequences, self._sequences) - sequences
        rows, room = batch.ids.numel(), lambda count: _room(count, self._masks)
        if order is not None:  # as many targets in every batch
            rows, room = rows + order.queries.numel(), lambda count: count
            order = replace(order, cu_queries=_repeat_last(order.cu_queries, spare), max_queries=self._most_queries)
        return replace(
            batch,
            cu_seqlens=_repeat_last(batch.cu_seqlens, spare),
            max_seqlen=self._longest,
            permutation=order,
            labels=batch.labels and batch.labels.pad(rows, sequences + spare, room),
        )


def _repeat_last(bounds: Tensor, count: int) -> Tensor:
    """Add the bounds of empty sequences."""
    return torch.cat([bounds, bounds[-1:].expand(count)])


def _room(needed: int, average: float) -> int:
    """Return the first of a series of sizes that holds `needed`; the smallest is 7 % above the average."""
    room = average * 1.07 + 16
    while room < needed:
        room *= 1.2
    return -(-int(room) // ROUND) * ROUND
