"""The figures of a study, read from its folder: estimates over seeds, and whether the paper's patterns hold.

One rule decides for all studies. A pattern is a difference between two cells in one column. It is resolved if the
difference is larger than twice its standard error over the seeds; then it holds or is reversed. A study holds if all
its resolved patterns hold, is reversed if any is reversed, and is not resolved if no pattern is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev

from bertree.errors import UserError
from bertree.files.atomic import write_atomically, write_json_lines
from bertree.files.formats import Json, json_text, read_json
from bertree.study.definition import BUNDLED, Column, Pattern, Study
from bertree.study.load import load_study
from bertree.study.plan import StudyPlan

STUDY, PLAN, ROWS, RESULT = "study.toml", "plan.json", "rows.jsonl", "result.json"
ERRORS = 2.0  # standard errors that a difference must exceed to be resolved
HOLDS, REVERSED, UNRESOLVED = "holds", "reversed", "not resolved"


@dataclass(frozen=True)
class Estimate:
    """A figure over the seeds."""

    value: float  # mean or median
    deviation: float | None  # None: one seed
    seeds: int

    @property
    def squared_error(self) -> float | None:
        """The square of the standard error."""
        return None if self.deviation is None else self.deviation**2 / self.seeds


@dataclass(frozen=True)
class Verdict:
    """Whether a pattern holds."""

    pattern: Pattern
    state: str  # HOLDS, REVERSED or UNRESOLVED
    difference: float | None  # positive: as the paper found it; None: a cell has no figure
    error: float | None  # its standard error
    published: float | None


@dataclass(frozen=True, kw_only=True)
class StudyResults:
    """The results of a study so far."""

    study: Study
    size: str
    rows: Sequence[Json]  # cell, seed, step, state, seconds, figures
    shared: Sequence[str] = ()
    signal: int | None = None  # that ended the run of the study early

    def estimate(self, cell: str, column: str | Column) -> Estimate | None:
        """Return the figure of a cell in a column, in the column's unit."""
        column = self._column(column) if isinstance(column, str) else column
        values = list(self._by_seed(cell, column).values())
        if not values:
            return None
        centre = median(values) if self.study.median else mean(values)
        return Estimate(centre, stdev(values) if len(values) > 1 else None, len(values))

    def _by_seed(self, cell: str, column: Column) -> dict[int, float]:
        """Return the figures of a cell in a column; an average only for seeds that have all of its columns."""
        if column.mean:
            parts = [self._by_seed(cell, self._column(name)) for name in column.mean]
            seeds = set.intersection(*(set(part) for part in parts))
            return {seed: mean(part[seed] for part in parts) for seed in sorted(seeds)}
        step, _, figure = column.figure.partition(".")
        rows = [row for row in self.rows if row["cell"] == cell and row["step"] == step and figure in row["figures"]]
        return {row["seed"]: column.factor * row["figures"][figure] for row in rows}

    def _column(self, name: str) -> Column:
        return next(column for column in self.study.columns if column.name == name)

    def problems(self, cell: str) -> list[str]:
        """Return what went wrong in a cell: "seed 1, pretrain: diverged (...)"."""
        rows = [row for row in self.rows if row["cell"] == cell and row["state"] != "done"]
        rows = [row for row in rows if row["state"] != "not computed"]  # which follows from an earlier step
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
        states = [verdict.state for verdict in self.verdicts()]
        return REVERSED if REVERSED in states else HOLDS if HOLDS in states else UNRESOLVED

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        states = [verdict.state for verdict in self.verdicts()]
        counts = {state: states.count(state) for state in (HOLDS, REVERSED, UNRESOLVED)}
        if not states:
            return "The study names no pattern."
        words = {
            HOLDS: "The paper's pattern holds here",
            REVERSED: "The paper's pattern is reversed here",
            UNRESOLVED: "Whether the paper's pattern holds is not resolved here",
        }[self.verdict]
        return (
            f"{words}: of {len(states)} differences {counts[HOLDS]} hold, {counts[REVERSED]} are reversed and "
            f"{counts[UNRESOLVED]} are not resolved (smaller than twice their standard error, or too few seeds)."
        )

    @property
    def minutes(self) -> float:
        """The time that the steps took, one after the other."""
        seconds = {row["folder"]: row["seconds"] for row in self.rows}
        return sum(seconds.values()) / 60


def write_plan(folder: Path, plan: StudyPlan, source: str | Path, jobs: int) -> None:
    """Write what is run; cells and seeds of an earlier call stay, another study or size is refused."""
    path = Path(source) if str(source).endswith(".toml") else BUNDLED / f"{source}.toml"
    steps = [
        {"cell": step.cell, "seed": step.seed, "step": step.step.key, "folder": step.folder} for step in plan.steps
    ]
    if (folder / PLAN).is_file():
        before = read_json(folder / PLAN)
        if before["study"] != plan.study.name or before["size"] != plan.size:
            raise UserError(
                f"{folder}: holds the study {before['study']} at size {before['size']}; give another `out` for "
                f"{plan.study.name} at size {plan.size}"
            )
        cells = {(step["cell"], step["seed"]) for step in steps}
        steps = [step for step in before["steps"] if (step["cell"], step["seed"]) not in cells] + steps
    write_atomically(folder / STUDY, path.read_bytes())
    content = {"study": plan.study.name, "size": plan.size, "shared": plan.shared, "jobs": jobs, "steps": steps}
    write_atomically(folder / PLAN, json_text(content, 1) + "\n")


def read_results(folder: str | Path) -> StudyResults:
    """Read the results of a study's folder as far as they go, and write its rows."""
    folder = Path(folder)
    if not (folder / PLAN).is_file():
        raise UserError(f"{folder}: is not the folder of a study; `bertree study run` makes one")
    plan = read_json(folder / PLAN)
    study = load_study(folder / STUDY)
    object.__setattr__(study, "name", plan["study"])
    order = {cell.name: index for index, cell in enumerate(study.cells)}
    rows = []
    for step in sorted(plan["steps"], key=lambda step: (order.get(step["cell"], 0), step["seed"])):
        path = folder / step["folder"] / RESULT
        if path.is_file():
            rows.append(step | read_json(path))
    write_json_lines(folder / ROWS, rows)
    return StudyResults(study=study, size=plan["size"], rows=rows, shared=plan["shared"])
