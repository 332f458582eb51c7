"""A study is a TOML file: what its cells do and vary, at which sizes, and the figures that a paper published.

    title, question, paper, varied, held_equal       what the study is about
    [[columns]]    a column of its table: the figure of a step, and how it is shown
    [[steps]]      what every cell does, in this order: pretrain, finetune, evaluate ... (KINDS)
    [[cells]]      what a cell sets or changes in a step, and its published figures
    [[patterns]]   the differences between cells that the paper found
    [[plots]]      curves over a run, or one column over another
    [sizes.tiny]   what a size sets for the steps, how many seeds it has, and what a cell costs

`set` tables hold settings (`key=value`, as on the command line) by the name of a step, or by what it does. `change`
tables hold other fields of a step, by the same names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from bertree.config import settings
from bertree.config.settings import Above, AtLeast, OneOf
from bertree.errors import UserError, suggest

BUNDLED = Path(__file__).parent / "files"
SIZES = ("tiny", "small", "paper")
KINDS = (
    *("pretrain", "distill", "finetune", "embeddings"),  # these train a model
    *("evaluate", "ensemble", "context", "sts", "info", "plan", "time", "pairs"),
)

TRAINING = KINDS[:4]
JOINING = ("ensemble", "context")  # kinds that read the models of several cells
BASES = ("pretrain", "distill", "embeddings")  # kinds whose model later steps take unless they name another
EXACT = ("info", "plan")  # kinds whose figures are computed, not measured: they have no spread
ALONE = ("time", "pairs")  # kinds that measure time, so nothing may run beside them
MEASURES = ("training", "inference", "perplexity")
READINGS = ("one", "packed", "padded")
Settings = dict[str, tuple[str, ...]]
Changes = dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table."""

    name: str
    label: str = ""
    # STEP.FIGURE: "mnli.accuracy". Several, with blanks between them: of the first step that a cell has. None: the
    # column has only published figures.
    figure: str = ""
    mean: tuple[str, ...] = ()  # in place of a figure: columns that are averaged; one named twice counts twice
    ratio: tuple[str, ...] = ()  # in place of a figure: two columns, the first divided by the second
    relative: str = ""  # cell whose figure all others are divided by
    minus: str = ""  # cell whose figure is subtracted from all others
    inverse: bool = False  # with relative: that cell's figure divided by the others', for a speed-up of seconds
    factor: float = 1.0  # 100 for shares that are shown in percent
    digits: Annotated[int, AtLeast(0)] = 1
    lower_is_better: bool = False


