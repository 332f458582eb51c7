"""Score a model on tasks of GLUE by one protocol, so that scores compare between versions and with other models.

For each task a share of the training rows is held out. The model is fine-tuned on the rest once with each learning rate
of a grid, and the rate with the best held-out score is chosen. With it, several seeds are trained on all training rows
and scored on the dev split, once, after the last step. So the dev split chooses nothing.

OUT/glue.json      protocol, model and settings, and of every task the held-out scores of the rates and its scores
OUT/choices/       the run with a rate, until its score is written
OUT/runs/TASK/     the run with the chosen rate

What is in glue.json is not computed again, so a protocol that was killed ends with the same scores.
"""

import math
import shutil
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bertree.comparison.glue_scores import GlueProtocol, RateScore, TaskScore, percent
from bertree.comparison.timing import processor
from bertree.config.settings import as_tree, differences, read
from bertree.console import Bar, bar, note, notes_shown, say, showing
from bertree.errors import UserError
from bertree.files.atomic import exclusive_lock, make_folders, refuse_other, write_into_folder
from bertree.files.formats import Json, json_text, read_json
from bertree.finetuning.finetune import finetune
from bertree.finetuning.scored import training_digest
from bertree.inference.load import choose_device, load
from bertree.report.formats import digits
from bertree.tasks.files import normalize_name
from bertree.tasks.glue import TEXT_TASKS
from bertree.tasks.text import TextTask
from bertree.version import __version__

VERSION = 1  # raised with every change that can move a score
TASKS = ("mnli", "qqp", "sst-2", "cola", "sts-b", "mrpc", "rte")
MNLI, FROM_MNLI = "mnli", ("sts-b", "mrpc", "rte")  # small tasks that published results mostly start from MNLI
RATES = (2e-5, 4e-5, 8e-5, 1.6e-4)
SEEDS = 3
SETTINGS: Json = {
    "epochs": 3,
    "batch": 32,
    "warmup": 0.1,
    "shape": "linear",
    "weight_decay": 0.01,
    "clip": 1,
    "evaluations": 0,
}
HELD_OUT, MOST_HELD_OUT = 0.1, 2000  # share of the training rows, and their largest number
FEWEST_EXAMPLES = 20
REPORT, CHOICES, RUNS = "glue.json", "choices", "runs"


@dataclass(frozen=True)
class _Row:
    """A row of the table: a task, its files, and the run that it starts from, if it is not the model itself."""

    name: str
    task: TextTask
    folder: Path
    training_rows: int
    from_task: Path | None = None

    def used(self, examples: int | None) -> int:
        """Return how many training rows are used."""
        return min(self.training_rows, examples or self.training_rows)

    def held_out(self, examples: int | None) -> int:
        """Return how many training rows are held out to choose the rate."""
        return max(1, min(MOST_HELD_OUT, round(HELD_OUT * self.used(examples))))

    @property
    def data_digest(self) -> str:
        """Hash of the files that are read."""
        splits = self.task.splits(self.folder)
        return training_digest([path for name in sorted(splits) if name != "test" for path in splits[name]])


class _Stopped(Exception):
    """A signal ended a run, which has saved what it needs to continue."""


def run_protocol(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    examples: int | None = None,
    from_mnli: bool = False,
    device: str = "auto",
    progress: bool | None = None,
) -> GlueProtocol:
    """Score a model by the protocol on the tasks whose folders are in `data`; called again, it continues."""
    if examples is not None and examples < FEWEST_EXAMPLES:
        raise UserError(f"`examples={examples}`: must be at least {FEWEST_EXAMPLES}")
    out = Path(out)
    _check_folder(out)
    rows = _find_rows(Path(data))
    digest, machine = _identify(model, device)
    report = GlueProtocol(
        version=VERSION,
        model=str(model),
        digest=digest,
        rates=RATES,
        seeds=SEEDS,
        settings=SETTINGS,
        examples=examples,
        data={row.name: row.data_digest for row in rows},
        computed_with={"machine": machine, "bertree": __version__, "torch": version("torch")},
    )
    if from_mnli:
        rows += _from_mnli(rows, out / RUNS / MNLI)
    if missing := [name for name in TASKS if name not in report.data]:
        note(f"{data}: has no folder of {', '.join(missing)}; the average is over the other tasks")
    total = sum(row.used(examples) * (len(RATES) + SEEDS) for row in rows)
    with showing(progress), make_folders(out), exclusive_lock(out), bar("training rows", total, speed="rows") as shown:
        report = _resume(out / REPORT, report)
        try:
            for row in rows:
                report = _compute(row, report, model, out, device, shown)
        except _Stopped as stopped:
            say(f"{out}: stopped; run the same again to continue")
            return replace(_resume(out / REPORT, report), signal=stopped.args[0])
        shutil.rmtree(out / CHOICES, ignore_errors=True)
    return report


def _check_folder(out: Path) -> None:
    """Refuse to write into a folder of something else."""
    refuse_other(out)
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")} if out.is_dir() else set()
    if others := sorted(names - {REPORT, CHOICES, RUNS}):
        raise UserError(f"{out}: holds other files ({others[0]}); give an empty or a new folder")


def _identify(model: str | Path, device: str) -> tuple[str, str]:
    """Return the digest of a model and the name of the device, which must be there."""
    loaded = load(model, device=choose_device(device))
    return loaded.digest, processor(loaded.device)


