"""A run of so many minutes (`run.minutes`): how fast its steps are is measured, then its steps are counted out.

Before the first step each phase takes a few steps at learning rate 0, fewer if they are slow: they compile what is
compiled, change no weight, and the optimizer forgets them. The recipe's steps and its warm-up are then multiplied by
one factor. The minutes are those of the steps; compiling, evaluating and saving come on top. The run's recipe.toml and
its checkpoints keep the steps, so that a resumed run, on whatever machine, has the same.
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
from bertree.train.checkpoints.folder import CheckpointFolder
from bertree.train.feed import StepBatches, StreamFeed, prefetch
from bertree.train.loop import Loop
from bertree.train.schedule import TrainingPlan

WARM = 3  # steps before the clock starts: the first compiles
SECONDS = 2.5  # to measure in each phase
PROBED = 3  # steps that tell how many fit into that time
FEWEST, MOST = 5, 500  # steps to measure
SLOW = 3  # times the median: such steps are left out
AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)


def has_begun(out: Path) -> bool:
    """Return whether a run has saved anything."""
    return bool(CheckpointFolder(out / CHECKPOINTS).steps()) or (out / MODEL).exists()


def with_kept_steps(recipe: AnyRecipe, out: Path) -> AnyRecipe:
    """Return the recipe of a run of so many minutes with the steps that were counted out when it began."""
    path = out / RECIPE
    if not recipe.run.minutes or not path.is_file() or not has_begun(out):
        return recipe
    before = recipes.load(str(path))
    if not before.run.minutes or len(before.phases) != len(recipe.phases):
        return recipe  # which is refused as another recipe
    pairs = zip(recipe.phases, before.phases, strict=True)
    phases = tuple(replace(phase, steps=kept.steps) for phase, kept in pairs)
    return replace(recipe, phases=phases, schedule=replace(recipe.schedule, warmup=before.schedule.warmup))


def identity(recipe: Recipe) -> Json:
    """Return what a checkpoint keeps of the steps that were counted out."""
    if not recipe.run.minutes:
        return {}
    return {"count of steps (run.minutes)": [*(phase.steps for phase in recipe.phases), recipe.schedule.warmup]}


def count_out(recipe: Recipe, loop: Loop, feed: StreamFeed) -> tuple[Recipe, str]:
    """Measure the steps of a run that begins, give it as many as fit into its minutes, and say so."""
    say("measuring how long a step takes, to lay out the schedule ...")
    seconds = measure(loop, feed)
    counted = fit_into_minutes(recipe, seconds)
    feed.plan = TrainingPlan(counted.phases, counted.schedule, counted.optim.lr)
    speeds = [f"{phase.batch_tokens / each:,.0f}" for phase, each in zip(recipe.phases, seconds, strict=True)]
    steps = " + ".join(f"{phase.steps:,}" for phase in counted.phases)
    total = sum(phase.steps for phase in counted.phases), sum(phase.steps for phase in recipe.phases)
    return counted, (
        f"{recipe.run.minutes:g} minutes at {' and '.join(speeds)} tokens/s: {steps} steps, {total[0] / total[1]:.3g} "
        "times the recipe's"
    )


def fit_into_minutes(recipe: Recipe, seconds: Sequence[float]) -> Recipe:
    """Multiply steps and warm-up by one factor, so that the run takes its minutes. `seconds` are those of a step."""
    minutes, phases = recipe.run.minutes, recipe.phases
    factor = 60 * minutes / sum(phase.steps * each for phase, each in zip(phases, seconds, strict=True))
    fewest = min(phase.steps for phase in phases) * factor
    if fewest < 1:
        raise UserError(
            f"run.minutes: {minutes:g}: is too short for a step in each phase here; give at least "
            f"{math.ceil(100 * minutes / fewest) / 100:g}, or fewer phases"
        )
    warmup = recipe.schedule.warmup and max(1, round(recipe.schedule.warmup * factor))
    longer = tuple(replace(phase, steps=round(phase.steps * factor)) for phase in phases)
    total = sum(phase.steps for phase in longer)
    return replace(recipe, phases=longer, schedule=replace(recipe.schedule, warmup=min(warmup, total)))


def measure(loop: Loop, feed: StreamFeed) -> list[float]:
    """Return the seconds that a batch takes in each phase; network, optimizer and memory are left as they were."""
    found = [_measure_phase(loop, feed, phase) for phase in range(len(feed.plan.phases))]
    loop.optimizer.state.clear()
    loop.carried.clear()
    return found


def _measure_phase(loop: Loop, feed: StreamFeed, phase: int) -> float:
    updates = [update for update in feed.plan.updates if update.phase == phase]

    def make(number: int) -> StepBatches:
        step = feed[updates[number % len(updates)].number]
        return replace(step, update=replace(step.update, lr=0.0))

    def take(first: int, count: int) -> list[float]:
        """Take some steps and return what a batch of each takes."""
        seconds = _take(loop, make, first, first + count)
        return [each / updates[number % len(updates)].batches for number, each in enumerate(seconds, first)]

    def of_first_rank(seconds: float) -> float:
        return loop.world.gather([seconds])[0][0]  # so that all ranks take as many steps

    def usual(each: list[float]) -> float:
        # A step that compiles once more says nothing about the others.
        longest = SLOW * statistics.median(each)
        return of_first_rank(statistics.mean(one for one in each if one <= longest))

    take(0, 1)
    quickest = of_first_rank(min(take(number, 1)[0] for number in range(1, WARM)))
    if quickest * updates[0].batches >= SECONDS:
        return quickest  # such long steps differ little, and more of them would take minutes
    one = usual(take(WARM, PROBED)) * updates[(WARM + PROBED) % len(updates)].batches
    return usual(take(WARM + PROBED, min(MOST, max(FEWEST, math.ceil(SECONDS / one)))))


def _take(loop: Loop, make: Callable[[int], StepBatches], first: int, last: int) -> list[float]:
    """Take some steps as a run does, the host one ahead of the device; return how long each took."""
    times, before = [time.perf_counter()], None
    for step_batches in prefetch(make, first, last):
        result = loop.step(step_batches)
        if before is not None:
            before.norm  # noqa: B018  # waits for it
            times.append(time.perf_counter())
        before = result
    assert before is not None
    before.norm  # noqa: B018
    times.append(time.perf_counter())
    return [end - begin for begin, end in pairwise(times)]
