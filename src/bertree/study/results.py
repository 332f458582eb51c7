"""The figures of a study, read from its folder: estimates over seeds, and whether the paper's patterns hold.

One rule decides for all studies. A pattern is a difference between two cells in one column. It is resolved if the
difference is larger than twice its standard error over the seeds; then it holds or is reversed. A study holds if all
its resolved patterns hold, is reversed if all of them are, is mixed if some are, and not resolved if no pattern is.
"""

import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev

from bertree.console import note
from bertree.errors import UserError, counted
from bertree.files.atomic import write_atomically, write_into_folder
from bertree.files.formats import Json, json_text, read_json, read_json_lines
from bertree.result_table import ResultTable, ShownAsTable
from bertree.run_folder import METRICS
from bertree.study.definition import BUNDLED, EXACT, Column, Pattern, Study, StudyCell, StudyStep
from bertree.study.load import load_study
from bertree.study.measures import PROBE
from bertree.study.plan import StudyPlan

STUDY, PLAN, ROWS, STEPS, RESULT = "study.toml", "plan.json", "rows.jsonl", "steps", "result.json"
IN_PLAN = ("cell", "seed", "step", "do", "folder")  # fields of a row that the plan has too
ROW = {"cell": str, "seed": int, "step": str, "state": str, "seconds": int | float, "figures": dict}
POINTS = 100  # of a curve
ERRORS = 2.0  # standard errors that a difference must exceed to be resolved
OF_MEDIAN = math.sqrt(math.pi / 2)  # standard error of a median, as a multiple of that of the mean
HOLDS, REVERSED, MIXED, UNRESOLVED = "holds", "reversed", "mixed", "not resolved"


@dataclass(frozen=True)
class Estimate:
    """A figure over the seeds."""

    value: float  # mean or median
    deviation: float | None  # None: one seed
    seeds: int
    median: bool = False
    probe: bool = False  # by a linear probe on frozen states

    @property
    def squared_error(self) -> float | None:
        """The square of the standard error."""
        if self.deviation is None:
            return None
        return (self.deviation * (OF_MEDIAN if self.median else 1.0)) ** 2 / self.seeds


@dataclass(frozen=True)
class Verdict:
    """Whether a pattern holds."""

    pattern: Pattern
    state: str  # HOLDS, REVERSED or UNRESOLVED
    difference: float | None  # positive: as the paper found it; None: a cell has no figure
    error: float | None  # its standard error
    published: float | None


