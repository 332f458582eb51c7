"""What a run says while it goes."""

import io
import time
from typing import Any

import pytest
from rich import progress as bars
from rich.console import Console

from bertree.config.sections import Phase, ScheduleSettings
from bertree.console import showing
from bertree.report.formats import duration
from bertree.train import progress
from bertree.train.feed import TrainingSchedule
from bertree.train.progress import Progress

LINE = {
    "kind": "train",
    "step": 10,
    "loss": 7.9,
    "mlm": 7.2,
    "nsp": 0.69,
    "lr": 1e-4,
    "tokens_per_s": 20111.0,
    "phase": 0,
}
EVALUATION = {"kind": "eval", "step": 100, "seconds": 6.1, "loss": 5.7, "perplexity": 164.0, "nsp_accuracy": 0.63}


def test_a_log_is_useful_and_short(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with showing(), Progress(range(401)) as shown:
        for step in range(1, 201):
            now += 0.5
            shown.step(step)
            shown.train(LINE | {"step": step})
            if step % 100 == 0:
                shown.evaluation(EVALUATION | {"step": step})
        shown.say("[b]saved[/b]")
    output = capsys.readouterr()
    assert output.err == ""
    lines = output.out.splitlines()
    assert lines[0] == "step 1/400 · loss 7.900 (MLM 7.200, NSP 0.690) · 20,111 tokens/s · lr 1e-4 · 3 min 20 s left"
    assert lines[-1] == "[b]saved[/b]"
    assert lines[-2].startswith("step 200/400 · held-out")
    assert lines[-3].startswith("step 200/400 · loss 7.900"), "the last figures are not lost, and come in order"
    assert "step 100/400 · held-out: loss 5.700, perplexity 164, pair accuracy 63.0 %" in lines
    assert len([line for line in lines if "tokens/s" in line]) == 6, (
        "one at first, every 30 s, and before each evaluation"
    )


def test_time_left_follows_the_tokens_that_are_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose batches grow has its longest steps before it."""
    schedule = TrainingSchedule([Phase(1000, 128, 100)], ScheduleSettings(growth=4), 1e-3)
    assert schedule.tokens_after[-1] == 100_000
    assert len(schedule.tokens_after) == len(schedule) + 1 < 1000
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    half = next(step for step, tokens in enumerate(schedule.tokens_after) if tokens >= 50_000)
    assert half > len(schedule) / 2
    with showing(), Progress(schedule.tokens_after, 100) as shown:  # resumed
        now += (schedule.tokens_after[half] - schedule.tokens_after[100]) / 100  # a second a hundred tokens
        shown.train(LINE | {"step": half})
    left = (100_000 - schedule.tokens_after[half]) / 100
    assert f"{duration(left)} left" in capsys.readouterr().out


@pytest.mark.parametrize("fields", [{}, {"step": 1, "loss": None, "lr": None, "mfu": float("nan"), "odd": "[/x]"}])
@pytest.mark.parametrize("quiet", [True, False])
def test_odd_fields(fields: dict[str, Any], quiet: bool) -> None:
    with Progress(range(11), 2, quiet=quiet) as shown:
        shown.train(fields)
        shown.evaluation(fields)
        shown.step(3)


def test_the_bar_moves_a_few_times_a_second_however_many_steps_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    now, moved = 1000.0, []
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Progress(range(20_001), quiet=True) as shown:
        shown._bar = bar = bars.Progress(console=Console(file=io.StringIO()))
        shown._task = bar.add_task("")
        monkeypatch.setattr(bar, "update", lambda *arguments, **fields: moved.append(fields["completed"]))
        for step in range(1, 20_001):
            now += 1e-3
            shown.step(step)
    assert 20 / progress.REFRESH - 1 <= len(moved) <= 20 / progress.REFRESH + 1
    assert moved == sorted(moved)
