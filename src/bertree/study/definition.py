"""A study is a TOML file: what its cells do and vary, at which sizes, and the figures that a paper published.

    title, question, paper, varied, held_equal       what the study is about
    [[columns]]    a column of its table: the figure of a step, and how it is shown
    [[steps]]      what every cell does, in this order: pretrain, distill, evaluate, finetune, embeddings, sts, info
    [[cells]]      what a cell sets for a step, and its published figures
    [[patterns]]   the differences between cells that the paper found
    [sizes.tiny]   what a size sets for the steps, how many seeds it has, and what a cell costs

`set` tables hold settings (`key=value`, as on the command line) by the name of a step, or by what it does.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from bertree.config import settings
from bertree.config.settings import Above, AtLeast, OneOf
from bertree.errors import UserError, suggest
from bertree.files.formats import read_toml

BUNDLED = Path(__file__).parent / "files"
SIZES = ("tiny", "small", "paper")
KINDS = ("pretrain", "distill", "evaluate", "finetune", "embeddings", "sts", "info")
TRAINING = ("pretrain", "distill", "finetune", "embeddings")  # kinds of steps that make a model
Settings = dict[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table."""

    name: str
    label: str = ""
    figure: str = ""  # STEP.FIGURE: "mnli.accuracy"; none: the column has only published figures
    mean: tuple[str, ...] = ()  # in place of a figure: columns that are averaged; one named twice counts twice
    factor: float = 1.0  # 100 for shares that are shown in percent
    digits: Annotated[int, AtLeast(0)] = 1
    lower_is_better: bool = False


@dataclass(frozen=True, kw_only=True)
class StudyStep:
    """What every cell does at this point."""

    do: Annotated[str, OneOf(KINDS)]
    name: str = ""  # of its figures; what it does if there is no name
    recipe: str = ""  # pretrain
    model: str = ""  # the step whose model is used; "": the newest one before. Or a preset, with random weights
    student: str = ""  # distill
    task: str = ""  # finetune
    data: str = ""  # finetune, embeddings, sts: folder or file below the folder of the tasks
    frozen: str = ""  # finetune: hidden states of the frozen encoder that are read
    loss: str = ""  # embeddings
    pooling: str = ""  # sts
    objectives: tuple[str, ...] = ()  # evaluate: mlm, nsp, sop
    seeds: Annotated[int, AtLeast(1)] = 1  # finetune: seeds for each seed of the study; the figure is their mean
    seeded: bool = True  # false: the same for all seeds of the study, for example one teacher
    set: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Its name."""
        return self.name or self.do


@dataclass(frozen=True, kw_only=True)
class StudyCell:
    """A row of the table."""

    name: str
    note: str = ""
    run: bool = True  # false: only its published figures are shown
    recipe: str = ""  # of the step `pretrain`, instead of the study's
    set: Settings = field(default_factory=dict)
    at: dict[str, Settings] = field(default_factory=dict)  # by size: what takes the place of `set` there
    frozen: str = ""  # of all steps `finetune`, instead of the study's
    model: str = ""  # of all steps `finetune`, instead of the study's
    steps: tuple[str, ...] = ()  # the names of its steps; none: all
    published: dict[str, float] = field(default_factory=dict)  # by column
    also_published: dict[str, float] = field(default_factory=dict)  # of a second source that disagrees


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A difference that the paper found."""

    claim: str
    column: str
    better: str  # cell
    worse: str  # cell


