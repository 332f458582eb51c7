"""Execute a job on a task: all ranks, one lock, every seed, the best model, scores, predictions and the report.

OUT/model/                  the best model of the best seed, with its labels and settings
OUT/metrics.json            its scores on the dev split, and those of every seed
OUT/predictions.jsonl       its predictions on the dev split
OUT/report.html             scores and predictions to look at
OUT/seed-N/                 each run: metrics.jsonl, report.html, recipe.toml
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from signal import SIGTERM
from typing import Any, NamedTuple

import torch

from bertree.config.sections import RunSettings
from bertree.console import note, notes_shown, showing
from bertree.errors import UserError
from bertree.files.atomic import (
    RUN_KIND,
    exclusive_lock,
    make_folder,
    make_folders,
    refuse_other,
    remove_leftovers,
    write_into_folder,
    write_json_lines,
)
from bertree.files.formats import Json, json_text, read_json
from bertree.finetuning import evaluate as scores_of
from bertree.finetuning.evaluate import encode_split, evaluate_dev, evaluate_split
from bertree.finetuning.job import EncodedJob, TaskJob, encode_job
from bertree.finetuning.page import write_page
from bertree.finetuning.scored import training_digest
from bertree.finetuning.tuner import FEWEST_FOR_CHANCE, FEWEST_PREDICTIONS, TrainedSeed, advice, degenerate_reason
from bertree.inference.load import Run
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
    predictions_file,
)
from bertree.scale.launch import launched
from bertree.scale.world import join
from bertree.tasks.task import Task
from bertree.train.device_setup import set_threads, uses_gpu
from bertree.train.loop import Diverged
from bertree.train.metrics_log import announce_model
from bertree.train.signals import catch_signals

MOST_SEEDS = 1000


def execute_job(
    build: Callable[[], TaskJob],
    *,
    out: str | Path,
    run: RunSettings,
    seeds: int = 1,
    resume: bool = False,
    progress: bool | None = None,
) -> Run:
    """Build a job on every rank and train all its seeds. Of several ranks the first writes.

    `run` names the device of the ranks. Under torchrun, restarted processes resume the run.
    """
    if not 1 <= seeds <= MOST_SEEDS:
        raise UserError(f"seeds: must be from 1 to {MOST_SEEDS:,}, not {seeds:,}")
    launch, out = launched(), Path(out)
    resume = resume or launch.restarts > 0
    with (
        showing(progress if launch.rank == 0 else False),
        notes_shown(launch.rank == 0),
        join(launch, cuda=uses_gpu(run)) as world,
        ExitStack() as stack,
    ):
        world.check_together(lambda: _check_run_folder(out, resume))
        job = world.check_together(lambda: encode_job(build(), out, world))
        set_threads(job.tuner.architecture.width, job.tuner.device_setup.device, out, resume)
        first = job.tuner.config.run.seed
        world.check_same("model, data or settings", job.tuner.run_identity(first))
        world.check_together(lambda: _open_folder(out, resume, stack) if world.is_first else None)
        return _run_seeds(job.job.before_seeds(job), range(first, first + seeds), resume)


def _run_seeds(job: EncodedJob, seeds: Sequence[int], resume: bool) -> Run:
    """Train every seed that is not finished, then write the results of all."""
    world = job.tuner.world
    results: list[Json] = []
    for seed in sorted({*seeds} | (_finished_seeds(job.out) if resume else set())):
        with catch_signals() as signals:
            result = _run_seed(job, seed, resume, results)
            stopped = bool(world.agree({"stop": int(signals.caught is not None)})["stop"])
        if isinstance(result, StoppedRun):
            return Run(job.out, signal=result.signal)
        results.append(result)
        if stopped:  # it came while the seed was evaluated and written
            return Run(job.out, signal=signals.caught or SIGTERM)
    learned = world.check_together(lambda: _write_all(job, results) if world.is_first else False)
    return Run(job.out, learned=bool(world.agree({"learned": int(learned)})["learned"]))


def _check_run_folder(out: Path, resume: bool) -> None:
    """Refuse to write over a run."""
    refuse_other(out, RUN_KIND)
    begun = (out / MODEL).exists() or any(out.glob("seed-*"))
    if begun and not resume:
        raise UserError(f"{out}: holds a run already; resume it with `resume=True`, or give another `out`")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; give the path of a folder to write")


def _open_folder(out: Path, resume: bool, stack: ExitStack) -> None:
    """Lock the folder of a run until the stack is closed."""
    stack.enter_context(make_folders(out))
    stack.enter_context(exclusive_lock(out))
    _check_run_folder(out, resume)  # again: building the job takes a while, and another run may have begun
    remove_leftovers(_run_files(out))


def _run_files(out: Path) -> Iterator[Path]:
    """Yield the files that a run writes, in its folder and in that of every seed."""
    for run_folder in (out, *out.glob("seed-*")):
        for name in (MODEL, SCORES, PREDICTIONS, METRICS, RECIPE, ENVIRONMENT, REPORT):
            yield run_folder / name


class StoppedRun(NamedTuple):
    """A seed that a signal ended early."""

    signal: int


def _finished_seeds(out: Path) -> set[int]:
    """Return the seeds that are finished: they compete for the best model too."""
    names = [path.parent.name.removeprefix("seed-") for path in out.glob(f"seed-*/{SCORES}")]
    return {int(name) for name in names if name.isdecimal()}


def _run_seed(job: EncodedJob, seed: int, resume: bool, earlier: Sequence[Json]) -> Json | StoppedRun:
    """Train one seed, unless it is finished, and keep its model if it is the best so far."""
    seed_folder, metric, world = job.out / f"seed-{seed}", job.tuner.task.metric, job.tuner.world
    finished = world.check_together(lambda: _read_finished(job, seed) if resume else None)
    world.check_same(str(seed_folder / SCORES), str(finished is not None))
    if finished is not None:
        return finished
    world.check_together(lambda: make_folder(seed_folder))
    intro = [*(job.intro if not earlier else ()), f"seed {seed}"]
    try:
        trained = job.tuner.run(seed_folder, seed, resume, intro)
    except Diverged as error:
        result: Json = {"seed": seed, metric: None, "diverged": str(error)}
    except torch.OutOfMemoryError:
        raise UserError("the GPU's memory is full; compute less at once (micro_tokens=...) or set batch=...") from None
    else:
        if trained.signal is not None:
            return StoppedRun(trained.signal)
        evaluate = partial(_evaluate_seed, job, seed, trained, earlier)
        result = world.check_together(lambda: evaluate() if world.is_first else {})
    result["run"] = job.tuner.run_identity(seed)
    world.check_together(lambda: _mark_finished(seed_folder, result) if world.is_first else None)
    return result


def _mark_finished(seed_folder: Path, result: Json) -> None:
    write_into_folder(seed_folder / SCORES, json_text(result, 2) + "\n")
    shutil.rmtree(seed_folder / CHECKPOINTS, ignore_errors=True)


def _read_finished(job: EncodedJob, seed: int) -> Json | None:
    """Return the result of a seed that is finished."""
    seed_folder = job.out / f"seed-{seed}"
    if not (seed_folder / SCORES).is_file():
        return None
    result: Json = read_json(seed_folder / SCORES)
    if result.get("run") != job.tuner.run_identity(seed):
        raise UserError(f"{seed_folder}: was trained with other settings or data; put them back, or start a new run")
    if job.tuner.world.is_first:
        shutil.rmtree(seed_folder / CHECKPOINTS, ignore_errors=True)  # of a run that was killed right after its end
    return result


def _evaluate_seed(job: EncodedJob, seed: int, trained: TrainedSeed, earlier: Sequence[Json]) -> Json:
    """Score the best weights of a seed, and write them if they are the best so far."""
    network, task = trained.network, job.tuner.task
    tuned, scores, lines = evaluate_dev(
        task, job.splits, lambda name: evaluate_split(task, network, job.splits[name], trained.autocast)
    )
    diverged = degenerate_reason([*lines["dev"], *_training_lines(job, trained, len(lines["dev"]))])
    result: Json = {"seed": seed, **scores, "best_step": trained.best_step, "diverged": diverged}
    result |= {"head": trained.head} if trained.head else {}
    rank = scores_of.rank(result, task.metric)
    if all(rank > scores_of.rank(result_before, task.metric) for result_before in earlier):
        job.tuner.finish(trained)
        select = job.job.select_saved
        folder.write(select(job, network) if select else _saved_contents(job, tuned, network), job.out / MODEL)
        for split, predictions in lines.items():
            write_json_lines(job.out / predictions_file(split), predictions)
        announce_model(job.out / f"seed-{seed}", job.out / MODEL, trained.best_step, trained.best_step)
    return result


def _training_lines(job: EncodedJob, trained: TrainedSeed, dev: int) -> list[Json]:
    """Return predictions of some training examples, if those of the dev split are too few to tell whether a run has
    learned anything."""
    if dev >= FEWEST_PREDICTIONS or job.job.keep_unlabeled:
        return []
    task, examples = job.tuner.task, job.job.data.examples["train"]
    kinds = [getattr(part[0], "kind", None) for part in (examples, job.job.data.examples["dev"])]
    if kinds[0] != kinds[1]:  # vectors may learn from pairs and be scored by other rows
        return []
    some = examples[:: max(1, len(examples) // FEWEST_FOR_CHANCE)]  # of all parts: a file may be sorted by class
    split, _ = encode_split(task, some, job.job.initial, job.tuner.config.train.max_length)
    return evaluate_split(task, trained.network, split, trained.autocast)[0]


def _saved_contents(job: EncodedJob, task: Task[Any], network: Network) -> Contents:
    """Return the model of a task: without a language-model head, which is not part of it."""
    settings = {key: value for key, value in task.settings().items() if value is not None}
    about = {"name": task.name, "max_length": job.tuner.config.train.max_length} | settings
    if job.job.data.held_out:  # so that the model can be scored on these examples again
        digest = training_digest(job.job.data.files["train"])
        about |= {"held_out": job.tuner.config.train.held_out, "trained_on": digest}
    heads = {name: head for name, head in network.heads.items() if name != "mask"}
    if len(heads) < len(network.heads):
        network = Network(
            network.encoder,
            heads,
            readout=network.readout,
            features=network.features,
            crf=network.crf,
            vector=network.vector,
            width=network.width,
        )
    initial = job.job.initial
    return Contents(
        job.tuner.architecture, network, initial.tokenizer, list(task.labels), _trained_length(job), task=about
    )


def _trained_length(job: EncodedJob) -> int | None:
    """Return the maximum length after this run, below the number of positions: an untrained model has learned those of
    its sequences, a trained one also has what it had before."""
    initial, length = job.job.initial, job.tuner.config.train.max_length
    if initial.trained and initial.limit is None:
        return None
    longest = max(length, initial.limit or 0)
    return longest if longest < initial.architecture.max_positions else None


def _write_all(job: EncodedJob, results: Sequence[Json]) -> bool:
    """Write the results of all seeds; return whether one of them has learned the task."""
    metrics = _write_results(job, results)
    best = max(results, key=lambda result: scores_of.rank(result, job.tuner.task.metric))
    if (job.out / MODEL).is_dir() and job.job.after_seeds(job, best):
        _write_page(job, metrics)
    return not best["diverged"]


def _write_results(job: EncodedJob, results: Sequence[Json]) -> Json:
    """Write metrics.json and the report, and return the metrics."""
    task = job.tuner.task
    metrics = scores_of.summary(results, task.metric) | {"task": task.name, "model": job.job.initial_name}
    metrics["examples"] = {name: len(split.examples) for name, split in job.splits.items()}
    metrics["cut"] = {name: cut._asdict() for name, cut in job.truncations.items() if cut.examples}
    metrics |= {"overlap": dict(job.overlaps)} if job.overlaps else {}
    if job.teacher:
        metrics["distillation"] = scores_of.compare_to_teacher(metrics, job.teacher["scores"], task.metric) | {
            "teacher_model": job.teacher["model"],
            "teacher_bytes": job.teacher["bytes"],
            "kind": job.teacher["kind"],
            "temperature": job.teacher["temperature"],
        }
    write_into_folder(job.out / SCORES, json_text(metrics, 2) + "\n")
    _write_page(job, metrics)
    for result in [result for result in results if result["diverged"]]:
        note(f"seed {result['seed']} has learned nothing: {result['diverged']}")
    if all(result["diverged"] for result in results):
        note(f"no seed has learned the task; {advice(job.tuner, results)}")
    return metrics


def _write_page(job: EncodedJob, metrics: Json) -> None:
    predictions = {name: job.out / predictions_file(name) for name in job.splits if name != "train"}
    write_page(job.out, job.tuner.task, metrics, predictions)
