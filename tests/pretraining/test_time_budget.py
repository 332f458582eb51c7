"""Runs of so many minutes: steps by measured speed, which measuring does not change and resuming keeps."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bertree.config.sections import Phase, ScheduleSettings
from bertree.errors import UserError
from bertree.pretraining import recipe as recipes
from bertree.pretraining import time_budget
from bertree.pretraining.recipe import Recipe
from bertree.pretraining.sections import PretrainingRunSettings
from bertree.train.feed import StreamFeed, TrainingSchedule
from bertree.train.loop import Loop
from tests.support import runs
from tests.support.shared import suite_has

SHORT = 0.02


def run_of(steps: tuple[int, ...], length: float, warmup: int = 0) -> Recipe:
    phases = tuple(Phase(steps=count, max_length=8, batch_tokens=64) for count in steps)
    return Recipe(phases=phases, schedule=ScheduleSettings(warmup=warmup), run=PretrainingRunSettings(minutes=length))


def test_steps_and_warmup_are_multiplied_by_one_factor() -> None:
    fitted = time_budget.fit_into_minutes(run_of((8000, 2000), 10, warmup=100), [0.1, 0.2])  # 1,200 s as it is
    assert [phase.steps for phase in fitted.phases] == [4000, 1000]
    assert fitted.schedule.warmup == 50
    assert time_budget.fit_into_minutes(run_of((10,), 1, warmup=4), [0.01]).phases[0].steps == 6000, "longer as well"


def test_a_warmup_does_not_vanish_nor_exceed_the_run() -> None:
    assert time_budget.fit_into_minutes(run_of((1000,), 0.1, warmup=3), [0.1]).schedule.warmup == 1
    assert time_budget.fit_into_minutes(run_of((1000,), 0.1), [0.1]).schedule.warmup == 0
    assert time_budget.fit_into_minutes(run_of((3,), 0.002, warmup=3), [0.1]).schedule.warmup == 1


def test_too_short_a_run_is_refused_with_the_shortest_one() -> None:
    with pytest.raises(UserError, match=r"^run\.minutes: 0\.001: is too short [^\n]* at least 0\.17, or fewer phases$"):
        time_budget.fit_into_minutes(run_of((99, 1), 0.001), [0.1, 0.1])


def measured(take: Callable[[int], list[float]], monkeypatch: pytest.MonkeyPatch) -> tuple[float, list[int]]:
    """Return the seconds of a step where so many steps take what `take` says, and how many were taken at a time."""
    counts: list[int] = []

    def counted(loop: Loop, make: object, first: int, last: int) -> list[float]:
        counts.append(last - first)
        return take(last - first)

    monkeypatch.setattr(time_budget, "_step_seconds", counted)
    world = SimpleNamespace(gather=lambda values: [values])
    schedule = TrainingSchedule(run_of((50,), 1).phases, ScheduleSettings(), lr=1e-3)
    loop, feed = cast(Loop, SimpleNamespace(world=world)), cast(StreamFeed, SimpleNamespace(schedule=schedule))
    return time_budget._measure_phase(loop, feed, 0), counts


@pytest.mark.parametrize("slow", [0, 1])
def test_steps_that_compile_do_not_make_the_run_shorter(slow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(count: int) -> list[float]:
        usual = [0.1, 0.12] * (count // 2 + 1)
        return [5.0] * slow + usual[: count - slow] if count > 1 else [0.1]

    seconds, counts = measured(take, monkeypatch)
    assert seconds == pytest.approx(0.11, rel=0.05)
    assert counts[-1] > 20, "enough steps for the time, whatever the first of them took"


@dataclass(frozen=True)
class Step:
    update: Any


def test_slow_steps_are_measured_with_three(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lengths = [0.0], iter([90.0, 61.0, 60.0])  # the first compiles

    def step(run_of: Step) -> SimpleNamespace:
        assert run_of.update.lr == 0
        clock[0] += next(lengths)
        return SimpleNamespace(norm=0.0)

    class Feed:
        schedule = TrainingSchedule(run_of((50,), 1).phases, ScheduleSettings(), lr=1e-3)

        def __getitem__(self, number: int) -> Step:
            return Step(self.schedule.updates[number])

    monkeypatch.setattr(time_budget, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    loop = SimpleNamespace(world=SimpleNamespace(gather=lambda values: [values]), step=step)
    assert time_budget._measure_phase(cast(Loop, loop), cast(StreamFeed, Feed()), 0) == 60
    assert next(lengths, None) is None, "all three were taken, and a fourth would have failed"


def test_a_student_whose_teacher_is_cached_has_no_minutes() -> None:
    assert recipes.load("distilbert-tiny", ["run.minutes=3"]).run.minutes == 3
    with pytest.raises(UserError, match=r"run\.minutes: the teacher's cache"):
        recipes.load("distilbert-tiny", ["run.minutes=3", "distill.cache=folder"])


def events(out: Path) -> list[str]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["text"] for line in lines if line["kind"] == "event"]


@pytest.mark.parametrize("family", suite_has(["bert"], ["bert", "xlnet"]))
def test_a_killed_run_keeps_its_steps_and_measuring_leaves_no_trace(
    family: str, token_store: Path, tmp_path: Path
) -> None:
    log, out, again = tmp_path / "log", tmp_path / "out", tmp_path / "again"
    recipe = ("pretrain", str(runs.recipe(family, tmp_path)), "--store", str(token_store), "run.log_every=9999")
    recipe += ("run.eval_every=9999", "run.save_every=9999", "optim.name=muon")
    command = (*recipe, f"run.minutes={SHORT}", "--out", str(out), "--resume")
    assert runs.finish(*command, "run.save_every=1", log=log, fault="measure:0.2:0.15,half the tensors:2") == 9, (
        log.read_text()
    )
    kept = recipes.load(str(out / "recipe.toml"))
    assert runs.finish(*command, log=log) == 0, log.read_text()
    assert recipes.load(str(out / "recipe.toml")).phases == kept.phases
    (start,) = [text for text in events(out) if text.startswith("started")]
    steps = " + ".join(f"{phase.steps:,}" for phase in kept.phases)
    assert re.fullmatch(rf"started: {SHORT:g} minutes at .* tokens/s: {re.escape(steps)} steps, .*", start)
    # The same steps, given by number.
    numbers = [f"phases.{number}.steps={phase.steps}" for number, phase in enumerate(kept.phases)]
    plain = (*recipe, *numbers, f"schedule.warmup={kept.schedule.warmup}")
    assert runs.finish(*plain, "--out", str(again), log=log) == 0, log.read_text()
    assert runs.results(out) == runs.results(again)
    # Other minutes, or steps that someone changed, are another run.
    assert runs.finish(*command, "run.minutes=0.5", log=log) == 2
    assert "was started with another run.minutes" in log.read_text()
    path = out / "recipe.toml"
    path.write_text(path.read_text().replace(f"steps = {kept.phases[0].steps}", f"steps = {kept.phases[0].steps + 1}"))
    assert runs.finish(*command, log=log) == 2
    assert "was started with another count of steps (run.minutes)" in log.read_text()
