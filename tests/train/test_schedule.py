"""What every step does: rates at known points, batches that grow, phases."""

import math
from itertools import pairwise

import pytest

from bertree.config.sections import Phase, ScheduleSettings
from bertree.pretraining import recipe
from bertree.train.feed import TrainingSchedule


def rates(steps: int, lr: float = 1.0, **schedule: object) -> list[float]:
    return [update.lr for update in TrainingSchedule([Phase(steps)], ScheduleSettings(**schedule), lr).updates]


def test_the_warm_up_rises_to_the_rate() -> None:
    values = rates(10, 2.0, warmup=4, shape="constant")
    assert values == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])


def test_linear() -> None:
    values = rates(14, warmup=4)
    assert values[4] == 1.0
    assert values[9] == pytest.approx(0.5)
    assert values[13] == pytest.approx(0.1), "the step after the last would have 0"
    assert all(a - b == pytest.approx(0.1) for a, b in pairwise(values[4:]))
    assert rates(10, final=0.5)[5] == pytest.approx(0.75)


def test_cosine() -> None:
    values = rates(100, shape="cosine")
    assert values[0] == 1.0
    assert values[25] == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert values[50] == pytest.approx(0.5)
    assert rates(100, shape="cosine", final=0.2)[50] == pytest.approx(0.6)


def test_all_warm_up() -> None:
    assert rates(4, warmup=4) == pytest.approx([0.25, 0.5, 0.75, 1.0])


@pytest.mark.parametrize("shape", ["linear", "cosine"])
@pytest.mark.parametrize("growth", [2, 4, 16])
def test_growth(shape: str, growth: int) -> None:
    phases = [Phase(70, 32), Phase(531, 64)]
    schedule = TrainingSchedule(phases, ScheduleSettings(shape=shape, warmup=11, growth=growth), 0.3)
    plain = TrainingSchedule(phases, ScheduleSettings(shape=shape, warmup=11), 0.3)
    at = {(u.phase, u.first): u.lr for u in plain.updates}
    read = [(u.phase, place) for u in schedule.updates for place in range(u.first, u.first + u.batches)]
    assert read == [(phase, place) for phase, steps in enumerate((70, 531)) for place in range(steps)]
    assert [u.number for u in schedule.updates] == list(range(len(schedule)))
    for update in schedule.updates:
        assert update.lr / update.batches == pytest.approx(at[update.phase, update.first], rel=1e-12)
        assert update.lr <= 0.3 + 1e-12
        last = update.first + update.batches == phases[update.phase].steps
        assert last or update.batches & (update.batches - 1) == 0, "powers of two, but for what is left of a phase"
        before = 11 if update.phase == 0 else 0
        if update.first < before:
            assert update.batches == 1, "not in the warm-up"
        elif not last:
            share = at[update.phase, update.first] / 0.3
            assert update.batches <= min(growth, 1 / share) < 2 * update.batches * (1 + 1e-9) or (
                update.batches == growth
            )
    assert max(u.batches for u in schedule.updates) == growth
    assert len(schedule) < len(plain)


@pytest.mark.parametrize(("scaling", "factor"), [("linear", 4.0), ("sqrt", 2.0), ("none", 1.0)])
def test_a_batch_factor_reads_as_much_in_fewer_steps_at_a_scaled_rate(scaling: str, factor: float) -> None:
    phases = [Phase(10, 32), Phase(40, 64)]
    plain = TrainingSchedule(phases, ScheduleSettings(growth=2), 0.3)
    scaled = TrainingSchedule(phases, ScheduleSettings(growth=2, batch_factor=4, rate_scaling=scaling), 0.3)
    assert scaled.tokens_after[-1] == plain.tokens_after[-1]
    assert [update.batches for update in scaled.updates][:4] == [4, 4, 2, 4]
    assert max(update.batches for update in scaled.updates) == 8
    at = {(update.phase, update.first): update for update in plain.updates}
    for update in scaled.updates:
        if before := at.get((update.phase, update.first)):
            assert update.lr / before.lr == pytest.approx(factor * update.batches / (4 * before.batches), rel=1e-12)


def test_berts_phases() -> None:
    bert = recipe.load("bert-base")
    scaled = [Phase(p.steps // 1000, p.max_length, p.batch_tokens) for p in bert.phases]
    schedule = TrainingSchedule(scaled, ScheduleSettings(warmup=10), 1e-4)
    assert len(schedule) == 1000
    assert [u.phase for u in schedule.updates] == [0] * 900 + [1] * 100
    assert schedule.updates[900].first == 0
    assert schedule.updates[900].lr == pytest.approx(1e-4 * 100 / 990), "one schedule over both"
    assert [p.max_length for p in bert.phases] == [128, 512]
