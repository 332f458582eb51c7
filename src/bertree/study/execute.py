"""Run a study: one step after the other or several at a time, each in a folder of its own, with a result file.

DIR/study.toml, plan.json       the study as it was run, its size and seeds
DIR/steps/NAME-HASH/            a step: the run of its verb, and result.json, written last
DIR/rows.jsonl                  every figure: cell, seed, step, figure, value
DIR/table.md, report.html       the tables

A copy without steps/ continues too: rows.jsonl has the results, and models that are needed again are trained again.
A step with a result file is done. A step without one continues where its verb can resume, so a killed study ends with
the same rows as an uninterrupted one.
"""

import math
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import mean

import torch

from bertree.comparison.timing import processor
from bertree.console import note, showing
from bertree.errors import UserError, counted
from bertree.files.atomic import exclusive_lock, make_folder, make_folders, refuse_other, write_into_folder
from bertree.files.formats import Json, json_text, read_json
from bertree.inference.load import choose_device
from bertree.model.presets import PRESETS
from bertree.report.formats import duration
from bertree.run_folder import CHECKPOINTS, MODEL
from bertree.study.load import load_study, write_template
from bertree.study.plan import StudyPlan, plan_study
from bertree.study.planned import PlannedStep
from bertree.study.report import write_tables
from bertree.study.results import (
    PLAN,
    RESULT,
    STUDY,
    StudyResults,
    earlier_plan,
    end_session,
    is_copy,
    note_other_steps,
    read_results,
    read_rows,
    restore_steps,
    write_plan,
)
from bertree.study.schedule import StudyProgress, compute_all
from bertree.study.steps import NO_MODEL, RUN, STEPS, Stopped
from bertree.train.device_setup import usable_device

# Of a run with one of the settings that a step chooses among: its folder, and its figures.
CHOICE, TRIAL = "choice-{}", "choice-{}.json"
SPENT = "seconds.json"  # of a step that a signal has ended: the seconds so far


def run_study(
    study: str | Path = "",
    *,
    size: str = "tiny",
    store: str | Path | None = None,
    tasks: str | Path | None = None,
    model: str | Path | None = None,
    out: str | Path = "study",
    seeds: int = 0,
    jobs: int = 1,
    device: str = "auto",
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    steps: int = 0,
    dry_run: bool = False,
    template: str | Path | None = None,
    progress: bool | None = None,
) -> StudyResults:
    """Run a study: a table of a paper, computed again at a size you can afford.

    `study` is the name of a built-in one (`bertree.studies()`) or a TOML file of your own. `store` is the token store
    that models are pretrained on, `tasks` the folder with the data of the tasks. `model` takes the place of
    pretraining, where all cells pretrain the same model. `seeds=0` is the number of the size. `jobs` steps are computed
    at a time, spread over the GPUs there are; steps that measure time run alone. `only` names cells; `skip` names steps
    to leave out, for example a task whose data you do not have. Call it again to continue after an interruption, or
    with more seeds or cells to add them.
    With `dry_run=True` everything is checked and nothing is computed. With `steps` every run takes only so many steps,
    to try a study out. `template` is a file to which a study of your own is written, with comments; nothing is run.

    >>> bertree.run_study("albert-dropout", store="my-store", out="dropout", dry_run=True).verdict
    """
    if template is not None:
        return StudyResults(study=write_template(Path(template), str(study)), size=size, rows=())
    if jobs < 1:
        raise UserError(f"jobs: must be at least 1, not {jobs}")
    if not study:
        raise UserError("give the name of a study (`bertree study list`) or a .toml file of your own")
    loaded, folder = load_study(study), Path(out)
    usable_device(device, "device")
    with showing(progress):
        plan = plan_study(
            loaded,
            size,
            store=None if store is None else Path(store).resolve(),
            tasks=None if tasks is None else Path(tasks).resolve(),
            seeds=seeds,
            only=only,
            skip=skip,
            model="" if model is None else str(model),
            device="" if device == "auto" else device,
            steps=steps,
        )
        refuse_other(folder)
        used = {name for step in plan.steps for name in (step.model, step.student)}
        if hidden := next((name for name in used & PRESETS.keys() if Path(name).resolve() == folder.resolve()), None):
            raise UserError(f"{out}: would hide the preset '{hidden}', which the study uses; give another `out`")
        _check_folder(folder)
        note_other_steps(earlier_plan(folder, plan), plan)
        ended = _ended(plan, folder)
        waiting = _waiting(plan, folder, ended)
        note(_estimate(plan, waiting, ended, jobs))
        if dry_run:
            counts = Counter(step.step.key for step in waiting)
            note(f"to compute: {', '.join(f'{name} x {count}' for name, count in counts.items()) or 'nothing'}")
            return StudyResults(study=loaded, size=size, rows=())
        with make_folders(folder), exclusive_lock(folder):
            machine = processor(torch.device(choose_device(device)))
            write_plan(folder, plan, study, {"machine": machine, "torch": version("torch"), "jobs": jobs})
            if is_copy(folder):
                restore_steps(folder)
            for step in plan.distinct:
                if _is_done(step, ended):  # a kill or a power cut may have kept what was removed
                    _remove_unneeded(step, folder / step.folder, step.identity in plan.sources)
            for step in waiting:  # begun with a model that is trained again: it cannot continue
                if {source.identity for source in step.sources} & {other.identity for other in waiting}:
                    shutil.rmtree(folder / step.folder, ignore_errors=True)
            signal, began = None, time.perf_counter()
            try:
                compute_all(waiting, folder, jobs, compute_step, StudyProgress(plan, waiting), plan.sources)
            except Stopped as stopped:
                signal = stopped.args[0]
            end_session(folder, (time.perf_counter() - began) / 60)
            results = replace(read_results(folder), signal=signal)
            write_tables(folder, results)
    return results


