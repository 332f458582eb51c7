"""The scores of a model on tasks of GLUE by the protocol (glue_protocol.py): glue.json, and the table that is shown."""

from dataclasses import dataclass, field, replace
from statistics import mean

from bertree.config.settings import NOT_A_SETTING
from bertree.errors import counted
from bertree.files.formats import Json
from bertree.report.formats import digits
from bertree.result_table import ResultTable, ShownAsTable


@dataclass(frozen=True, kw_only=True)
class RateScore:
    """What a learning rate scores on the training rows that are held out."""

    rate: float
    score: float | None  # None: not finite
    learned: bool
    training_rows: int
    held_out_rows: int


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """The scores of a task, as far as they are computed."""

    task: str
    metric: str
    choices: tuple[RateScore, ...] = ()
    rate: float | None = None  # that is chosen
    training_rows: int | None = None
    dev_rows: int | None = None
    scores: tuple[float | None, ...] = ()  # of the seeds, also of those that have learned nothing
    learned: int = 0  # seeds that have learned something
    score: float | None = None  # the mean
    deviation: float | None = None

    def cells(self, rates: int) -> list[str]:
        """Return the cells of its table row, scores times 100."""
        held_out = [percent(choice.score) for choice in self.choices]
        spread = "" if self.deviation is None else f" ± {100 * self.deviation:.1f}"
        stuck = len(self.scores) - self.learned
        score = f"{percent(self.score)}{spread}{f'; {stuck} learned nothing' if stuck else ''}"
        rows = "-" if self.training_rows is None else f"{self.training_rows:,}"
        rate = "-" if self.rate is None else digits(self.rate)
        return [self.metric, rows, *held_out, *["-"] * (rates - len(held_out)), rate, score]


@dataclass(frozen=True, kw_only=True, repr=False)
class GlueProtocol(ShownAsTable):
    """The scores of a model by the protocol, as far as they are computed."""

    version: int
    model: str
    digest: str  # of the model
    rates: tuple[float, ...]
    seeds: int
    settings: Json
    examples: int | None  # most training rows of a task; None: all
    data: dict[str, str]  # task -> hash of its files
    computed_with: dict[str, str]  # machine and versions
    rows: dict[str, TaskScore] = field(default_factory=dict)
    averages: dict[str, float | None] = field(default_factory=dict)
    signal: int | None = field(default=None, metadata=NOT_A_SETTING)  # that ended the protocol early

    @property
    def table(self) -> ResultTable:
        """The rows as a table, with the held-out score of each rate."""
        rows = [[name, *row.cells(len(self.rates))] for name, row in self.rows.items()]
        blank = [""] * (len(self.rates) + 3)
        tasks = counted(len({row.task for row in self.rows.values() if row.scores}), "task")
        rows += [[f"{name}, {tasks}", *blank, percent(average)] for name, average in self.averages.items()]
        some = "" if self.examples is None else f", at most {self.examples:,} training rows"
        title = f"GLUE by protocol {self.version}{some}: {self.model}"
        rates = [f"held out, {digits(rate)}" for rate in self.rates]
        return ResultTable(title, rows, ["task", "metric", "rows", *rates, "rate", f"dev, {self.seeds} seeds"])

    def _result_table(self) -> ResultTable:
        return self.table

    def with_row(self, name: str, row: TaskScore) -> "GlueProtocol":
        """Return the report with another row, and the averages of the rows that are complete: over the tasks, and with
        the rows that start from MNLI in place of theirs."""
        rows = self.rows | {name: row}
        complete = {name: row for name, row in rows.items() if row.scores}
        plain = {row.task: row.score for name, row in complete.items() if name == row.task}
        from_mnli = {row.task: row.score for name, row in complete.items() if name != row.task}
        averages = {"average": _mean(plain)} if plain else {}
        averages |= {"average from mnli": _mean(plain | from_mnli)} if from_mnli else {}
        return replace(self, rows=rows, averages=averages)


def _mean(scores: dict[str, float | None]) -> float | None:
    finite = [score for score in scores.values() if score is not None]
    return mean(finite) if len(finite) == len(scores) else None


def percent(score: float | None) -> str:
    """Return a score times 100; a dash where there is none."""
    return "-" if score is None else f"{100 * score:.1f}"
