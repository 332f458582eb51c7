"""The time budget of a run (`run.minutes`): the speed of its steps is measured, then the number of steps is set.

Before the first step each phase takes a few steps at learning rate 0, fewer if they are slow: they compile what is
compiled, change no weight, and the optimizer's state is cleared afterwards. The recipe's steps and its warm-up are then
multiplied by one factor. The budget covers the steps alone; compiling, evaluating and saving take extra time. The run's
recipe.toml and its checkpoints keep the steps, so that a resumed run has the same ones on any machine.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from bertree.console import say
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.pretraining import recipe as recipes
from bertree.pretraining.recipe import Recipe
from bertree.run_folder import CHECKPOINTS, MODEL, RECIPE
from bertree.train.checkpoint import CheckpointFolder
from bertree.train.feed import StepBatches, StreamFeed, TrainingSchedule, prefetch
from bertree.train.loop import Loop

WARM_UP = 3  # steps before the clock starts: the first compiles
SECONDS = 2.5  # of measuring in each phase
PROBES = 3  # steps that show how many fit into that time
FEWEST, MOST = 5, 500  # steps to measure
SLOW = 3  # times the median: such steps are left out
AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)


def has_begun(out: Path) -> bool:
    """Return whether a run has saved anything."""
    return bool(CheckpointFolder(out / CHECKPOINTS).steps()) or (out / MODEL).exists()


def with_kept_steps(recipe: AnyRecipe, out: Path) -> AnyRecipe:
    """Return the recipe of a run with a time budget, with the steps that were set when it began."""
    path = out / RECIPE
    if not recipe.run.minutes or not path.is_file() or not has_begun(out):
        return recipe
    before = recipes.load(str(path))
    if not before.run.minutes or len(before.phases) != len(recipe.phases):
        return recipe  # which is refused as another recipe
    pairs = zip(recipe.phases, before.phases, strict=True)
    phases = tuple(replace(phase, steps=earlier.steps) for phase, earlier in pairs)
    return replace(recipe, phases=phases, schedule=replace(recipe.schedule, warmup=before.schedule.warmup))


def identity(recipe: Recipe) -> Json:
    """Return what a checkpoint keeps of the steps that were set."""
    if not recipe.run.minutes:
        return {}
    return {"count of steps (run.minutes)": [*(phase.steps for phase in recipe.phases), recipe.schedule.warmup]}


def set_steps(recipe: Recipe, loop: Loop, feed: StreamFeed) -> tuple[Recipe, str]:
    """Measure the steps of a new run, set as many as fit into its time budget, and describe the result in a line."""
    say("measuring how long a step takes, to lay out the schedule ...")
    seconds = measure(loop, feed)
    fitted = fit_into_minutes(recipe, seconds)
    feed.schedule = TrainingSchedule(fitted.phases, fitted.schedule, fitted.optim.lr)
    speeds = [f"{phase.batch_tokens / each:,.0f}" for phase, each in zip(recipe.phases, seconds, strict=True)]
    steps = " + ".join(f"{phase.steps:,}" for phase in fitted.phases)
    factor = sum(phase.steps for phase in fitted.phases) / sum(phase.steps for phase in recipe.phases)
    return fitted, (
        f"{recipe.run.minutes:g} minutes at {' and '.join(speeds)} tokens/s: {steps} steps, {factor:.3g} "
        "times the recipe's"
    )


def fit_into_minutes(recipe: Recipe, seconds: Sequence[float]) -> Recipe:
    """Multiply steps and warm-up by one factor, so that the run takes its minutes. `seconds`: of a batch, by phase."""
    minutes, phases = recipe.run.minutes, recipe.phases
    factor = 60 * minutes / sum(phase.steps * each for phase, each in zip(phases, seconds, strict=True))
    factor = min(factor, 1.0) if recipe.run.at_most else factor
    fewest = min(phase.steps for phase in phases) * factor
    if fewest < 1:
        raise UserError(
            f"run.minutes: {minutes:g}: is too short for a step in each phase here; give at least "
            f"{math.ceil(100 * minutes / fewest) / 100:g}, or fewer phases"
        )
    warmup = recipe.schedule.warmup and max(1, round(recipe.schedule.warmup * factor))
    scaled = tuple(replace(phase, steps=round(phase.steps * factor)) for phase in phases)
    total = sum(phase.steps for phase in scaled)
    return replace(recipe, phases=scaled, schedule=replace(recipe.schedule, warmup=min(warmup, total)))


def measure(loop: Loop, feed: StreamFeed) -> list[float]:
    """Return the seconds that a batch takes in each phase; network, optimizer and memory are left as they were."""
    seconds = [_measure_phase(loop, feed, phase) for phase in range(len(feed.schedule.phases))]
    loop.optimizer.state.clear()
    loop.memories.clear()
    return seconds


def _measure_phase(loop: Loop, feed: StreamFeed, phase: int) -> float:
    """Return the seconds of a batch: a few steps after warming up, then as many as fit into `SECONDS`."""
    updates = [update for update in feed.schedule.updates if update.phase == phase]

    def batches_of(number: int) -> StepBatches:
        step = feed[updates[number % len(updates)].number]
        return replace(step, update=replace(step.update, lr=0.0))

    def batch_seconds(first: int, count: int) -> list[float]:
        """Take `count` steps; return the seconds of a batch in each of them."""
        seconds = _step_seconds(loop, batches_of, first, first + count)
        return [each / updates[number % len(updates)].batches for number, each in enumerate(seconds, first)]

    def of_first_rank(seconds: float) -> float:
        return loop.world.gather([seconds])[0][0]  # so that all ranks take as many steps

    def mean_without_slow(seconds: list[float]) -> float:
        # A step that compiles again is not typical.
        longest = SLOW * statistics.median(seconds)
        return of_first_rank(statistics.mean(each for each in seconds if each <= longest))

    batch_seconds(0, 1)
    quickest = of_first_rank(min(batch_seconds(number, 1)[0] for number in range(1, WARM_UP)))
    if quickest * updates[0].batches >= SECONDS:
        return quickest  # such long steps differ little, and more of them would take minutes
    probed = WARM_UP + PROBES
    step_seconds = mean_without_slow(batch_seconds(WARM_UP, PROBES)) * updates[probed % len(updates)].batches
    return mean_without_slow(batch_seconds(probed, min(MOST, max(FEWEST, math.ceil(SECONDS / step_seconds)))))


def _step_seconds(loop: Loop, batches_of: Callable[[int], StepBatches], first: int, last: int) -> list[float]:
    """Take steps as a run does, the host one step ahead of the device; return the seconds of each."""
    times, before = [time.perf_counter()], None
    for step_batches in prefetch(batches_of, first, last):
        result = loop.step(step_batches)
        if before is not None:
            before.norm  # noqa: B018  # waits for it
            times.append(time.perf_counter())
        before = result
    assert before is not None
    before.norm  # noqa: B018
    times.append(time.perf_counter())
    return [end - begin for begin, end in pairwise(times)]