@dataclass(frozen=True, kw_only=True, repr=False)
class StudyResults(ShownAsTable):
    """The results of a study so far."""

    study: Study
    size: str
    rows: Sequence[Json]  # cell, seed, step, state, seconds, figures
    shared: Sequence[str] = ()
    signal: int | None = None  # that ended the run of the study early
    sessions: Sequence[Json] = ()  # calls that computed steps: machine, torch, jobs, minutes
    model: str = ""  # that took the place of pretraining
    brief: int = 0  # steps of every run, if the study was only tried out

    def estimate(self, cell: str, column: str | Column) -> Estimate | None:
        """Return the figure of a cell in a column, in the column's unit."""
        column = self._column(column) if isinstance(column, str) else column
        values = list(self._by_seed(cell, column).values())
        if cell_to_compare := column.relative or column.minus:
            base = self.estimate(cell_to_compare, replace(column, relative="", minus=""))
            if base is None:
                return None
            if column.minus:
                values = [value - base.value for value in values]
            else:
                values = [base.value / value if column.inverse else value / base.value for value in values]
        if not values:
            return None
        centre = median(values) if self.study.median else mean(values)
        exact = column.figure and self._step(cell, column).do in EXACT
        deviation = stdev(values) if len(values) > 1 else 0.0 if exact else None
        return Estimate(centre, deviation, len(values), self.study.median, self._is_probe(cell, column))

    def _result_table(self) -> ResultTable:
        rows = []
        for cell in self.cells:
            estimates = [(column, self.estimate(cell.name, column)) for column in self.columns]
            rows.append([cell.name, *(f"{each.value:.{column.digits}f}" if each else "" for column, each in estimates)])
        heads = ["cell", *(column.label or column.name for column in self.columns)]
        return ResultTable(f"{self.study.name}, {self.size}: {self.sentence}", rows, heads)

    def _by_seed(self, cell: str, column: Column) -> dict[int, float]:
        """Return the figures of a cell in a column; of other columns only for seeds that have all of them.

        What was computed once for all seeds counts once."""
        if parts := [self._by_seed(cell, self._column(name)) for name in column.mean or column.ratio]:
            seeds = sorted(set.intersection(*(set(part) for part in parts)))
            if column.ratio:
                return {seed: parts[0][seed] / parts[1][seed] for seed in seeds if parts[1][seed]}
            return {seed: mean(part[seed] for part in parts) for seed in seeds}
        figure = self._figure(cell, column).partition(".")[2]
        rows = {row.get("folder", row["seed"]): row for row in reversed(self._rows(cell, column))}
        return {row["seed"]: column.factor * row["figures"][figure] for row in reversed(rows.values())}

    def _figure(self, cell: str, column: Column) -> str:
        """Return which figure of a column a cell has: that of the first of its steps, computed or not."""
        steps = self.study.cell(cell).steps or [step.key for step in self.study.steps]
        names = column.figure.split()
        return next((name for name in names if name.partition(".")[0] in steps), names[0] if names else "")

    def _rows(self, cell: str, column: Column) -> list[Json]:
        step, _, figure = self._figure(cell, column).partition(".")
        rows = [row for row in self.rows if row["cell"] == cell and row["step"] == step]
        return [row for row in rows if figure in row["figures"]]

    def _is_probe(self, cell: str, column: Column) -> bool:
        name = self._figure(cell, column).partition(".")[2].partition("_")[0] + PROBE
        return any(name in row["figures"] for row in self._rows(cell, column))

    def _step(self, cell: str, column: Column) -> StudyStep:
        name = self._figure(cell, column).partition(".")[0]
        return next(step for step in self.study.steps if step.key == name)

    def _column(self, name: str) -> Column:
        return next(column for column in self.study.columns if column.name == name)

    def problems(self, cell: str) -> list[str]:
        """Return what went wrong in a cell: "seed 1, pretrain: diverged (...)"."""
        rows = [row for row in self.rows if row["cell"] == cell and row["state"] != "done"]
        return [f"seed {row['seed']}, {row['step']}: {row['state']} ({row.get('message', '')})" for row in rows]

    def verdicts(self) -> list[Verdict]:
        """Return whether each pattern of the study holds."""
        return [self._judge(pattern) for pattern in self.study.patterns]

    def _judge(self, pattern: Pattern) -> Verdict:
        column = self._column(pattern.column)
        sign = -1.0 if column.lower_is_better else 1.0
        better, worse = (self.estimate(name, column) for name in (pattern.better, pattern.worse))
        figures = [self.study.cell(name).published.get(column.name) for name in (pattern.better, pattern.worse)]
        published = sign * (figures[0] - figures[1]) if figures[0] is not None and figures[1] is not None else None
        if better is None or worse is None:
            return Verdict(pattern, UNRESOLVED, None, None, published)
        difference = sign * (better.value - worse.value)
        if better.squared_error is None or worse.squared_error is None:
            return Verdict(pattern, UNRESOLVED, difference, None, published)
        error = math.sqrt(better.squared_error + worse.squared_error)
        resolved = abs(difference) > ERRORS * error
        state = (HOLDS if difference > 0 else REVERSED) if resolved else UNRESOLVED
        return Verdict(pattern, state, difference, error, published)

    @property
    def verdict(self) -> str:
        """Whether the study's patterns hold: one word by the rule of all studies."""
        resolved = {verdict.state for verdict in self.verdicts()} - {UNRESOLVED}
        return MIXED if len(resolved) > 1 else next(iter(resolved), UNRESOLVED)

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        verdicts = self.verdicts()
        states = [verdict.state for verdict in verdicts if verdict.difference is not None]
        counts = {state: states.count(state) for state in (HOLDS, REVERSED, UNRESOLVED)}
        if not verdicts:
            return "The study names no pattern."
        words = {
            HOLDS: "The paper's pattern holds here",
            REVERSED: "The paper's pattern is reversed here",
            MIXED: "The paper's pattern holds here in part",
            UNRESOLVED: "Whether the paper's pattern holds is not resolved here",
        }[self.verdict]
        left = len(verdicts) - len(states)
        parts = [
            (counts[HOLDS], "holds", "hold"),
            (counts[REVERSED], "is reversed", "are reversed"),
            (counts[UNRESOLVED], "is not resolved", "are not resolved"),
            (left, "has no figures here", "have no figures here"),
        ]
        outcomes = ", ".join(f"{count} {verb if count == 1 else verbs}" for count, verb, verbs in parts if count)
        why = (
            " Not resolved: the difference is below twice its standard error, or there are too few seeds."
            if counts[UNRESOLVED]
            else ""
        )
        return f"{words}. Of {counted(len(verdicts), 'claim')}, {outcomes}.{why}"

    @property
    def columns(self) -> list[Column]:
        """The columns with figures, published or computed."""
        names = {name for cell in self.study.cells for name in (*cell.published, *cell.also_published)}
        names |= {c.name for c in self.study.columns if any(self.estimate(cell.name, c) for cell in self.study.cells)}
        return [column for column in self.study.columns if column.name in names]

    @property
    def cells(self) -> list[StudyCell]:
        """The cells with figures, published or computed."""
        computed = {row["cell"] for row in self.rows}
        return [cell for cell in self.study.cells if cell.name in computed or cell.published or cell.also_published]

    @property
    def minutes(self) -> float:
        """The time that the steps took, one after the other."""
        seconds = {row["folder"]: row["seconds"] for row in self.rows}
        return sum(seconds.values()) / 60


