"""The work behind `bertree finetune`: find the files, build the parts, run every seed, keep the best.

OUT/model/                  the best model of the best seed, with its labels and settings
OUT/metrics.json            its scores on the dev split, and those of every seed
OUT/predictions.jsonl       what it says about every dev example
OUT/report.html             both to look at
OUT/seed-N/                 each run: metrics.jsonl, report.html, recipe.toml
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bertree.api import Model, load
from bertree.errors import UserError
from bertree.files import Json, alone, read_json
from bertree.info import describe_architecture
from bertree.interop import folder
from bertree.interop.folder import Contents
from bertree.model.network import Network
from bertree.pipelines_tasks import (
    PREDICTIONS,
    SCORES,
    Files,
    as_text,
    encoded,
    file_of,
    note,
    shown,
    write,
    write_lines,
)
from bertree.tasks import config as configs
from bertree.tasks import outcome, page
from bertree.tasks.answering import fitting
from bertree.tasks.config import FineTune
from bertree.tasks.task import Cut, Task
from bertree.tasks.tune import Split, Start, Tuner, digest, held_out, measured
from bertree.train.device import Machine, be_deterministic
from bertree.train.loop import Diverged
from bertree.train.record import ENVIRONMENT, METRICS, RECIPE
from bertree.train.report import REPORT
from bertree.train.session import CHECKPOINTS, MODEL


@dataclass(frozen=True)
class _Job:
    """A task prepared: everything but the seed."""

    tuner: Tuner
    start: Model
    parts: Mapping[str, Split[Any]]
    cuts: Mapping[str, Cut]
    out: Path
    intro: Sequence[str]


def finetune(
    model: str,
    task: Task[Any],
    files: Files,
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
    task = configs.configured(task, config.task)
    config, task = configs.with_crf(config, task)
    be_deterministic(config.run.deterministic)
    machine = Machine.of(config.run)
    splits = files.splits(task)
    if "train" not in splits:
        raise UserError(f"{files.data or files.dev}: has no training file; give one with --train FILE")
    _check_place(out, resume)
    job = _prepared(load(model, tokenizer=tokenizer), model, task, splits, out, config, machine)
    _make_place(out)
    with alone(out):
        _check_place(out, resume)  # reading the examples takes a while, and another run may be quicker
        _tidy(out)
        results: list[Json] = []
        wanted = set(range(config.run.seed, config.run.seed + seeds))
        for seed in sorted(wanted | (_finished(out) if resume else set())):
            code, result = _one_seed(job, seed, resume, results)
            if code:
                return code
            results.append(result)
        return _finish(job, results, model)


def _finished(out: Path) -> set[int]:
    """Seeds that are done: the best model is the best of them too."""
    names = [path.parent.name.removeprefix("seed-") for path in out.glob(f"seed-*/{SCORES}")]
    return {int(name) for name in names if name.isdecimal()}


def _prepared(
    start: Model,
    model: str,
    task: Task[Any],
    splits: Mapping[str, tuple[Path, ...]],
    out: Path,
    config: FineTune,
    machine: Machine,
) -> _Job:
    """Read and encode the examples."""
    if not start.trained:
        note(f"{model}: is a preset with fresh weights, so everything is learned from this task alone")
    examples = {"train": task.read(splits["train"])}
    task = task.with_labels(task.labels_in(examples["train"]))
    task.check_training(examples["train"])
    examples |= {name: task.read(paths) for name, paths in splits.items() if name.startswith("dev")}
    held = 0
    if "dev" not in examples:
        examples = held_out(examples["train"], config.train.held_out, task.group)
        held = len(examples["dev"])
    longest = fitting(config.train.max_length, task.max_length, start.architecture.max_positions)
    rate = configs.learning_rate(config, start.architecture)
    train, optim = replace(config.train, max_length=longest), replace(config.optim, lr=rate)
    config = replace(config, name=task.name, note=model, train=train, optim=optim)
    both = {name: encoded(task, some, start, longest) for name, some in examples.items()}
    parts, cuts = {name: part for name, (part, _) in both.items()}, {name: cut for name, (_, cut) in both.items()}
    asked = [unit for unit in parts["train"].units if unit.answer is not None]
    parts["train"] = Split(parts["train"].examples, asked)
    for name, part in parts.items():
        if not any(unit.answer is not None for unit in part.units):
            where = ", ".join(map(str, splits.get(name, splits["train"])))
            raise UserError(f"{where}: no example has a gold answer, so the {name} split is of no use")
    digests = [f"{name} {digest(path)}" for name in sorted(splits) for path in splits[name]]
    tuner = Tuner(
        task,
        Start(start.architecture, start.network, start.labels, str(start.task.get("name", ""))),
        parts["train"],
        parts["dev"],
        config,
        machine,
        identity="\n".join([str(Path(model).resolve()), task.name, *digests]),
    )
    tuner.check()
    intro = _intro(tuner, held)
    intro += [cut.line(name, len(examples[name]), longest) for name, cut in cuts.items() if cut.examples]
    return _Job(tuner, start, parts, cuts, out, intro)


def _intro(tuner: Tuner, held: int) -> list[str]:
    """What is about to happen."""
    task, config, machine = tuner.task, tuner.config, tuner.machine
    labels = f": {', '.join(task.labels[:8])}{', ...' if len(task.labels) > 8 else ''}" if task.labels else ""
    kind = "one score" if task.regression else f"{task.classes} classes{labels}" if task.labels else task.head
    dev = f"{len(tuner.dev.examples):,} held out of them" if held else f"{len(tuner.dev.examples):,} dev"
    where = f"{machine.device}, {'bf16' if machine.half else 'fp32'}"
    top = f"; encoder frozen, reading {config.top.layers}" if config.top.frozen else ""
    steps = max(1, math.ceil(tuner.steps_an_epoch * config.train.epochs))
    return [
        f"{describe_architecture(tuner.architecture)} on {where}{top}",
        f"{task.name}: {len(tuner.train.examples) + held:,} examples, {dev}; {kind}",
        f"{steps:,} steps of {config.train.batch}, rate {config.optim.lr:g}, up to {config.train.max_length} tokens; "
        f"best by {task.metric}{'; going on with the head of the model' if tuner.goes_on else ''}",
    ]


def _check_place(out: Path, resume: bool) -> None:
    """A run is not written over."""
    begun = (out / MODEL).exists() or any(out.glob("seed-*"))
    if begun and not resume:
        raise UserError(f"{out}: holds a run already; go on with it by --resume, or give another --out")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; give the path of a folder to write")


def _make_place(out: Path) -> None:
    """Only when everything else is in order: a mistake leaves no folder behind."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None


