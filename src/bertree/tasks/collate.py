"""Units -> one packed batch, with the labels in the layout that the head's loss reads."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertree.batch import IGNORED, Batch, PretrainingLabels
from bertree.objectives.supervised import HEAD_KINDS, HeadKind, TaskLabels
from bertree.tasks.task import Unit


def collate(units: Sequence[Unit], head: str, regression: bool = False, special: frozenset[int] | None = None) -> Batch:
    """Pack units into a batch with their labels and, where a teacher has scored them, its scores.

    `special`: also label the next tokens of the texts, except tokens of these ids."""
    kind = HEAD_KINDS[head]
    sequences = [sequence for unit in units for sequence in unit.sequences]
    batch = Batch.pack([s.ids for s in sequences], [s.segments for s in sequences], [s.second for s in sequences])
    counts = [_count(unit, kind) for unit in units]
    answers = _answers(units, counts, kind, regression)
    arrays = {"answers": answers}
    if kind.reads_tokens:
        starts = batch.cu_seqlens[:-1].numpy().astype(np.int64).repeat(counts)
        arrays["chosen"] = np.concatenate([np.asarray(unit.chosen or (), np.int64) for unit in units]) + starts
    width = 0
    if kind.reads_tokens or kind.competing:
        # Where each text of a unit has a label, all rows are as wide as the labels say.
        arrays["cells"], width = _grid(counts, answers.shape[1] if kind.labels == "unit" and answers.ndim == 2 else 0)
    if teacher_logits := _teacher_logits(units, head):
        arrays["teacher_logits"] = np.concatenate(teacher_logits)
    tensors: dict[str, Any] = {name: torch.from_numpy(value) for name, value in arrays.items()}
    texts = None if special is None else _next_tokens(batch, special)
    orders = len(units[0].sequences) if kind.orders and units else 1
    assert not kind.orders or all(len(unit.sequences) == orders for unit in units), "the same orders in all units"
    return replace(batch, orders=orders, labels=TaskLabels(width=width, texts=texts, **tensors))


def _next_tokens(batch: Batch, special: frozenset[int]) -> PretrainingLabels:
    """Return the tokens whose next one, in the same sequence, is of the text; and what that is."""
    ids, starts = batch.ids.numpy(), batch.cu_seqlens[:-1].numpy()
    predicted = ~np.isin(ids, list(special))
    predicted[starts[starts < len(ids)]] = False
    targets = predicted.nonzero()[0]
    return PretrainingLabels(torch.from_numpy(targets - 1), torch.from_numpy(ids[targets]))


def logit_rows(unit: Unit, head: str) -> int:
    """Return how many rows of scores a head gives for a unit."""
    return HEAD_KINDS[head].rows_per_unit or _count(unit, HEAD_KINDS[head])


def _count(unit: Unit, kind: HeadKind) -> int:
    """Return how many tokens or sequences of a unit the head reads."""
    return len(unit.chosen or ()) if kind.reads_tokens else len(unit.sequences)


def _answers(units: Sequence[Unit], counts: Sequence[int], kind: HeadKind, regression: bool) -> NDArray[Any]:
    if kind.labels == "row":
        rows = [[IGNORED] * n if unit.answer is None else unit.answer for unit, n in zip(units, counts, strict=True)]
        return np.concatenate([np.asarray(row, np.int64) for row in rows])
    unknown = math.nan if regression else (IGNORED, IGNORED) if kind.labels == "span" else IGNORED
    answers = [unknown if unit.answer is None else unit.answer for unit in units]
    return np.array(answers, np.float32 if regression else np.int64)


def _teacher_logits(units: Sequence[Unit], head: str) -> list[NDArray[np.float32]]:
    """Return a teacher's scores of all units, NaN for those it has not scored; empty if there is no teacher."""
    scored = next((unit.teacher_logits for unit in units if unit.teacher_logits is not None), None)
    if scored is None:
        return []
    missing = np.full((1, scored.shape[1]), np.nan, np.float32)
    return [
        missing.repeat(logit_rows(unit, head), 0) if unit.teacher_logits is None else unit.teacher_logits
        for unit in units
    ]


def _grid(counts: Sequence[int], least: int = 0) -> tuple[NDArray[np.int64], int]:
    """Return the cell of each score in a grid of one row per unit, and the width of the grid."""
    width = max(least, max(counts, default=0))
    sizes = np.asarray(counts, np.int64)
    columns = np.arange(sizes.sum()) - (sizes.cumsum() - sizes).repeat(sizes)
    return np.arange(len(counts)).repeat(sizes) * width + columns, width


def batches_by_length(units: Sequence[Unit], tokens: int) -> Iterator[list[int]]:
    """Yield the numbers of units of similar lengths, at most `tokens` at once, the longest units first."""
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
