"""Run a study: one step after the other or several at a time, each in a folder of its own, with a result file.

DIR/study.toml, plan.json       the study as it was run, its size and seeds
DIR/steps/NAME-HASH/            a step: the run of its verb, and result.json, written last
DIR/rows.jsonl                  every figure: cell, seed, step, figure, value
DIR/table.md, report.html       the tables

A step with a result file is done. A step without one goes on where its verb can resume, so a killed study ends with the
same rows as one that was not.
"""

import math
import multiprocessing
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from bertree.comparison.info import info
from bertree.console import bar, note, say, showing
from bertree.distillation.distill import distill
from bertree.embeddings.evaluate import evaluate_embeddings
from bertree.embeddings.train import train_embeddings
from bertree.errors import UserError
from bertree.files.atomic import exclusive_lock, write_into_folder
from bertree.files.formats import Json, json_text, read_json
from bertree.finetuning.finetune import finetune
from bertree.finetuning.store_evaluation import evaluate_on_store
from bertree.inference.load import load
from bertree.inference.trained_run import Run
from bertree.pretraining.pretrain import pretrain
from bertree.run_folder import CHECKPOINTS, MODEL, make_folders
from bertree.study.definition import load_study
from bertree.study.plan import SEED_STEP, PlannedStep, StudyPlan, plan_study
from bertree.study.report import write_tables
from bertree.study.results import NO_MODEL, RESULT, StudyResults, read_results, write_plan

RUN = "run"  # folder of the verb below that of the step


class Stopped(Exception):
    """A signal ended a step; its verb has saved what is needed to go on."""


def run_study(
    study: str | Path,
    *,
    size: str = "tiny",
    store: str | Path | None = None,
    tasks: str | Path | None = None,
    out: str | Path = "study",
    seeds: int = 0,
    jobs: int = 1,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    dry_run: bool = False,
    progress: bool | None = None,
) -> StudyResults:
    """Run a study: a table of a paper, computed again at a size you can afford.

    `study` is the name of a built-in one (`bertree.studies()`) or a TOML file of your own. `store` is the token store
    that models are pretrained on, `tasks` the folder with the data of the tasks. `seeds=0` is the number of the size.
    `jobs` steps are computed at a time. `only` names cells; `skip` names steps to leave out, for example a task whose
    data you do not have. Call it again to go on after an interruption, or with more
    seeds or cells to add them. With `dry_run=True` everything is checked and nothing is computed.

    >>> bertree.run_study("albert-dropout", store="my-store", out="dropout", dry_run=True).verdict
    """
    loaded, folder = load_study(study), Path(out)
    with showing(progress):
        plan = plan_study(
            loaded,
            size,
            store=None if store is None else Path(store).resolve(),
            tasks=None if tasks is None else Path(tasks).resolve(),
            seeds=seeds,
            only=only,
            skip=skip,
        )
        waiting = [step for step in plan.distinct if not _is_done(folder / step.folder / RESULT)]
        note(_estimate(plan, waiting))
        if dry_run:
            return StudyResults(study=loaded, size=size, rows=())
        with make_folders(folder), exclusive_lock(folder):
            write_plan(folder, plan, study)
            signal = None
            try:
                _compute(waiting, folder, jobs)
            except Stopped as stopped:
                signal = stopped.args[0]
            results = replace(read_results(folder), signal=signal)
            write_tables(folder, results)
    return results


def _is_done(result: Path) -> bool:
    """Return whether a step needs no more work; one that failed is tried again."""
    return result.is_file() and read_json(result).get("state") != "failed"


def _estimate(plan: StudyPlan, waiting: Sequence[PlannedStep]) -> str:
    runs = len({(step.cell, step.seed) for step in plan.steps})
    share = len(waiting) / max(1, len(plan.distinct))
    machine = plan.study.size(plan.size).machine
    return (
        f"{plan.study.name}, {plan.size}: {runs} runs of cells, {len(waiting)} of {len(plan.distinct)} steps to "
        f"compute; about {plan.minutes * share:.0f} minutes on {machine}, one at a time"
    )


def _compute(waiting: Sequence[PlannedStep], folder: Path, jobs: int) -> None:
    """Compute the steps, in the order in which they need each other's models."""
    with bar("steps", len(waiting)) as progress:
        if jobs == 1:
            for step in waiting:
                say(compute_step(step, folder))
                progress.advance(1)
            return
        done: set[str] = set()
        names = {step.identity for step in waiting}
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            left = list(waiting)
            running: dict[Future[str], PlannedStep] = {}
            while left or running:
                for step in list(left):
                    source = step.model_step.identity if step.model_step else ""
                    if len(running) < jobs and (source not in names or source in done):
                        running[pool.submit(compute_step, step, folder)] = step
                        left.remove(step)
                finished = next(as_completed(running))
                say(finished.result())
                done.add(running.pop(finished).identity)
                progress.advance(1)