def earlier_plan(folder: Path, plan: StudyPlan) -> Json:
    """Return the plan of earlier calls, or nothing; one of another study, size or number of steps is refused."""
    if not (folder / PLAN).is_file():
        return {}
    before = read_json(folder / PLAN)
    if before["study"] != plan.study.name or before["size"] != plan.size:
        raise UserError(
            f"{folder}: holds the study {before['study']} at size {before['size']}; give another `out` for "
            f"{plan.study.name} at size {plan.size}"
        )
    if (model := before.get("model", "")) != plan.model:
        begins = f"begins with `model={model}`" if model else "pretrains its models"
        raise UserError(
            f"{folder}: {begins}; give another `out` for {f'`model={plan.model}`' if plan.model else 'this'}"
        )
    if before.get("brief", 0) != plan.brief:
        raise UserError(f"{folder}: `steps={before.get('brief', 0)}` there, {plan.brief} now; give another `out`")
    return before


def note_other_steps(before: Json, plan: StudyPlan) -> None:
    """Note the steps of earlier calls that were not the same as they are now."""
    folders = {(step.cell, step.seed, step.step.key): step.folder for step in plan.steps}
    earlier = {(step["cell"], step["seed"], step["step"]): step["folder"] for step in before.get("steps", ())}
    if others := sum(folders.get(key, folder) != folder for key, folder in earlier.items()):
        note(
            f"{counted(others, 'step')} of earlier calls had other text, data or settings, or belong to another "
            "version; their rows are left out, and they are computed again"
        )


def write_plan(folder: Path, plan: StudyPlan, source: str | Path, session: Json) -> None:
    """Write what is run; cells and seeds of an earlier call stay, another study or size is refused."""
    sessions = [session]
    path = Path(source) if str(source).endswith(".toml") else BUNDLED / f"{source}.toml"
    steps = [
        {"cell": step.cell, "seed": step.seed, "step": step.step.key, "do": step.step.do, "folder": step.folder}
        for step in plan.steps
    ]
    if before := earlier_plan(folder, plan):
        cells = {(step["cell"], step["seed"]) for step in steps}
        steps = [step for step in before["steps"] if (step["cell"], step["seed"]) not in cells] + steps
        sessions = [*before.get("sessions", ()), session]
    write_atomically(folder / STUDY, path.read_bytes())
    content: Json = {"study": plan.study.name, "size": plan.size, "shared": plan.shared, "steps": steps}
    content |= {"model": plan.model} if plan.model else {}
    content |= {"brief": plan.brief} if plan.brief else {}
    write_atomically(folder / PLAN, json_text(content | {"sessions": sessions}, 1) + "\n")