def _tidy(out: Path) -> None:
    """Away with what a run that was killed left half written."""
    names = (MODEL, SCORES, PREDICTIONS, METRICS, RECIPE, ENVIRONMENT, REPORT)
    places = [place for place in (out, *out.glob("seed-*")) if place.is_dir()]
    for leftover in [path for place in places for name in names for path in place.glob(f".{name}.*")]:
        shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink()


def _one_seed(job: _Job, seed: int, resume: bool, before: Sequence[Json]) -> tuple[int, Json]:
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
        code, best, loop = job.tuner.run(place, seed, resume, intro, note)
    except Diverged as error:
        result = {"seed": seed, metric: None, "diverged": str(error)}
    except torch.OutOfMemoryError:
        raise UserError("the GPU's memory is full; compute less at once (micro_tokens=...) or set batch=...") from None
    else:
        if code:
            return code, {}
        task, scores, lines = _judged(job, loop.network, loop.autocast)
        result = {"seed": seed, **scores, "best_step": best.step, "diverged": outcome.degenerate(lines["dev"])}
        if all(outcome.rank(result, metric) > outcome.rank(other, metric) for other in before):
            _write_model(job, task, loop.network)
            for name, some in lines.items():
                write_lines(job.out / file_of(name), some)
    result["run"] = job.tuner.identity_with(seed)
    write(done, as_text(result, 2) + "\n")
    shutil.rmtree(place / CHECKPOINTS, ignore_errors=True)
    return 0, result


def _judged(job: _Job, network: Network, autocast: Any) -> tuple[Task[Any], dict[str, float], dict[str, list[Json]]]:
    """Scores and predictions of every dev split, with what is set by looking at the first."""
    task, scores = job.tuner.task, dict[str, float]()
    lines: dict[str, list[Json]] = {}
    for name in sorted(name for name in job.parts if name != "train"):
        lines[name], found = measured(task, network, job.parts[name], autocast)
        if name == "dev":
            task = task.tuned(job.parts[name].examples, lines[name])
            lines[name] = task.decided(lines[name])
            found = task.score(job.parts[name].examples, lines[name])
        prefix = "" if name == "dev" else f"{name.partition('-')[2]}_"
        scores |= {f"{prefix}{key}": value for key, value in found.items()}
    return task, scores, lines


def _write_model(job: _Job, task: Task[Any], network: Network) -> None:
    settings = {key: value for key, value in task.settings().items() if value is not None}
    known = {"name": task.name, "max_length": job.tuner.config.train.max_length} | settings
    contents = Contents(
        job.tuner.architecture, network, job.start.tokenizer, list(task.labels), job.start.limit, task=known
    )
    folder.write(contents, job.out / MODEL)


def _finish(job: _Job, results: Sequence[Json], model: str) -> int:
    """metrics.json, and a table for people. The exit code: 1 where no seed came to its end."""
    task, kept = job.tuner.task, (f"{MODEL}/", SCORES, PREDICTIONS) if (job.out / MODEL).is_dir() else (SCORES,)
    found = outcome.summary(results, task.metric) | {"task": task.name, "model": model}
    found["examples"] = {name: len(part.examples) for name, part in job.parts.items()}
    found["cut"] = {name: cut._asdict() for name, cut in job.cuts.items() if cut.examples}
    write(job.out / SCORES, as_text(found, 2) + "\n")
    page.write(job.out, task, found, {name: job.out / file_of(name) for name in job.parts if name != "train"}, note)
    _print(task, results, found)
    print(f"{job.out}: {', '.join(kept)}, {REPORT}")
    if all(result["diverged"] for result in results):
        note("no seed has learned the task; try a lower lr, a longer warmup or more epochs")
    return 0 if (job.out / MODEL).is_dir() else 1


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
