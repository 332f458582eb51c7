"""Run every seed of a fine-tuning job, keep the best model, and write its scores, predictions and report."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from signal import SIGTERM
from typing import Any, NamedTuple

import torch

from bertree.console import note
from bertree.errors import UserError
from bertree.files.atomic import exclusive_lock, remove_leftovers, write_into_folder, write_json_lines
from bertree.files.formats import Json, json_text, read_json
from bertree.finetuning import outcome
from bertree.finetuning.left_to_right import without_language_model
from bertree.finetuning.page.page import write_page
from bertree.finetuning.prepare import FineTuningJob
from bertree.finetuning.tuner import EncodedSplit, evaluate_split
from bertree.inference.run import Run
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.network import Network
from bertree.run_folder import (
    CHECKPOINTS,
    ENVIRONMENT,
    METRICS,
    MODEL,
    PREDICTIONS,
    RECIPE,
    REPORT,
    SCORES,
    make_folders,
    predictions_file,
)
from bertree.tasks.task import Task
from bertree.train.loop import Diverged, Loop
from bertree.train.signals import catch_signals


def run_seeds(
    job: FineTuningJob,
    seeds: int,
    resume: bool,
    before: Callable[[FineTuningJob], FineTuningJob] = lambda job: job,
    after: Callable[[FineTuningJob, Json], bool] = lambda job, best: False,
) -> Run:
    """Train every seed under an exclusive lock. Of several ranks the first writes.

    `before` runs once before the first seed; `after` runs once after the last, with the best result, and returns True
    if the report must be written again.
    """
    world = job.tuner.world
    with ExitStack() as stack:
        world.check_together(lambda: _open_folder(job.out, resume, stack) if world.is_first else None)
        job = before(job)
        results: list[Json] = []
        first = job.tuner.config.run.seed
        wanted = set(range(first, first + seeds))
        for seed in sorted(wanted | (_finished_seeds(job.out) if resume else set())):
            with catch_signals() as signals:
                result = _run_seed(job, seed, resume, results)
                stopped = bool(world.agree({"stop": int(signals.caught is not None)})["stop"])
            if isinstance(result, Interrupted):
                return Run(job.out, signal=result.signal)
            results.append(result)
            if stopped:  # it came while the seed was evaluated and written
                return Run(job.out, signal=signals.caught or SIGTERM)
        learned = world.check_together(lambda: _write_all(job, results, after) if world.is_first else False)
        return Run(job.out, learned=bool(world.agree({"learned": int(learned)})["learned"]))


def _open_folder(out: Path, resume: bool, stack: ExitStack) -> None:
    """Take possession of the folder of a run until the stack is closed."""
    stack.enter_context(make_folders(out))
    stack.enter_context(exclusive_lock(out))
    check_run_folder(out, resume)  # again: reading the examples takes a while, and another run may have begun
    remove_leftovers(_run_files(out))


def _write_all(job: FineTuningJob, results: Sequence[Json], after: Callable[[FineTuningJob, Json], bool]) -> bool:
    """Write the results of all seeds; return whether there is a model."""
    metrics = _write_results(job, results)
    if not (job.out / MODEL).is_dir():
        return False
    if after(job, max(results, key=lambda result: outcome.rank(result, job.tuner.task.metric))):
        _write_page(job, metrics)
    return True


class Interrupted(NamedTuple):
    """A seed that a signal ended before its time."""

    signal: int


def _finished_seeds(out: Path) -> set[int]:
    """Return the seeds that are finished: they compete for the best model too."""
    names = [path.parent.name.removeprefix("seed-") for path in out.glob(f"seed-*/{SCORES}")]
    return {int(name) for name in names if name.isdecimal()}


def check_run_folder(out: Path, resume: bool) -> None:
    """Refuse to write over a run."""
    begun = (out / MODEL).exists() or any(out.glob("seed-*"))
    if begun and not resume:
        raise UserError(f"{out}: holds a run already; resume it with `resume=True`, or give another `out`")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; give the path of a folder to write")


def _run_files(out: Path) -> Iterator[Path]:
    """Yield what a run writes, in its folder and in that of every seed."""
    for place in (out, *out.glob("seed-*")):
        for name in (MODEL, SCORES, PREDICTIONS, METRICS, RECIPE, ENVIRONMENT, REPORT):
            yield place / name


def _run_seed(job: FineTuningJob, seed: int, resume: bool, before: Sequence[Json]) -> Json | Interrupted:
    """Train one seed, unless it is finished, and keep its model if it is the best so far."""
    place, metric, world = job.out / f"seed-{seed}", job.tuner.task.metric, job.tuner.world
    finished = world.check_together(lambda: _finished(job, seed) if resume else None)
    world.check_same(str(place / SCORES), str(finished is not None))
    if finished is not None:
        return finished
    world.check_together(lambda: place.mkdir(parents=True, exist_ok=True))
    intro = [*(job.intro if not before else ()), f"seed {seed}"]
    try:
        signal, best, loop = job.tuner.run(place, seed, resume, intro)
    except Diverged as error:
        result: Json = {"seed": seed, metric: None, "diverged": str(error)}
    except torch.OutOfMemoryError:
        raise UserError("the GPU's memory is full; compute less at once (micro_tokens=...) or set batch=...") from None
    else:
        if signal is not None:
            return Interrupted(signal)
        evaluate = partial(_evaluate_seed, job, seed, best.step, loop, before)
        result = world.check_together(lambda: evaluate() if world.is_first else {})
    result["run"] = job.tuner.run_identity(seed)
    world.check_together(lambda: _mark_finished(place, result) if world.is_first else None)
    return result


def _mark_finished(place: Path, result: Json) -> None:
    write_into_folder(place / SCORES, json_text(result, 2) + "\n")
    shutil.rmtree(place / CHECKPOINTS, ignore_errors=True)


def _evaluate_seed(job: FineTuningJob, seed: int, best_step: int, loop: Loop, before: Sequence[Json]) -> Json:
    """Score the best weights of a seed, and write them if they are the best so far."""
    network, metric = loop.network, job.tuner.task.metric
    task, scores, lines = evaluate_dev(
        job.tuner.task,
        job.splits,
        lambda name: evaluate_split(job.tuner.task, network, job.splits[name], loop.autocast),
    )
    result = {"seed": seed, **scores, "best_step": best_step, "diverged": outcome.degenerate_reason(lines["dev"])}
    if all(outcome.rank(result, metric) > outcome.rank(other, metric) for other in before):
        _write_model(job, task, network)
        for name, some in lines.items():
            write_json_lines(job.out / predictions_file(name), some)
    return result


def _finished(job: FineTuningJob, seed: int) -> Json | None:
    """Return the result of a seed that is finished."""
    place = job.out / f"seed-{seed}"
    if not (place / SCORES).is_file():
        return None
    result: Json = read_json(place / SCORES)
    if result.get("run") != job.tuner.run_identity(seed):
        raise UserError(f"{place}: was trained with other settings or data; put them back, or start a new run")
    if job.tuner.world.is_first:
        shutil.rmtree(place / CHECKPOINTS, ignore_errors=True)  # of a run that was killed right after its end
    return result


Measurement = tuple[list[Json], dict[str, float]]


def evaluate_dev(
    task: Task[Any], parts: Mapping[str, EncodedSplit[Any]], measure: Callable[[str], Measurement]
) -> tuple[Task[Any], dict[str, float], dict[str, list[Json]]]:
    """Score every dev split. Settings of the task that are tuned on data (a threshold) are tuned on the first."""
    scores, lines = dict[str, float](), dict[str, list[Json]]()
    for name in sorted(name for name in parts if name != "train"):
        lines[name], found = measure(name)
        if name == "dev":
            task = task.tune(parts[name].examples, lines[name])
            lines[name] = task.apply_tuning(lines[name])
            found = task.score(parts[name].examples, lines[name])
        prefix = "" if name == "dev" else f"{name.partition('-')[2]}_"
        scores |= {f"{prefix}{key}": value for key, value in found.items()}
    return task, scores, lines


def _write_model(job: FineTuningJob, task: Task[Any], network: Network) -> None:
    folder.write(
        job.select_saved(job, network) if job.select_saved else _model_folder(job, task, network), job.out / MODEL
    )


def _model_folder(job: FineTuningJob, task: Task[Any], network: Network) -> Contents:
    settings = {key: value for key, value in task.settings().items() if value is not None}
    known = {"name": task.name, "max_length": job.tuner.config.train.max_length} | settings
    saved = without_language_model(network)
    return Contents(job.tuner.architecture, saved, job.start.tokenizer, list(task.labels), job.start.limit, task=known)


def _write_results(job: FineTuningJob, results: Sequence[Json]) -> Json:
    """Write metrics.json and the report, and return the metrics."""
    task = job.tuner.task
    found = outcome.summary(results, task.metric) | {"task": task.name, "model": job.model}
    found["examples"] = {name: len(part.examples) for name, part in job.splits.items()}
    found["cut"] = {name: cut._asdict() for name, cut in job.truncations.items() if cut.examples}
    if job.teacher:
        found["distillation"] = outcome.compare_to_teacher(found, job.teacher["scores"], task.metric) | {
            "teacher_model": job.teacher["model"],
            "teacher_bytes": job.teacher["bytes"],
        }
    write_into_folder(job.out / SCORES, json_text(found, 2) + "\n")
    _write_page(job, found)
    for result in [result for result in results if result["diverged"]]:
        note(f"seed {result['seed']} has diverged: {result['diverged']}")
    if all(result["diverged"] for result in results):
        note("no seed has learned the task; try a lower lr, a longer warmup or more epochs")
    return found


def _write_page(job: FineTuningJob, found: Json) -> None:
    lines = {name: job.out / predictions_file(name) for name in job.splits if name != "train"}
    write_page(job.out, job.tuner.task, found, lines)
