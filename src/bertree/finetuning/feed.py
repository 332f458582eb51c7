"""The batches of a fine-tuning run, as a pure function of seed and step.

A step reads a fixed number of units of any length, as every published fine-tuning does; packing avoids padding.
`ShapeBuckets` pads batches to a few shapes, so that CUDA graphs can be recorded and replayed. tuner.py builds both.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from bertree import keyed_random
from bertree.batch import IGNORED, Batch
from bertree.objectives.supervised import HEAD_KINDS, TaskLabels
from bertree.tasks.batches import collate
from bertree.tasks.task import Unit
from bertree.train.feed import Feed, StepBatches, TrainingSchedule

LENGTHS = (32, 64, 128, 256, 384)  # longest sequence, where shapes must not vary; above: multiples of 128


class ShapeBuckets:
    """Pads batches to one of a few shapes, so that a CUDA graph can be recorded once for each shape.

    Tokens are padded with sequences that no loss reads, labels with ones that are ignored. At most an eighth of a
    batch is padding.
    """

    def __init__(self, head: str, units: int, options: int = 1) -> None:
        """`units` a batch at most, each of at most `options` sequences."""
        self._kind, self._units, self._options = HEAD_KINDS[head], units, options

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with padding."""
        longest = next((n for n in LENGTHS if n >= batch.max_seqlen), -(-batch.max_seqlen // 128) * 128)
        spare, step = _padding(batch.ids.numel())
        tokens = batch.ids.numel() + spare
        padding_sequences = -(-step // longest)
        sizes = np.minimum(longest, np.maximum(0, spare - longest * np.arange(padding_sequences)))
        empty = self._units * self._options - (batch.cu_seqlens.numel() - 1)  # sequences without tokens
        empty += -padding_sequences % batch.orders
        ends = batch.cu_seqlens.numpy()
        bounds = np.concatenate([ends, np.repeat(ends[-1], empty), ends[-1] + sizes.cumsum()]).astype(np.int32)
        zeros = torch.zeros(spare, dtype=torch.int64)
        # `longest` may exceed the model's positions; the longest sequence does not.
        positions = (np.arange(spare) - (sizes.cumsum() - sizes).repeat(sizes)) % batch.max_seqlen
        return Batch(
            ids=torch.cat([batch.ids, zeros]),
            positions=torch.cat([batch.positions, torch.from_numpy(positions)]),
            segments=torch.cat([batch.segments, zeros]),
            cu_seqlens=torch.from_numpy(bounds),
            max_seqlen=longest,
            orders=batch.orders,
            labels=self._pad_labels(TaskLabels.of(batch), tokens, (len(bounds) - 1) // batch.orders, longest),
        )

    def _pad_labels(self, labels: TaskLabels, tokens: int, inputs: int, longest: int) -> TaskLabels:
        answers, chosen, cells, teacher_logits = labels.answers, labels.chosen, labels.cells, labels.teacher_logits
        if chosen is not None:
            extra, _ = _padding(chosen.numel())
            chosen = torch.cat([chosen, torch.arange(extra)])
        scores = inputs if chosen is None else chosen.numel()
        rows, width = scores, 0
        if self._kind.competing:
            assert cells is not None
            rows = self._units + 1  # the last row takes the padding
            width = longest if self._kind.reads_tokens else self._options
            rest = self._units * width + torch.arange(scores - cells.numel()) % width
            cells = torch.cat([cells // max(1, labels.width) * width + cells % max(1, labels.width), rest])
        else:
            cells = None
        if teacher_logits is not None:
            missing = scores - len(teacher_logits), teacher_logits.shape[1]
            teacher_logits = torch.cat([teacher_logits, teacher_logits.new_full(missing, float("nan"))])
        no_label = float("nan") if answers.is_floating_point() else IGNORED
        ignored = answers.new_full((rows - len(answers), *answers.shape[1:]), no_label)
        texts = labels.texts and labels.texts.pad(tokens, inputs, lambda count: count + _padding(count)[0])
        return TaskLabels(torch.cat([answers, ignored]), chosen, cells, width, teacher_logits, texts)


def _padding(count: int) -> tuple[int, int]:
    """Return the padding up to the next bucket size, and the distance between sizes: eight from n to 2n."""
    step = max(32, 1 << max(0, (max(1, count) - 1).bit_length() - 4))
    return -count % step, step


@dataclass
class UnitFeed(Feed):
    """The batches of a run: all units in every epoch, in a new order. Rank `rank` of `ranks` reads its share of each
    step, which is empty if the step has fewer units than ranks."""

    schedule: TrainingSchedule
    units: Sequence[Unit]
    size: int  # units of a step
    head: str
    _: KW_ONLY
    regression: bool = False
    seed: int = 0
    shapes: ShapeBuckets | None = None
    limit: int = 0  # tokens of a micro-batch; 0: a step is one
    special: frozenset[int] | None = None  # see `collate`
    rank: int = 0
    ranks: int = 1
    _order: tuple[int, NDArray[np.int64]] = field(default=(-1, np.zeros(0, np.int64)), init=False)  # of an epoch

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every unit is read once."""
        return steps_per_epoch(len(self.units), self.size)

    def __getitem__(self, number: int) -> StepBatches:
        """Return the batches of a step."""
        update = self.schedule.updates[number]
        epoch, index = divmod(number, self.steps_per_epoch)
        if self._order[0] != epoch:
            self._order = epoch, _shuffled(len(self.units), self.seed, epoch)
        rows = self._order[1][index * self.size : (index + 1) * self.size]
        units = [self.units[row] for row in rows]
        if self.ranks > 1:
            units = sorted(units, key=_longest)[self.rank :: self.ranks]  # shares of about the same length
        pieces = split_by_tokens(units, self.limit) if self.limit else [units] if units else []
        batches = [collate(piece, self.head, self.regression, self.special) for piece in pieces]
        tokens = sum(batch.ids.numel() for batch in batches)
        if self.shapes is not None:
            batches = [self.shapes(batch) for batch in batches]
        padding = sum(batch.ids.numel() for batch in batches) - tokens
        numbers = range(self.rank, self.rank + self.ranks * len(batches), self.ranks)
        return StepBatches(update, batches, (number + 1) / self.steps_per_epoch, padding, numbers=numbers)


def split_by_tokens(units: Sequence[Unit], limit: int) -> list[list[Unit]]:
    """Split the units of a step into pieces of at most `limit` tokens, counted as if padded to the longest of a piece.

    A unit that is longer is a piece of its own. Units are sorted by length, so that pieces are few.
    """
    pieces: list[list[Unit]] = []
    sequences = 0  # of the last piece
    for unit in sorted(units, key=_longest):
        if not pieces or (sequences + len(unit.sequences)) * _longest(unit) > limit:
            pieces.append([])
            sequences = 0
        pieces[-1].append(unit)
        sequences += len(unit.sequences)
    return pieces


def _longest(unit: Unit) -> int:
    return max(len(sequence.ids) for sequence in unit.sequences)


def steps_per_epoch(units: int, size: int) -> int:
    """Return the steps in which all units are read once; the last may read fewer units than the others."""
    return -(-units // size)


def _shuffled(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    order: NDArray[np.int64] = np.argsort(
        keyed_random.bits(keyed_random.key(seed, epoch, "units"), np.arange(count)), kind="stable"
    )
    return order