def end_session(folder: Path, minutes: float) -> None:
    """Note in the plan how long the last session took; one that was killed has no time."""
    content = read_json(folder / PLAN)
    content["sessions"][-1]["minutes"] = round(minutes, 2)
    write_atomically(folder / PLAN, json_text(content, 1) + "\n")


def is_copy(folder: Path) -> bool:
    """Return whether a study's folder has rows but no steps: a copy of its results without the runs."""
    return not (folder / STEPS).is_dir() and (folder / ROWS).is_file()


def read_rows(folder: Path) -> list[Json]:
    """Read the rows of a copy and check what everything else relies on."""
    rows = list(read_json_lines(folder / ROWS))
    for row in rows:
        if re.fullmatch(rf"{STEPS}/\w[\w.-]*", str(row.get("folder"))) is None:
            raise UserError(f"{folder / ROWS}: '{row.get('folder')}' is no folder of a step")
        if wrong := next((key for key, kind in ROW.items() if not isinstance(row.get(key), kind)), None):
            raise UserError(f"{folder / ROWS}: {row['folder']}: {wrong} is missing or of another type")
    return rows


def restore_steps(folder: Path) -> None:
    """Write the results of the steps of a copy from its rows, so that the study continues where it stopped."""
    restored = folder / "restored"
    shutil.rmtree(restored, ignore_errors=True)
    for row in read_rows(folder):
        result = {key: value for key, value in row.items() if key not in IN_PLAN}
        write_into_folder(restored / Path(row["folder"]).name / RESULT, json_text(result, 1) + "\n")
    restored.rename(folder / STEPS)


def read_results(folder: str | Path) -> StudyResults:
    """Read the results of a study's folder as far as they go."""
    folder = Path(folder)
    if not (folder / PLAN).is_file():
        raise UserError(f"{folder}: is not the folder of a study; `bertree study run` makes one")
    plan = read_json(folder / PLAN)
    study = load_study(folder / STUDY)
    object.__setattr__(study, "name", plan["study"])
    order = {cell.name: index for index, cell in enumerate(study.cells)}
    rows = []
    if is_copy(folder):
        rows = read_rows(folder)
    else:
        drawn = {plot.step for plot in study.plots}
        for step in sorted(plan["steps"], key=lambda step: (order.get(step["cell"], 0), step["seed"])):
            if (path := folder / step["folder"] / RESULT).is_file():
                curve = read_curve(path.parent) if step["step"] in drawn else {}
                rows.append(step | read_json(path) | curve)
    return StudyResults(
        study=study,
        size=plan["size"],
        rows=rows,
        shared=plan["shared"],
        sessions=plan.get("sessions", ()),
        model=plan.get("model", ""),
        brief=plan.get("brief", 0),
    )


def read_curve(folder: Path) -> Json:
    """Return the log of a step's run in few points, for plots: evaluations and training steps."""
    logs = [folder / "run" / METRICS, *sorted(folder.glob(f"run/seed-*/{METRICS}"))]
    log = next((path for path in logs if path.is_file()), None)
    if log is None:
        return {}
    rows: dict[str, list[Json]] = {"eval": [], "train": []}
    for row in read_json_lines(log):
        if row.get("kind") in rows:
            rows[row["kind"]].append({key: value for key, value in row.items() if type(value) in (int, float)})
    return {"curve": {kind: _thinned(lines) for kind, lines in rows.items()}}


def _thinned(rows: list[Json]) -> list[Json]:
    stride = max(1, math.ceil(len(rows) / POINTS))
    return rows[stride - 1 :: stride]