def _find_rows(data: Path) -> list[_Row]:
    """Return a row for each task whose folder is there."""
    if not data.is_dir():
        raise UserError(f"{data}: no such folder; give the one that holds the folders MNLI, QQP, SST-2 ... (`data`)")
    below = {normalize_name(path.name): path for path in sorted(data.iterdir()) if path.is_dir()}
    rows = []
    for task in (TEXT_TASKS[name] for name in TASKS):
        names = map(normalize_name, (task.name, *task.folders))
        if (folder := next((below[name] for name in names if name in below), None)) is None:
            continue
        splits = task.splits(folder)
        if absent := sorted({"train", "dev"} - splits.keys()):
            raise UserError(f"{folder}: has no {' and no '.join(absent)} file; the protocol reads both")
        rows.append(_Row(task.name, task, folder, len(task.read(splits["train"]))))
    if not rows:
        raise UserError(f"{data}: holds no folder of a task of the protocol: {', '.join(TASKS)}")
    return rows


def _from_mnli(rows: list[_Row], run: Path) -> list[_Row]:
    """Return the rows that start from the MNLI model."""
    small = [row for row in rows if row.name in FROM_MNLI]
    if not small or rows[0].name != MNLI:
        raise UserError(f"`from_mnli`: needs the folder MNLI, and one of {', '.join(FROM_MNLI)}")
    return [replace(row, name=f"{row.name} from {MNLI}", from_task=run) for row in small]


def _resume(path: Path, report: GlueProtocol) -> GlueProtocol:
    """Return the report that was begun in the folder, or this one if there is none."""
    if not path.is_file():
        return report
    begun: GlueProtocol = read(GlueProtocol, read_json(path), str(path))
    same = replace(
        report, model=begun.model, computed_with=begun.computed_with, rows=begun.rows, averages=begun.averages
    )
    if different := differences(begun, same):
        raise UserError(f"{path}: was begun with another {different[0]}; give the same, or another `out`")
    if any(len(row.choices) > len(RATES) for row in begun.rows.values()):
        raise UserError(f"{path}: has more choices than rates; give another `out`")
    return begun


def _compute(row: _Row, report: GlueProtocol, model: str | Path, out: Path, device: str, shown: Bar) -> GlueProtocol:
    """Choose the rate of a row and score it, unless that is done; return the report with it."""
    used, held_out, run = row.used(report.examples), row.held_out(report.examples), row.name.replace(" ", "-")
    score = report.rows.get(row.name) or TaskScore(task=row.task.name, metric=row.task.metric)

    def fine_tune(place: Path, rate: float, seeds: int, settings: Json) -> Json:
        shown.relabel(f"{row.name}, lr {digits(rate)}")
        with showing(False), notes_shown(False):
            trained = finetune(
                model,
                task=row.task.name,
                data=row.folder,
                out=place,
                from_task=row.from_task,
                seeds=seeds,
                resume=place.exists(),
                **SETTINGS | settings,
                lr=rate,
                device=device,
            )
        if trained.signal is not None:
            raise _Stopped(trained.signal)
        return trained.metrics

    def keep(score: TaskScore) -> TaskScore:
        nonlocal report
        report = report.with_row(row.name, score)
        write_into_folder(out / REPORT, json_text(as_tree(report), 2) + "\n")
        return score

    for number, rate in enumerate(RATES):
        place = out / CHOICES / f"{run}-{digits(rate)}"
        if number == len(score.choices):
            rest = {"held_out": held_out / row.training_rows, "ignore_dev": True, "examples": used - held_out}
            choice = _rate_score(rate, score.metric, fine_tune(place, rate, 1, rest))
            score = keep(replace(score, choices=(*score.choices, choice)))
            where = f"{choice.held_out_rows:,} held-out rows"
            say(f"{row.name}, lr {digits(rate)}: {score.metric} {percent(choice.score)} on {where}")
        shutil.rmtree(place, ignore_errors=True)
        shown.advance(used)
    if not score.scores:
        rate = max(score.choices, key=_rank).rate
        some = {"examples": used} if used < row.training_rows else {}
        score = keep(_with_scores(score, rate, fine_tune(out / RUNS / run, rate, SEEDS, some)))
        say(f"{row.name}, lr {digits(rate)}: {score.metric} {percent(score.score)} on the dev split")
    shown.advance(SEEDS * used)
    return report


def _rank(choice: RateScore) -> tuple[bool, float]:
    """Return a sort key: rates that have learned nothing rank below all others; of equal ones the first is chosen."""
    return choice.learned, -math.inf if choice.score is None else choice.score


def _rate_score(rate: float, metric: str, metrics: Json) -> RateScore:
    (result,), rows = metrics["seeds"], metrics["examples"]
    score, learned = _finite(result[metric]), not result["diverged"]
    return RateScore(rate=rate, score=score, learned=learned, training_rows=rows["train"], held_out_rows=rows["dev"])


def _with_scores(score: TaskScore, rate: float, metrics: Json) -> TaskScore:
    """Return a row with the scores of its seeds. All seeds count; without one of their scores there is no mean."""
    scores = tuple(_finite(result[score.metric]) for result in metrics["seeds"])
    finite = [each for each in scores if each is not None]
    complete = len(finite) == len(scores)
    return replace(
        score,
        rate=rate,
        training_rows=metrics["examples"]["train"],
        dev_rows=metrics["examples"]["dev"],
        scores=scores,
        learned=len(scores) - len(metrics["diverged"]),
        score=mean(finite) if complete else None,
        deviation=stdev(finite) if complete else None,
    )


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