@dataclass(frozen=True, kw_only=True)
class StudySize:
    """How a size changes the steps, and what it costs."""

    recipes: dict[str, str] = field(default_factory=dict)  # other recipes for those that the steps and cells name
    suffix: str = ""  # of the recipes that are not listed
    set: Settings = field(default_factory=dict)
    seeds: Annotated[int, AtLeast(1)] = 2
    minutes: Annotated[float, Above(0)] = 1.0  # of a cell and seed, as measured or estimated
    machine: str = "two CPU cores"  # on which it takes that long


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study."""

    title: str
    question: str
    paper: str  # authors, year, title and table
    varied: str
    held_equal: str = ""
    second_source: str = ""  # of the figures in `also_published`
    median: bool = False  # of the seeds, instead of the mean
    columns: tuple[Column, ...]
    steps: tuple[StudyStep, ...]
    cells: tuple[StudyCell, ...]
    patterns: tuple[Pattern, ...] = ()
    sizes: dict[str, StudySize]
    name: str = field(default="", metadata=settings.NOT_A_SETTING)

    def cell(self, name: str) -> StudyCell:
        """Return a cell."""
        cells = {cell.name: cell for cell in self.cells}
        if name not in cells:
            raise UserError(f"{self.name}: has no cell '{name}', {suggest(name, cells)}")
        return cells[name]

    def size(self, name: str) -> StudySize:
        """Return a size."""
        if name not in self.sizes:
            raise UserError(f"{self.name}: has no size '{name}'; there are: {', '.join(self.sizes)}")
        return self.sizes[name]

    def running(self, only: Sequence[str] = ()) -> list[StudyCell]:
        """Return the cells that are computed: all that are not published figures alone, or those named."""
        cells = [self.cell(name) for name in only] or [cell for cell in self.cells if cell.run]
        if idle := next((cell for cell in cells if not cell.run), None):
            raise UserError(f"{self.name}: cell '{idle.name}' has only published figures, so it cannot be computed")
        return cells

    def steps_of(self, cell: StudyCell) -> list[StudyStep]:
        """Return the steps of a cell."""
        return [step for step in self.steps if not cell.steps or step.key in cell.steps]


def bundled_studies() -> list[str]:
    """Return the names of the studies that come with the package."""
    return sorted(path.stem for path in BUNDLED.glob("*.toml"))


def load_study(name: str | Path) -> Study:
    """Return a study by its name, or from a TOML file of your own."""
    path = Path(name)
    if path.suffix != ".toml":
        if str(name) not in (names := bundled_studies()):
            raise UserError(f"'{name}': no such study, {suggest(str(name), names)}; or give the path of a .toml file")
        path = BUNDLED / f"{name}.toml"
    elif not path.is_file():
        raise UserError(f"{path}: no such study file")
    study: Study = settings.read(Study, read_toml(path), str(name))
    object.__setattr__(study, "name", path.stem)
    _check(study, str(name))
    return study


def studies() -> dict[str, Study]:
    """Return the studies that come with the package, by name.

    >>> bertree.studies()["bert-size"].paper
    """
    return {name: load_study(name) for name in bundled_studies()}


def _check(study: Study, where: str) -> None:
    """Check what concerns more than one entry."""
    steps, columns = [step.key for step in study.steps], [column.name for column in study.columns]
    cells = [cell.name for cell in study.cells]
    for kind, names in (("steps", steps), ("columns", columns), ("cells", cells)):
        if not names:
            raise UserError(f"{where}: {kind}: there is none")
        if twice := next((name for name, count in Counter(names).items() if count > 1), None):
            raise UserError(f"{where}: {kind}: '{twice}' is there twice; give each another name")
    if not study.sizes:
        raise UserError(f"{where}: sizes: there is none; add [sizes.tiny]")
    check_names(study.sizes, SIZES, f"{where}: sizes")
    keys = {*steps, *(step.do for step in study.steps)}
    for place, settings_by_step in [
        *((f"cells: '{cell.name}': set", cell.set) for cell in study.cells),
        *((f"cells: '{cell.name}': at.{size}", at) for cell in study.cells for size, at in cell.at.items()),
        *((f"sizes.{name}.set", size.set) for name, size in study.sizes.items()),
    ]:
        check_names(settings_by_step, keys, f"{where}: {place}")
    for column in study.columns:
        place = f"{where}: columns: '{column.name}'"
        check_names([column.figure.partition(".")[0]] if column.figure else [], steps, f"{place}: figure")
        plain = [other.name for other in study.columns if not other.mean]
        check_names(column.mean, plain, f"{place}: mean")
    for cell in study.cells:
        check_names(cell.steps, steps, f"{where}: cells: '{cell.name}': steps")
        check_names(cell.at, study.sizes, f"{where}: cells: '{cell.name}': at")
        for published in (cell.published, cell.also_published):
            check_names(published, columns, f"{where}: cells: '{cell.name}': published")
    for pattern in study.patterns:
        check_names([pattern.column], columns, f"{where}: patterns: column")
        check_names([pattern.better, pattern.worse], cells, f"{where}: patterns")
    for index, step in enumerate(study.steps):
        _check_step(step, [before for before in study.steps[:index] if before.do in TRAINING], where)


def _check_step(step: StudyStep, before: Sequence[StudyStep], where: str) -> None:
    """Check that a step has what it needs."""
    place = f"{where}: steps: '{step.key}'"
    needed = {"pretrain": "recipe", "distill": "student", "finetune": "task", "embeddings": "loss"}.get(step.do)
    if needed and not getattr(step, needed):
        raise UserError(f"{place}: {needed}: is missing, which {step.do} needs")
    if step.do in ("finetune", "embeddings", "sts") and not step.data:
        raise UserError(f"{place}: data: is missing, which {step.do} needs")
    if step.do == "evaluate" and not step.objectives:
        raise UserError(f"{place}: objectives: is missing: a list of mlm, nsp, sop")
    if step.do not in ("pretrain", "info") and not step.model and not before:
        raise UserError(f"{place}: model: no step before it trains a model; name a preset or a model folder")


def check_names(names: Iterable[str], options: Iterable[str], where: str) -> None:
    """Raise an error if a name is not among the options."""
    options = list(options)
    for name in names:
        if name not in options:
            raise UserError(f"{where}: '{name}' is unknown, {suggest(name, options)}")