def compute_step(planned: PlannedStep, folder: Path) -> str:
    """Compute one step, write its result and return it as a line.

    What fails while it runs is a result too, and other cells go on.
    """
    place = folder / planned.folder
    place.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    result: Json = {"state": "done", "figures": {}}
    try:
        with showing(False):
            figures = STEPS[planned.step.do](planned, folder, place / RUN)
        if not all(math.isfinite(value) for value in figures.values()):
            result = {"state": "diverged", "message": "a figure is not finite"}
        result["figures"] = {name: value for name, value in figures.items() if math.isfinite(value)}
    except UserError as error:
        state = "diverged" if "finite" in str(error) else "failed"
        result = {"state": state, "message": str(error), "figures": {}}
    result |= {"step": planned.step.key, "seconds": round(time.perf_counter() - began, 1)}
    write_into_folder(place / RESULT, json_text(result, 1) + "\n")
    outcome = result.get("message") or ", ".join(f"{name} {value:.4g}" for name, value in result["figures"].items())
    return f"{planned.cell}, seed {planned.seed}, {planned.step.key}: {result['state']}: {outcome}"


def model_of(planned: PlannedStep, folder: Path) -> str:
    """Return the model that a step takes: that of the step before, a preset or a folder."""
    if planned.model_step is None:
        return planned.model
    path = folder / planned.model_step.folder / RUN / MODEL
    if not path.is_dir():
        raise UserError(f"the step {planned.model_step.step.key} {NO_MODEL}")
    return str(path)


def _pretrain(planned: PlannedStep, folder: Path, out: Path) -> dict[str, float]:
    assert planned.store is not None
    overrides = [*planned.settings, f"run.seed={planned.seed}"]
    return _finish(pretrain(planned.recipe, store=planned.store, out=out, resume=out.exists(), overrides=overrides))


def _distill(planned: PlannedStep, folder: Path, out: Path) -> dict[str, float]:
    assert planned.store is not None
    overrides = [*planned.settings, f"run.seed={planned.seed}"]
    teacher, student = model_of(planned, folder), planned.recipe or planned.step.student
    run = distill(teacher, student=student, store=planned.store, out=out, resume=out.exists(), overrides=overrides)
    return _finish(run)


def _finish(run: Run) -> dict[str, float]:
    """Return the figures of a complete run, and remove what only resuming needs."""
    if run.signal is not None:
        raise Stopped(run.signal)
    figures = _numbers(run.metrics)
    speeds = [row["tokens_per_s"] for row in run.history if isinstance(row.get("tokens_per_s"), int | float)]
    if speeds:
        figures["tokens_per_s"] = float(sorted(speeds)[len(speeds) // 2])
    losses = [row["loss"] for row in run.history if row.get("kind") == "train" and isinstance(row.get("loss"), float)]
    if losses:
        figures["training_loss"] = losses[-1]
    shutil.rmtree(run.folder / CHECKPOINTS, ignore_errors=True)
    return figures


def _finetune(planned: PlannedStep, folder: Path, out: Path) -> dict[str, float]:
    step, seeds = planned.step, planned.step.seeds
    assert planned.data is not None
    run = finetune(
        model_of(planned, folder),
        task=step.task,
        data=planned.data,
        out=out,
        frozen=step.frozen or None,
        seeds=seeds,
        resume=out.exists(),
        overrides=[*planned.settings, f"run.seed={SEED_STEP * planned.seed}"],
    )
    if run.signal is not None:
        raise Stopped(run.signal)
    results = run.metrics.get("seeds") or [run.metrics]
    learned = [result for result in results if not result.get("diverged")] or results
    names = {name for result in learned for name in _numbers(result)}
    values = {name: [result[name] for result in learned if name in _numbers(result)] for name in names}
    shutil.rmtree(out / MODEL, ignore_errors=True)  # only the scores are kept: a study has many such models
    return {name: sum(found) / len(found) for name, found in sorted(values.items())}


def _evaluate(planned: PlannedStep, folder: Path, out: Path) -> dict[str, float]:
    assert planned.store is not None
    figures: dict[str, float] = {}
    name = model_of(planned, folder)
    model = load(name)
    for objective in planned.step.objectives:
        scores = evaluate_on_store(model, name, objective, planned.store)
        figures |= {f"{objective}_{figure}": value for figure, value in _numbers(scores).items()}
    return figures


def _embeddings(planned: PlannedStep, folder: Path, out: Path) -> dict[str, float]:
    assert planned.data is not None
    run = train_embeddings(
        model_of(planned, folder),
        data=planned.data,
        loss=planned.step.loss,
        out=out,
        resume=out.exists(),
        overrides=[*planned.settings, f"run.seed={planned.seed}"],
    )
    return _numbers(run.metrics)


def _sts(planned: PlannedStep, folder: Path, out: Path) -> dict[str, float]:
    assert planned.data is not None
    pooling = [planned.step.pooling] if planned.step.pooling else []
    scores = evaluate_embeddings(model_of(planned, folder), data=planned.data, pooling=pooling)
    return _numbers(scores.metrics["encoders"][0])


def _info(planned: PlannedStep, folder: Path, out: Path) -> dict[str, float]:
    about = info(model_of(planned, folder), overrides=planned.settings)
    return {"parameters": float(about["parameters"]["total"])}


def _numbers(values: Json) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if type(value) in (int, float)}


STEPS: dict[str, Callable[[PlannedStep, Path, Path], dict[str, float]]] = {
    "pretrain": _pretrain,
    "distill": _distill,
    "finetune": _finetune,
    "evaluate": _evaluate,
    "embeddings": _embeddings,
    "sts": _sts,
    "info": _info,
}