def _check_folder(folder: Path) -> None:
    """Refuse a folder that is not a study's and has other files."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; give another `out`")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    others = [name for name in names if name != STUDY and not name.startswith(".")]  # a call that was killed early
    if PLAN not in names and others:
        raise UserError(f"{folder}: holds other files; give another `out`")


def _ended(plan: StudyPlan, folder: Path) -> dict[str, Json]:
    """Return the results of the steps that have ended, by identity."""
    if is_copy(folder):
        results = {row["folder"]: row for row in read_rows(folder)}
    else:
        paths = {step.folder: folder / step.folder / RESULT for step in plan.distinct}
        results = {name: read_json(path) for name, path in paths.items() if path.is_file()}
    return {step.identity: results[step.folder] for step in plan.distinct if step.folder in results}


def _waiting(plan: StudyPlan, folder: Path, ended: dict[str, Json]) -> list[PlannedStep]:
    """Return the steps that are not done: those that failed, too, and those whose model is gone but needed again."""
    waiting = {step.identity for step in plan.distinct if not _is_done(step, ended)}
    while True:
        sources = {source.identity for step in plan.distinct if step.identity in waiting for source in step.sources}
        gone = {
            step.identity
            for step in plan.distinct
            if step.identity in sources - waiting
            and not (folder / step.folder / RUN / MODEL).is_dir()
            and ended[step.identity]["state"] == "done"
        }
        if not gone:
            return [step for step in plan.distinct if step.identity in waiting]
        waiting |= gone


def _is_done(step: PlannedStep, ended: dict[str, Json]) -> bool:
    """Return whether a step needs no more work; one that failed is tried again."""
    return step.identity in ended and ended[step.identity].get("state") in ("done", "diverged")


def _estimate(plan: StudyPlan, waiting: Sequence[PlannedStep], ended: dict[str, Json], jobs: int) -> str:
    """Return what is left to do and how long it takes: by steps of the same name that are done, else by the size."""
    measured: dict[str, list[float]] = {}
    for step in plan.distinct:
        if step.identity in ended and ended[step.identity]["state"] == "done":
            measured.setdefault(step.step.key, []).append(ended[step.identity]["seconds"])
    runs = len({(step.cell, step.seed) for step in plan.steps})
    size = plan.study.size(plan.size)
    guess = 60 * size.minutes * runs / max(1, len(plan.distinct))  # of a step
    seconds = sum(mean(measured[step.step.key]) if step.step.key in measured else guess for step in waiting)
    unmeasured = {step.step.key for step in waiting} - measured.keys()
    basis = "as a run has taken" if size.measured else "as the study file estimates"
    source = f"on {size.machine}, {basis}" if unmeasured else "as measured here"
    beside = f", {jobs} at a time" if jobs > 1 else ", one at a time"
    time_left = f"; about {duration(seconds / max(1, min(jobs, len(waiting))))} {source}{beside}"
    return (
        f"{plan.study.name}, {plan.size}: {runs} combinations of cell and seed, {len(waiting)} of "
        f"{counted(len(plan.distinct), 'step')} to compute{time_left if waiting and not plan.brief else ''}"
    )


def compute_step(planned: PlannedStep, folder: Path, keep: bool) -> str:
    """Compute one step, write its result and return it as a line. `keep`: other steps need its model.

    What fails while it runs is a result too, and other cells continue.
    """
    place = folder / planned.folder
    if (place / RESULT).is_file():  # it failed, or its model is gone: from the start
        shutil.rmtree(place)
    make_folder(place)
    spent = read_json(place / SPENT)["seconds"] if (place / SPENT).is_file() else 0.0
    began = time.perf_counter() - spent
    result: Json = {"state": "done", "figures": {}}
    try:
        with showing(False):
            figures = _choose(planned, folder, place, result)
        if not all(math.isfinite(value) for value in figures.values()):
            result |= {"state": "diverged", "message": "a figure is not finite"}
        result["figures"] = {name: value for name, value in figures.items() if math.isfinite(value)}
    except Stopped:
        write_into_folder(place / SPENT, json_text({"seconds": time.perf_counter() - began}) + "\n")
        raise
    except UserError as error:
        state = "diverged" if "finite" in str(error) else "not computed" if NO_MODEL in str(error) else "failed"
        result |= {"state": state, "message": str(error), "figures": {}}
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, OSError) as error:
        # a bug, or no memory left: the other cells continue, and error.txt says where it was
        write_into_folder(place / "error.txt", traceback.format_exc())
        first = next(iter(str(error).splitlines()), "")
        result |= {"state": "failed", "message": f"{type(error).__name__}: {first} (error.txt)", "figures": {}}
    result |= {"step": planned.step.key, "seconds": round(time.perf_counter() - began, 1)}
    write_into_folder(place / RESULT, json_text(result, 1) + "\n")
    _remove_unneeded(planned, place, keep)
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.empty_cache()  # the steps beside this one need the memory
    outcome = result.get("message") or ", ".join(f"{name} {value:.4g}" for name, value in result["figures"].items())
    return f"{planned.cell}, seed {planned.seed}, {planned.step.key}: {result['state']}: {outcome}"


def _remove_unneeded(planned: PlannedStep, place: Path, keep: bool) -> None:
    """Remove what a step with a result does not need: a study has many models."""
    shutil.rmtree(place / RUN / CHECKPOINTS, ignore_errors=True)
    (place / SPENT).unlink(missing_ok=True)
    if planned.step.do in ("finetune", "distill") and planned.step.task and not keep:
        shutil.rmtree(place / RUN / MODEL, ignore_errors=True)


def _choose(planned: PlannedStep, folder: Path, place: Path, result: Json) -> dict[str, float]:
    """Compute a step; with settings to choose among, the first seed computes all and the others take its choice."""
    compute, step = STEPS[planned.step.do], planned.step
    if not step.choose:
        return compute(planned, folder, place / RUN)
    choices = step.choose
    if planned.chosen_by is not None:
        chosen = read_json(folder / planned.chosen_by.folder / RESULT).get("chosen")
        if chosen is None:
            raise UserError(f"the first seed's {step.key} {NO_MODEL}")
        choices = (chosen,)
    trials: dict[str, dict[str, float]] = {}
    for number, choice in enumerate(choices):
        trial = place / TRIAL.format(number)
        if not trial.is_file():
            changed = replace(planned, settings=(*planned.settings, *choice.split()))
            figures = compute(changed, folder, place / CHOICE.format(number))
            write_into_folder(trial, json_text(figures) + "\n")
        trials[choice] = read_json(trial)
    name, sign = step.by.removeprefix("-"), -1.0 if step.by.startswith("-") else 1.0
    values = {choice: figures.get(name, math.nan) for choice, figures in trials.items()}
    scored = {choice: sign * value for choice, value in values.items() if math.isfinite(value)}
    if not scored:
        raise UserError(f"no choice has a finite figure '{name}'; there are: {', '.join(trials[choices[0]])}")
    best = max(scored, key=lambda choice: scored[choice])
    chosen_run = place / CHOICE.format(choices.index(best))
    if chosen_run.is_dir():
        chosen_run.rename(place / RUN)
    for number in range(len(choices)):
        shutil.rmtree(place / CHOICE.format(number), ignore_errors=True)
    result |= {"chosen": best, "by": step.by, "trials": {choice: sign * value for choice, value in scored.items()}}
    return trials[best]
