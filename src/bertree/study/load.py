"""Read a study file and check what concerns more than one of its entries."""

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from bertree.config import settings
from bertree.errors import UserError, suggest
from bertree.files.atomic import write_into_folder
from bertree.files.formats import read_toml
from bertree.study.definition import BUNDLED, EXACT, SIZES, Column, Plot, Study, StudyStep

TEMPLATE = BUNDLED.parent / "template.toml"  # fields that most studies need, with comments
AXES = ("steps", "tokens", "seconds")
NEEDED = {
    "pretrain": ("recipe",),
    "distill": ("student",),
    "finetune": ("task", "data"),
    "embeddings": ("loss", "data"),
    "ensemble": ("model", "task", "data"),
    "context": ("data",),
    "sts": ("data",),
    "time": ("measure",),
    "pairs": ("data",),
}


def bundled_studies() -> list[str]:
    """Return the names of the studies that come with the package."""
    return sorted(path.stem for path in BUNDLED.glob("*.toml"))


def load_study(name: str | Path) -> Study:
    """Return a study by its name, or from a TOML file of your own."""
    path = Path(name)
    if path.suffix != ".toml":
        if str(name) not in (names := bundled_studies()):
            near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.4)
            meant = f" did you mean {' or '.join(repr(each) for each in near)}?" if near else ""
            raise UserError(f"'{name}': no such study;{meant} `bertree study list` shows all; or give a .toml file")
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


def write_template(path: Path, study: str = "") -> Study:
    """Write the template, or a built-in study, to a new file; return the study in it."""
    if path.suffix != ".toml":
        raise UserError(f"{path}: must end in .toml")
    if path.exists():
        raise UserError(f"{path}: exists already; give another path")
    if study:
        load_study(study)
    source = Path(study) if study.endswith(".toml") else BUNDLED / f"{study}.toml" if study else TEMPLATE
    write_into_folder(path, source.read_bytes())
    return load_study(path)


def _check(study: Study, where: str) -> None:
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
    places: list[tuple[str, Iterable[str]]] = [
        *((f"cells: '{cell.name}': set", cell.set) for cell in study.cells),
        *((f"cells: '{cell.name}': change", cell.change) for cell in study.cells),
        *((f"cells: '{cell.name}': at.{size}", at) for cell in study.cells for size, at in cell.at.items()),
        *((f"sizes.{name}.set", size.set) for name, size in study.sizes.items()),
        *((f"sizes.{name}.change", size.change) for name, size in study.sizes.items()),
    ]
    for place, names_of_steps in places:
        check_names(names_of_steps, keys, f"{where}: {place}")
    for column in study.columns:
        _check_column(column, study, f"{where}: columns: '{column.name}'")
    for cell in study.cells:
        check_names(cell.steps, steps, f"{where}: cells: '{cell.name}': steps")
        check_names(cell.at, study.sizes, f"{where}: cells: '{cell.name}': at")
        check_names(cell.members, cells, f"{where}: cells: '{cell.name}': members")
        for published in (cell.published, cell.also_published):
            check_names(published, columns, f"{where}: cells: '{cell.name}': published")
    for pattern in study.patterns:
        check_names([pattern.column], columns, f"{where}: patterns: column")
        check_names([pattern.better, pattern.worse], cells, f"{where}: patterns")
    for plot in study.plots:
        _check_plot(plot, study, columns, f"{where}: plots")
    for cell in study.cells:
        for size in study.sizes.values() if cell.run else ():
            before: list[StudyStep] = []
            for step in study.steps_of(cell, size):
                _check_step(step, before, f"{where}: cells: '{cell.name}': steps: '{step.key}'")
                before.append(step)


def _check_column(column: Column, study: Study, place: str) -> None:
    steps = [step.key for step in study.steps]
    check_names([figure.partition(".")[0] for figure in column.figure.split()], steps, f"{place}: figure")
    plain = [other.name for other in study.columns if not (other.mean or other.ratio or other.relative or other.minus)]
    check_names(column.mean, plain, f"{place}: mean")
    check_names(column.ratio, plain, f"{place}: ratio")
    if column.ratio and len(column.ratio) != 2:
        raise UserError(f"{place}: ratio: must be two columns")
    for field, cell in (("relative", column.relative), ("minus", column.minus)):
        check_names([cell] if cell else [], [other.name for other in study.cells], f"{place}: {field}")


def _check_plot(plot: Plot, study: Study, columns: Sequence[str], place: str) -> None:
    if plot.kind == "scatter":
        check_names([plot.x, plot.y], columns, place)
        for line in plot.lines:
            if not any(cell.name.startswith(line) for cell in study.cells):
                raise UserError(f"{place}: lines: no cell's name begins with '{line}'")
        return
    check_names([plot.x], AXES, f"{place}: x")
    check_names([plot.step], [step.key for step in study.steps if step.trains], f"{place}: step")


def _check_step(step: StudyStep, before: Sequence[StudyStep], place: str) -> None:
    """Check that a step of a cell has what it needs."""
    for field in NEEDED.get(step.do, ()):
        if not getattr(step, field):
            raise UserError(f"{place}: {field}: is missing, which {step.do} needs")
    if step.task and not step.data and step.task != "cloze":  # which has a file of its own
        raise UserError(f"{place}: data: is missing, which {step.do} on a task needs")
    if step.do == "evaluate" and bool(step.objectives) == bool(step.task):
        raise UserError(f"{place}: objectives: is missing: a list of mlm, nsp, sop; or a task with its data")
    if step.measure in ("inference", "perplexity") and not step.data:
        raise UserError(f"{place}: data: is missing: the texts whose time is measured")
    if step.choose and not step.by:
        raise UserError(f'{place}: by: is missing: the figure that chooses, "-loss" for the lowest')
    needs_model = step.do not in ("pretrain", *EXACT) and not step.glove and not step.recipe
    if step.do == "ensemble":
        return
    if (needs_model or step.do == "plan") and not step.model and not any(earlier.trains for earlier in before):
        raise UserError(f"{place}: model: no step before it trains a model; name a preset or a model folder")


def check_names(names: Iterable[str], options: Iterable[str], where: str) -> None:
    """Raise an error if a name is not among the options."""
    options = list(options)
    for name in names:
        if name not in options:
            raise UserError(f"{where}: '{name}' is unknown, {suggest(name, options)}")