@dataclass(frozen=True, kw_only=True)
class StudyStep:
    """What every cell does at this point."""

    do: Annotated[str, OneOf(KINDS)]
    name: str = ""  # of its figures; what it does if there is no name
    recipe: str = ""  # pretrain, info, time
    # the step whose model is used; "": the newest pretrained or distilled one. Or a preset with random weights, or a
    # folder. Of ensemble: the step whose models are its members
    model: str = ""
    student: str = ""  # distill: half, a preset, a recipe (on text) or a step (on a task)
    task: str = ""  # finetune, distill, evaluate, ensemble, time
    data: str = ""  # folder or file below the folder of the tasks
    more_data: tuple[str, ...] = ()  # embeddings: read too
    split: str = ""  # evaluate, ensemble
    frozen: str = ""  # finetune: hidden states of the frozen encoder that are read
    loss: str = ""  # embeddings
    pooling: str = ""  # sts
    glove: str = ""  # sts, time: a file of word vectors below the folder of the tasks, in place of a model
    objectives: tuple[str, ...] = ()  # evaluate: mlm, nsp, sop
    probe: bool = False  # evaluate: sentence pairs that the model was not trained with, by a linear probe
    measure: Annotated[str, OneOf(("", *MEASURES))] = ""  # time
    reading: Annotated[str, OneOf(READINGS)] = "packed"  # time: texts one by one, packed or in padded batches
    sort: bool = True  # time: by length
    texts: Annotated[int, AtLeast(0)] = 0  # time, pairs: that are read; 0: all
    cross: bool = False  # pairs: by a cross-encoder instead of vectors
    timed: Annotated[int, AtLeast(1)] = 1000  # pairs: that the cross-encoder's time is extrapolated from
    rounds: Annotated[int, AtLeast(1)] = 5  # time: the median of these counts
    device: str = ""  # time, pairs: cpu or cuda, whatever the study runs on
    seeds: Annotated[int, AtLeast(1)] = 1  # finetune: seeds for each seed of the study; the figure is their mean
    seeded: bool = True  # false: the same for all seeds of the study, for example one teacher
    # settings of which the best is kept, by a figure (`by`; "-loss": the lowest); the first seed chooses for all
    choose: tuple[str, ...] = ()
    by: str = ""
    set: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of the step, or what it does."""
        return self.name or self.do

    @property
    def trains(self) -> bool:
        """Whether it makes a model."""
        return self.do in TRAINING

    @property
    def reads_store(self) -> bool:
        """Whether it reads the token store itself, not only its tokenizer."""
        on_text = self.do == "distill" and not self.task
        return self.do == "pretrain" or on_text or bool(self.objectives) or self.measure == "training"


@dataclass(frozen=True, kw_only=True)
class StudyCell:
    """A row of the table."""

    name: str
    note: str = ""
    run: bool = True  # false: only its published figures are shown
    set: Settings = field(default_factory=dict)
    at: dict[str, Settings] = field(default_factory=dict)  # by size: what takes the place of `set` there
    change: Changes = field(default_factory=dict)  # other fields of its steps
    steps: tuple[str, ...] = ()  # the names of its steps; none: all
    members: tuple[str, ...] = ()  # cells whose models an ensemble joins or a context is relative to; none: its own
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
class Plot:
    """A plot of the report."""

    title: str = ""
    kind: Annotated[str, OneOf(("line", "scatter"))] = "line"
    step: str = ""  # line: the training step whose log is drawn, a line for each cell
    x: str  # line: steps, tokens or seconds; scatter: a column
    y: str  # line: a figure of held-out evaluations, or train.FIGURE; scatter: a column
    log: bool = False  # scatter: x in powers of ten
    lines: tuple[str, ...] = ()  # scatter: a line through the cells whose names begin with each; none: one line


@dataclass(frozen=True, kw_only=True)
class StudySize:
    """How a size changes the steps, and what it costs."""

    recipes: dict[str, str] = field(default_factory=dict)  # other recipes, models and students for those named
    suffix: str = ""  # of the recipes that are not listed
    set: Settings = field(default_factory=dict)
    change: Changes = field(default_factory=dict)  # other fields of the steps of all cells
    seeds: Annotated[int, AtLeast(1)] = 2
    minutes: Annotated[float, Above(0)] = 1.0  # of a cell and seed
    measured: bool = False  # the minutes are those of a run, not an estimate
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
    plots: tuple[Plot, ...] = ()
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
        """Return the cells that are computed: all that are not published figures alone, or those named and the members
        of their ensembles."""
        cells = [self.cell(name) for name in only] or [cell for cell in self.cells if cell.run]
        names = {cell.name for cell in cells} | {member for cell in cells for member in cell.members}
        cells = [cell for cell in self.cells if cell.name in names]
        if idle := next((cell for cell in cells if not cell.run), None):
            raise UserError(f"{self.name}: cell '{idle.name}' has only published figures, so it cannot be computed")
        return cells

    def steps_of(self, cell: StudyCell, size: StudySize) -> list[StudyStep]:
        """Return the steps of a cell with all changes to them."""
        steps = [step for step in self.steps if not cell.steps or step.key in cell.steps]
        return [changed(changed(step, size.change, self.name), cell.change, self.name) for step in steps]

    def pretraining(self, cells: Sequence[StudyCell], size: StudySize) -> set[tuple[str, ...]]:
        """Return how the cells pretrain: each recipe with its settings."""
        steps = [(step, cell) for cell in cells for step in self.steps_of(cell, size) if step.do == "pretrain"]
        return {(step.recipe, *settings_of(step, cell, size)) for step, cell in steps}


def settings_of(step: StudyStep, cell: StudyCell, size: StudySize) -> tuple[str, ...]:
    """Return all settings of a step of a cell."""
    parts = (step.set, *(part.get(name, ()) for part in (size.set, cell.set) for name in (step.do, step.name)))
    return tuple(text for part in parts for text in part)


def changed(step: StudyStep, changes: Changes, where: str) -> StudyStep:
    """Return a step with other fields: those for its kind, then those for its name. Settings are added to its own."""
    for key in [key for key in dict.fromkeys((step.do, step.key)) if key in changes]:
        fields = changes[key]
        if frozen := next((name for name in ("do", "name") if name in fields), None):
            raise UserError(f"{where}: change: {key}.{frozen}: cannot be changed; name the cell's steps with `steps`")
        added = fields.get("set", ())
        if not isinstance(added, list | tuple):
            raise UserError(f"{where}: change: {key}.set: must be a list")
        tree = settings.as_tree(step) | fields | {"set": [*step.set, *added]}
        step = settings.read(StudyStep, tree, f"{where}: change", key)
    return step
