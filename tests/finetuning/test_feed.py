"""The batches of a fine-tuning run: padding changes nothing, and every unit is read once an epoch."""

from collections import Counter

import pytest
import torch

from bertree.batch import Batch
from bertree.config.sections import OptimSettings, Phase, ScheduleSettings
from bertree.finetuning.feed import LENGTHS, ShapeBuckets, UnitFeed, split_by_tokens
from bertree.model.network import Network
from bertree.objectives.supervised import supervised_objective
from bertree.tasks.batches import collate
from bertree.tasks.task import Unit
from bertree.text.tokenizer import Encoded
from bertree.train.feed import TrainingSchedule
from bertree.train.loop import Loop
from bertree.train.optimizer import build_optimizer
from tests.support.batches import run_backward
from tests.support.shared import suite_has
from tests.support.units import HEADS, OPTIONS, network, regression_network, units


def weighed(model: Network, batch: Batch, head: str, regression: bool) -> tuple[float, int, list[torch.Tensor]]:
    objective = supervised_objective(head, regression)
    model.zero_grad()
    loss = objective(model, batch).losses[head].sum
    loss.backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    return loss.item(), objective.counts(batch)[head], gradients


@pytest.mark.parametrize("seed", suite_has([0], range(4)))
@pytest.mark.parametrize(("head", "regression"), HEADS)
@pytest.mark.parametrize("positions", [64, 40])
def test_padding_changes_nothing(head: str, regression: bool, seed: int, positions: int) -> None:
    model = (regression_network if regression else network)(max_positions=positions)
    some = units(head, (7, 8, 1, 3)[seed], seed, regression)
    batch = collate(some, head, regression)
    filled = ShapeBuckets(head, 8, OPTIONS if head == "choice" else 1)(batch)
    assert int(filled.ids.numel()) % 32 == 0
    plain, full = weighed(model, batch, head, regression), weighed(model, filled, head, regression)
    assert full[0] == pytest.approx(plain[0], rel=1e-6, abs=1e-7)
    assert full[1] == plain[1]
    for left, right in zip(plain[2], full[2], strict=True):
        assert (left - right).abs().max() <= 1e-6 * max(1.0, float(left.abs().max()))


@pytest.mark.parametrize("seed", range(6))
def test_padding_has_no_position_beyond_those_of_the_batch(seed: int) -> None:
    """A model with 40 positions cannot read a sequence of 64, though there is no bucket between."""
    batch = collate(units("sequence", 60, seed), "sequence")
    filled = ShapeBuckets("sequence", 60)(batch)
    assert batch.max_seqlen <= 40 < filled.max_seqlen == 64
    assert int(filled.positions.max()) < batch.max_seqlen
    plain, full = (weighed(network(max_positions=40), b, "sequence", False) for b in (batch, filled))
    assert full[0] == pytest.approx(plain[0], rel=1e-6)


def shape(batch: Batch) -> tuple[object, ...]:
    return tuple(v.shape if isinstance(v, torch.Tensor) else v for v in batch.leaves())


@pytest.mark.parametrize(("head", "regression"), HEADS)
def test_few_shapes_and_little_padding(head: str, regression: bool) -> None:
    shapes, seen, raw = ShapeBuckets(head, 16, OPTIONS if head == "choice" else 1), set(), set()
    for seed in range(60):
        batch = collate(units(head, 16, seed, regression, longest=50), head, regression)
        filled = shapes(batch)
        seen.add(shape(filled))
        raw.add(shape(batch))
        for before, after in ((batch.ids, filled.ids), (batch.labels.chosen, filled.labels.chosen)):
            if before is not None:
                added = after.numel() - before.numel()
                assert 0 <= added <= before.numel() / 8 + 32
        assert filled.max_seqlen in LENGTHS
        assert int(filled.lengths.max()) <= filled.max_seqlen
        assert int(filled.cu_seqlens[-1]) == filled.ids.numel()
    assert len(raw) > 40
    assert len(seen) <= (40 if head in ("token", "span", "beam-span") else 12)


def feed(some: list[Unit], size: int, steps: int, head: str = "sequence", **options: object) -> UnitFeed:
    return UnitFeed(
        TrainingSchedule([Phase(steps=steps)], ScheduleSettings(warmup=2), 1e-3), some, size, head, **options
    )


def read(batches: list[Batch]) -> list[tuple[int, ...]]:
    return [tuple(row.tolist()) for batch in batches for row in batch.split(batch.ids)]


def test_every_unit_once_an_epoch_in_an_order_of_its_own() -> None:
    some = units("sequence", 23, 0)
    all_of_them = Counter(tuple(unit.sequences[0].ids) for unit in some)
    unit_feed = feed(some, 4, 18)
    assert unit_feed.steps_per_epoch == 6
    epochs = [
        [row for step in range(first, first + 6) for row in read(unit_feed[step].batches)] for first in (0, 6, 12)
    ]
    assert all(Counter(epoch) == all_of_them for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert [len(read(unit_feed[step].batches)) for step in range(6)] == [4, 4, 4, 4, 4, 3]
    assert unit_feed[17].epoch == pytest.approx(3.0)
    backwards = {step: read(feed(some, 4, 18)[step].batches) for step in reversed(range(18))}
    assert all(backwards[step] == read(unit_feed[step].batches) for step in range(18))
    assert [read(work.batches) for work in unit_feed.steps_from(13)] == [backwards[step] for step in range(13, 18)]
    assert [read(feed(some, 4, 18, seed=1)[step].batches) for step in range(6)] != [backwards[s] for s in range(6)]


def test_a_step_is_split_by_tokens_not_by_the_longest_text_of_all() -> None:
    lengths = [3000, 5, 40, 7, 400, 6, 38, 41, 390]
    some = [Unit(row, (Encoded([9] * length, None, 0),), answer=0) for row, length in enumerate(lengths)]
    pieces = split_by_tokens(some, 800)
    unit_lengths = [[len(unit.sequences[0].ids) for unit in piece] for piece in pieces]
    assert unit_lengths == [[5, 6, 7, 38, 40, 41], [390, 400], [3000]]
    assert [len(piece) for piece in split_by_tokens(some, 1)] == [1] * 9


@pytest.mark.parametrize(("head", "regression"), HEADS)
def test_micro_batches_add_up(head: str, regression: bool) -> None:
    some = units(head, 12, 3, regression)
    gradients_of = []
    for limit, least in ((0, 1), (150, 2), (1, 12)):
        work = feed(some, 12, 1, head, regression=regression, limit=limit)[0]
        assert len(work.batches) >= least
        model = (regression_network if regression else network)().train()
        loop = Loop(model, supervised_objective(head, regression), build_optimizer(model, OptimSettings()))
        sums, counts = run_backward(loop, work)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        gradients_of.append((sums[head].item(), counts, gradients))
    for total, counts, gradients in gradients_of[1:]:
        assert total == pytest.approx(gradients_of[0][0], rel=1e-5)
        assert counts == gradients_of[0][1]
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(gradients, gradients_of[0][2], strict=True))
