"""Units in packed batches: where their tokens and labels are."""

import numpy as np
import pytest
import torch

from bertree.tasks.batches import batches_by_length, collate
from tests.support.units import HEADS, units


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("head", "regression"), HEADS)
def test_everything_stands_where_it_belongs(head: str, regression: bool, seed: int) -> None:
    some = units(head, 9, seed, regression)
    batch = collate(some, head, regression)
    sequences = [sequence for unit in some for sequence in unit.sequences]
    assert [row.tolist() for row in batch.split(batch.ids)] == [s.ids for s in sequences]
    assert [row.tolist() for row in batch.split(batch.segments)] == [s.segments or [0] * len(s.ids) for s in sequences]
    assert batch.max_seqlen == max(len(s.ids) for s in sequences)
    answers = batch.labels.answers
    if head == "sequence":
        for unit, answer in zip(some, answers.tolist(), strict=True):
            if regression:
                assert np.isnan(answer) if unit.answer is None else answer == pytest.approx(unit.answer)
            else:
                assert answer == (-100 if unit.answer is None else unit.answer)
        return
    if head == "choice":
        names = torch.arange(len(sequences), dtype=torch.float32)[:, None]
        rows = [list(range(len(unit.sequences))) for unit in some]
    else:
        names = batch.ids[batch.labels.chosen].float()[:, None]
        assert names[:, 0].tolist() == [unit.sequences[0].ids[at] for unit in some for at in unit.chosen]
        rows = [[unit.sequences[0].ids[at] for at in unit.chosen] for unit in some]
    laid = batch.labels.grid.scatter(names)[..., 0]
    for number, (unit, row) in enumerate(zip(some, rows, strict=True)):
        first = sum(len(unit.sequences) for unit in some[:number]) if head == "choice" else 0
        assert laid[number, : len(row)].tolist() == [first + x for x in row]
        assert (laid[number, len(row) :] < -1e8).all()
        if head == "span":
            assert tuple(answers[number].tolist()) == (unit.answer or (-100, -100))
        if head == "choice":
            assert answers[number] == (-100 if unit.answer is None else unit.answer)
    if head == "token":
        assert answers.tolist() == [t for unit in some for t in unit.answer or [-100] * len(unit.chosen)]


@pytest.mark.parametrize("head", ["sequence", "choice"])
def test_by_length_covers_all_within_its_room(head: str) -> None:
    some = units(head, 50, 1)
    sizes = [sum(len(s.ids) for s in unit.sequences) for unit in some]
    rows = list(batches_by_length(some, 100))
    assert sorted(row for group in rows for row in group) == list(range(50))
    assert all(sum(sizes[row] for row in group) <= 100 or len(group) == 1 for group in rows)
    assert all(group == sorted(group, key=lambda row: sizes[row]) for group in rows)
    assert list(batches_by_length([], 100)) == []
