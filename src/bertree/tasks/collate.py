"""Units -> one packed batch, with the labels in the layout that the head's loss reads."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertree.batch import Batch
from bertree.model.network import TOKEN_HEADS
from bertree.objectives.objective import IGNORED
from bertree.tasks.task import Unit

VECTOR_HEADS = ("vector", "compare")  # a vector for each text of a unit; what a classifier says about two of them


def collate(units: Sequence[Unit], head: str, regression: bool = False) -> Batch:
    """The units end to end, with what is asked about them and, where there is a teacher, what it said."""
    batch = _with_labels(units, head, regression)
    said = [unit.soft for unit in units if unit.soft is not None]
    if not said:
        return batch
    unknown = np.full((1, said[0].shape[1]), np.nan, np.float32)
    rows = [unknown.repeat(logit_rows(unit, head), 0) if unit.soft is None else unit.soft for unit in units]
    return replace(batch, soft=torch.from_numpy(np.concatenate(rows)))


def logit_rows(unit: Unit, head: str) -> int:
    """How many rows of scores a head gives for a unit."""
    if head == "compare":
        return 1
    return len(unit.chosen or ()) if head in TOKEN_HEADS else len(unit.sequences)


def _with_labels(units: Sequence[Unit], head: str, regression: bool) -> Batch:
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


def batches_by_length(units: Sequence[Unit], tokens: int) -> Iterator[list[int]]:
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
