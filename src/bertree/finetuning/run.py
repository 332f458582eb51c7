"""The work behind `bertree finetune`: find the files, build the parts, run every seed, keep the best.

OUT/model/                  the best model of the best seed, with its labels and settings
OUT/metrics.json            its scores on the dev split, and those of every seed
OUT/predictions.jsonl       what it says about every dev example
OUT/report.html             both to look at
OUT/seed-N/                 each run: metrics.jsonl, report.html, recipe.toml
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bertree.console import note
from bertree.errors import UserError
from bertree.files import Json, exclusive_lock, json_text, read_json, write_into_folder, write_json_lines
from bertree.finetuning import config as configs
from bertree.finetuning import outcome
from bertree.finetuning.evaluate import shown
from bertree.finetuning.page.page import write_page
from bertree.finetuning.prepare import FineTuningJob, prepare_run, read_examples, training_splits
from bertree.finetuning.tuner import EncodedSplit, evaluate_split
from bertree.inference.load import load
from bertree.interop import folder
from bertree.interop.folder import Contents
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
    make_folder,
    predictions_file,
    remove_leftovers,
)
from bertree.tasks.files import TaskFiles
from bertree.tasks.options import configure_task
from bertree.tasks.task import Task
from bertree.train.device import Machine, be_deterministic
from bertree.train.loop import Diverged


def finetune(
    model: str,
    task: Task[Any],
    files: TaskFiles,
    out: Path,
    overrides: Sequence[str],
    *,
    seeds: int = 1,
    features: str | None = None,
    resume: bool = False,
    tokenizer: Path | None = None,
) -> int:
    """Learn a task with every seed and keep the best. The exit code."""
    top = {"top": {"layers": features, "frozen": True}} if features else {}
    config = configs.load(overrides, task, top)
    task = configure_task(task, config.task)
    config, task = configs.with_crf(config, task)
    be_deterministic(config.run.deterministic)
    machine = Machine.of(config.run)
    splits = training_splits(files, task)
    check_place(out, resume)
    start = load(model, tokenizer=tokenizer)
    if not start.trained:
        note(f"{model}: is a preset with fresh weights, so everything is learned from this task alone")
    gathered = read_examples(task, splits, config.train.held_out)
    identity = [str(Path(model).resolve())]
    return run(prepare_run(start, model, gathered, out, config, machine, identity=identity), seeds, resume)


def run(
    job: FineTuningJob,
    seeds: int,
    resume: bool,
    ready: Callable[[FineTuningJob], FineTuningJob] = lambda job: job,
    done: Callable[[FineTuningJob, Json], bool] = lambda job, best: False,
) -> int:
    """Every seed, in a folder that is nobody else's. `ready` does what is left to do before the first, `done` what
    comes after the last, given the best; it says whether there is more to report."""
    make_folder(job.out)
    with exclusive_lock(job.out):
        check_place(job.out, resume)  # reading the examples takes a while, and another run may be quicker
        remove_leftovers(_run_files(job.out))
        job = ready(job)
        results: list[Json] = []
        first = job.tuner.config.run.seed
        wanted = set(range(first, first + seeds))
        for seed in sorted(wanted | (_finished(job.out) if resume else set())):
            code, result = _one_seed(job, seed, resume, results)
            if code:
                return code
            results.append(result)
        found = _finish(job, results)
        if not (job.out / MODEL).is_dir():
            return 1
        if done(job, max(results, key=lambda result: outcome.rank(result, job.tuner.task.metric))):
            _write_page(job, found)
        return 0


def _finished(out: Path) -> set[int]:
    """Seeds that are done: the best model is the best of them too."""
    names = [path.parent.name.removeprefix("seed-") for path in out.glob(f"seed-*/{SCORES}")]
    return {int(name) for name in names if name.isdecimal()}


def check_place(out: Path, resume: bool) -> None:
    """A run is not written over."""
    begun = (out / MODEL).exists() or any(out.glob("seed-*"))
    if begun and not resume:
        raise UserError(f"{out}: holds a run already; go on with it by --resume, or give another --out")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; give the path of a folder to write")


def _run_files(out: Path) -> Iterator[Path]:
    """Yield what a run writes, in its folder and in that of every seed."""
    for place in (out, *out.glob("seed-*")):
        for name in (MODEL, SCORES, PREDICTIONS, METRICS, RECIPE, ENVIRONMENT, REPORT):
            yield place / name


def _one_seed(job: FineTuningJob, seed: int, resume: bool, before: Sequence[Json]) -> tuple[int, Json]:
    """Run one seed, unless it is done, and put its model into its place if it is the best so far."""
    place, metric = job.out / f"seed-{seed}", job.tuner.task.metric
    done = place / SCORES
    if resume and done.is_file():
        result: Json = read_json(done)
        if result.get("run") != job.tuner.identity_with(seed):
            raise UserError(f"{place}: was done with other settings or data; put them back, or start a new run")
        return 0, result
    place.mkdir(parents=True, exist_ok=True)
    intro = [*(job.intro if not before else ()), f"seed {seed}"]
    try:
        signal, best, loop = job.tuner.run(place, seed, resume, intro)
    except Diverged as error:
        result = {"seed": seed, metric: None, "diverged": str(error)}
    except torch.OutOfMemoryError:
        raise UserError("the GPU's memory is full; compute less at once (micro_tokens=...) or set batch=...") from None
    else:
        if signal is not None:
            return 128 + signal, {}
        network, autocast = loop.network, loop.autocast
        task, scores, lines = evaluate_dev(
            job.tuner.task, job.parts, lambda name: evaluate_split(job.tuner.task, network, job.parts[name], autocast)
        )
        result = {"seed": seed, **scores, "best_step": best.step, "diverged": outcome.degenerate(lines["dev"])}
        if all(outcome.rank(result, metric) > outcome.rank(other, metric) for other in before):
            _write_model(job, task, loop.network)
            for name, some in lines.items():
                write_json_lines(job.out / predictions_file(name), some)
    result["run"] = job.tuner.identity_with(seed)
    write_into_folder(done, json_text(result, 2) + "\n")
    shutil.rmtree(place / CHECKPOINTS, ignore_errors=True)
    return 0, result


Measured = tuple[list[Json], dict[str, float]]


def evaluate_dev(
    task: Task[Any], parts: Mapping[str, EncodedSplit[Any]], measure: Callable[[str], Measured]
) -> tuple[Task[Any], dict[str, float], dict[str, list[Json]]]:
    """Scores and predictions of every dev split, with what is set by looking at the first."""
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
    folder.write(job.kept(job, network) if job.kept else _whole(job, task, network), job.out / MODEL)


def _whole(job: FineTuningJob, task: Task[Any], network: Network) -> Contents:
    settings = {key: value for key, value in task.settings().items() if value is not None}
    known = {"name": task.name, "max_length": job.tuner.config.train.max_length} | settings
    return Contents(
        job.tuner.architecture, network, job.start.tokenizer, list(task.labels), job.start.limit, task=known
    )


def _finish(job: FineTuningJob, results: Sequence[Json]) -> Json:
    """metrics.json, which is given back, and a table for people."""
    task, kept = job.tuner.task, (f"{MODEL}/", SCORES, PREDICTIONS) if (job.out / MODEL).is_dir() else (SCORES,)
    found = outcome.summary(results, task.metric) | {"task": task.name, "model": job.model}
    found["examples"] = {name: len(part.examples) for name, part in job.parts.items()}
    found["cut"] = {name: cut._asdict() for name, cut in job.cuts.items() if cut.examples}
    if job.teacher:
        found["distillation"] = outcome.beside(found, job.teacher["scores"], task.metric) | {
            "teacher_model": job.teacher["model"],
            "teacher_bytes": job.teacher["bytes"],
        }
    write_into_folder(job.out / SCORES, json_text(found, 2) + "\n")
    _write_page(job, found)
    _print(task, results, found)
    if job.teacher:
        print(outcome.beside_line(found["distillation"], task.metric))
    print(f"{job.out}: {', '.join(kept)}, {REPORT}")
    if all(result["diverged"] for result in results):
        note("no seed has learned the task; try a lower lr, a longer warmup or more epochs")
    return found


def _write_page(job: FineTuningJob, found: Json) -> None:
    lines = {name: job.out / predictions_file(name) for name in job.parts if name != "train"}
    write_page(job.out, job.tuner.task, found, lines)


def _print(task: Task[Any], results: Sequence[Json], found: Json) -> None:
    """A column for each seed, so that any number of scores fits."""
    keys = [key for key, value in max(results, key=len).items() if isinstance(value, float)]
    several = len(results) > 1 and found["mean"] is not None
    heads = [f"seed {result['seed']}" for result in results] + (["mean"] if several else [])
    table = Table(f"{task.name}, dev, times 100", *heads, box=None, pad_edge=False)
    for key in keys:
        cells = [shown(key, result.get(key)) for result in results]
        if several and key == task.metric:
            spread = f" ± {100 * found['std']:.2f}" if found["std"] is not None else ""
            cells.append(f"{100 * found['mean']:.2f}{spread}")
        table.add_row(escape(key.replace("_", " ")), *cells)
    Console().print(table)
    for result in [result for result in results if result["diverged"]]:
        note(f"seed {result['seed']} has diverged: {result['diverged']}")
