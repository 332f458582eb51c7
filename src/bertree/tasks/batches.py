"""Units -> packed batches, in the order of a run: a pure function of seed and step.

A step reads so many units whatever their lengths, as every published fine-tuning does; packing saves the padding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertree.batch import Batch
from bertree.data import draws
from bertree.model.network import TOKEN_HEADS
from bertree.objectives.losses import IGNORED
from bertree.tasks.task import Unit
from bertree.train.feed import Work, ahead
from bertree.train.plan import Plan

VECTOR_HEADS = ("vector", "compare")  # a vector for each text of a unit; what a classifier says about two of them
LENGTHS = (32, 64, 128, 256, 384)  # longest sequence, where shapes must not vary; above: multiples of 128


def collate(units: Sequence[Unit], head: str, regression: bool = False) -> Batch:
    """The units end to end, with what is asked about them and, where there is a teacher, what it said."""
    batch = _asked(units, head, regression)
    said = [unit.soft for unit in units if unit.soft is not None]
    if not said:
        return batch
    unknown = np.full((1, said[0].shape[1]), np.nan, np.float32)
    rows = [unknown.repeat(rows_of(unit, head), 0) if unit.soft is None else unit.soft for unit in units]
    return replace(batch, soft=torch.from_numpy(np.concatenate(rows)))


def rows_of(unit: Unit, head: str) -> int:
    """How many rows of scores a head gives for a unit."""
    if head == "compare":
        return 1
    return len(unit.chosen or ()) if head in TOKEN_HEADS else len(unit.sequences)


def _asked(units: Sequence[Unit], head: str, regression: bool) -> Batch:
    sequences = [sequence for unit in units for sequence in unit.sequences]
    batch = Batch.pack([s.ids for s in sequences], [s.segments for s in sequences], [s.second for s in sequences])
    if head == "sequence":
        unknown = float("nan") if regression else IGNORED
        answers = [unknown if unit.answer is None else unit.answer for unit in units]
        return _with(batch, answers=np.array(answers, np.float32 if regression else np.int64))
    if head == "choice":
        counts = [len(unit.sequences) for unit in units]
        answers = [IGNORED if unit.answer is None else unit.answer for unit in units]
        return _with(batch, *_grid(counts), answers=np.array(answers, np.int64))
    if head in VECTOR_HEADS:
        return _with(batch, *_vectors(units, regression))
    counts = [len(unit.chosen or ()) for unit in units]
    starts = batch.cu_seqlens[:-1].numpy().astype(np.int64).repeat(counts)
    chosen = np.concatenate([np.asarray(unit.chosen or (), np.int64) for unit in units]) + starts
    if head == "span":
        spans = [(IGNORED, IGNORED) if unit.answer is None else unit.answer for unit in units]
        return _with(batch, *_grid(counts), chosen=chosen, answers=np.array(spans, np.int64))
    tags = [unit.answer if unit.answer is not None else [IGNORED] * n for unit, n in zip(units, counts, strict=True)]
    answers_m = np.concatenate([np.asarray(tag, np.int64) for tag in tags])
    return _with(batch, *_grid(counts), chosen=chosen, answers=answers_m)


def _vectors(units: Sequence[Unit], regression: bool) -> tuple[NDArray[np.int64], int, None, NDArray[Any]]:
    """A row of vectors for each unit. Where its texts are named, all rows are as wide as the names say."""
    unknown, kind = (float("nan"), np.float32) if regression else (IGNORED, np.int64)
    answers = np.array([unknown if unit.answer is None else unit.answer for unit in units], kind)
    least = answers.shape[1] if answers.ndim == 2 else 0
    return *_grid([len(unit.sequences) for unit in units], least), None, answers


def _grid(counts: Sequence[int], least: int = 0) -> tuple[NDArray[np.int64], int]:
    """One row a question: the cell of each score, and the width."""
    width = max(least, max(counts, default=0))
    sizes = np.asarray(counts, np.int64)
    columns = np.arange(sizes.sum()) - (sizes.cumsum() - sizes).repeat(sizes)
    return np.arange(len(counts)).repeat(sizes) * width + columns, width


def _with(
    batch: Batch,
    cells: NDArray[np.int64] | None = None,
    width: int = 0,
    chosen: NDArray[np.int64] | None = None,
    answers: NDArray[Any] | None = None,
) -> Batch:
    given = {"cells": cells, "chosen": chosen, "answers": answers}
    tensors: dict[str, Any] = {name: torch.from_numpy(value) for name, value in given.items() if value is not None}
    return replace(batch, width=width, **tensors)


class Shapes:
    """Gives batches one of a few shapes, so that a step can be recorded once a shape and replayed.

    Tokens nobody asks about fill up the stream, in sequences of their own; questions without an answer fill up the
    rest. At most an eighth of a batch is filling.
    """

    def __init__(self, head: str, units: int, options: int = 1) -> None:
        """`units` a batch at most, each of at most `options` sequences."""
        self._head, self._units, self._options = head, units, options

    def __call__(self, batch: Batch) -> Batch:
        """The same batch, filled up."""
        assert batch.answers is not None
        longest = next((n for n in LENGTHS if n >= batch.max_seqlen), -(-batch.max_seqlen // 128) * 128)
        spare, step = _spare(batch.ids.numel())
        fillers = -(-step // longest)  # sequences
        sizes = np.minimum(longest, np.maximum(0, spare - longest * np.arange(fillers)))
        empty = self._units * self._options - (batch.cu_seqlens.numel() - 1)
        ends = batch.cu_seqlens.numpy()
        bounds = np.concatenate([ends, np.repeat(ends[-1], empty), ends[-1] + sizes.cumsum()]).astype(np.int32)
        zeros = torch.zeros(spare, dtype=torch.int64)
        # The rung may lie beyond the model's positions; the longest sequence does not.
        positions = (np.arange(spare) - (sizes.cumsum() - sizes).repeat(sizes)) % batch.max_seqlen
        answers, chosen, cells = batch.answers, batch.chosen, batch.cells
        rows = len(bounds) - 1 if self._head == "sequence" else self._units + 1  # the last row takes what is spare
        if chosen is not None:
            extra, _ = _spare(chosen.numel())
            chosen = torch.cat([chosen, torch.arange(extra)])
            rows = chosen.numel() if self._head == "token" else rows
        scores = len(bounds) - 1 if chosen is None else chosen.numel()
        if cells is not None and self._head != "token":
            width = longest if self._head == "span" else self._options
            rest = self._units * width + torch.arange(scores - cells.numel()) % width
            cells = torch.cat([cells // max(1, batch.width) * width + cells % max(1, batch.width), rest])
        else:
            cells, width = None, 0
        soft = batch.soft
        if soft is not None:
            soft = torch.cat([soft, soft.new_full((scores - len(soft), soft.shape[1]), float("nan"))])
        ignored = answers.new_full((rows - len(answers), *answers.shape[1:]), _nothing(answers))
        return Batch(
            ids=torch.cat([batch.ids, zeros]),
            positions=torch.cat([batch.positions, torch.from_numpy(positions)]),
            segments=torch.cat([batch.segments, zeros]),
            cu_seqlens=torch.from_numpy(bounds),
            max_seqlen=longest,
            chosen=chosen,
            cells=cells,
            width=width,
            answers=torch.cat([answers, ignored]),
            soft=soft,
        )


def _nothing(answers: torch.Tensor) -> float:
    return float("nan") if answers.is_floating_point() else IGNORED


def _spare(count: int) -> tuple[int, int]:
    """How far it is to the next rung of a ladder with eight rungs an octave, and the distance of two rungs."""
    step = max(32, 1 << max(0, (max(1, count) - 1).bit_length() - 4))
    return -count % step, step


class UnitFeed:
    """The batches of a run: every epoch all units in an order of its own."""

    def __init__(
        self,
        plan: Plan,
        units: Sequence[Unit],
        size: int,
        head: str,
        *,
        regression: bool = False,
        seed: int = 0,
        shapes: Shapes | None = None,
        micro: int = 1,
    ) -> None:
        """`size` units a step, computed in `micro` pieces."""
        self.plan = plan
        self._units, self._size, self._micro = units, size, micro
        self._head, self._regression, self._seed, self._shapes = head, regression, seed, shapes
        self.steps_an_epoch = steps_an_epoch(len(units), size)
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, np.int64))

    def __getitem__(self, number: int) -> Work:
        """What a step reads."""
        update = self.plan.updates[number]
        epoch, place = divmod(number, self.steps_an_epoch)
        if self._order[0] != epoch:
            self._order = epoch, _shuffled(len(self._units), self._seed, epoch)
        rows = self._order[1][place * self._size : (place + 1) * self._size]
        pieces = [piece for piece in np.array_split(rows, self._micro) if len(piece)]
        batches = [collate([self._units[i] for i in piece], self._head, self._regression) for piece in pieces]
        asked = sum(batch.ids.numel() for batch in batches)
        if self._shapes is not None:
            batches = [self._shapes(batch) for batch in batches]
        filling = sum(batch.ids.numel() for batch in batches) - asked
        return Work(update, batches, (number + 1) / self.steps_an_epoch, filling)

    def since(self, first: int) -> Iterator[Work]:
        """Steps from `first` on, made ahead."""
        return ahead(self.__getitem__, first, len(self.plan))


def steps_an_epoch(units: int, size: int) -> int:
    """The last step of an epoch may read fewer units than the others."""
    return -(-units // size)


def _shuffled(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    order: NDArray[np.int64] = np.argsort(draws.bits(draws.key(seed, epoch, "units"), np.arange(count)), kind="stable")
    return order


def by_length(units: Sequence[Unit], tokens: int) -> Iterator[list[int]]:
    """For evaluation: rows of units of similar lengths, so many tokens at once, the longest first."""
    sizes = np.array([sum(len(s.ids) for s in unit.sequences) for unit in units], np.int64)
    order = np.argsort(-sizes, kind="stable").tolist()
    rows: list[int] = []
    room = tokens
    for row in order:
        if rows and sizes[row] > room:
            yield rows[::-1]  # shortest first, as the CPU's attention likes them
            rows, room = [], tokens
        rows.append(row)
        room -= int(sizes[row])
    if rows:
        yield rows[::-1]
