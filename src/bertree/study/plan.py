"""The work of a study at one size: every step of every cell and seed, and which step takes whose model."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bertree.config.names import resolve_model_path
from bertree.console import collect_notes, note
from bertree.data.store import Store
from bertree.data.store_files import TOKENIZER
from bertree.distillation.text_recipe import find_recipe
from bertree.errors import UserError
from bertree.model.presets import PRESETS
from bertree.pretraining import recipe as recipes
from bertree.study.definition import ALONE, BASES, JOINING, Study, StudyCell, StudySize, StudyStep, settings_of
from bertree.study.load import check_names
from bertree.study.planned import PlannedStep, check_step, is_folder

FEW: dict[str, Any] = {"rounds": 1, "texts": 40, "timed": 10}  # of timed steps in a short trial of a study
FEW_EXAMPLES, SMALL_BATCH = 32, 2048
MOST_SEEDS = 1000


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The steps of a study, in the order in which they are done."""

    study: Study
    size: str
    steps: Sequence[PlannedStep]  # cell by cell, seed by seed; ensembles last
    model: str = ""  # that takes the place of pretraining
    brief: int = 0  # steps of every run, if the study is only tried out

    @cached_property
    def distinct(self) -> list[PlannedStep]:
        """The steps to compute: a step that several cells share is there once."""
        first: dict[str, PlannedStep] = {}
        for step in self.steps:
            first.setdefault(step.identity, step)
        return list(first.values())

    @cached_property
    def sources(self) -> set[str]:
        """The identities of the steps whose models are used by others."""
        return {source.identity for step in self.steps for source in step.sources}

    @property
    def shared(self) -> list[str]:
        """What several cells have in common, for the report."""
        cells: dict[str, dict[str, None]] = {}
        names: dict[str, str] = {}
        for step in self.steps:
            cells.setdefault(step.identity, {})[step.cell] = None
            names[step.identity] = step.step.key
        together = {(names[identity], *users) for identity, users in cells.items() if len(users) > 1}
        return [f"{name}: {', '.join(users)}" for name, *users in sorted(together)]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the steps read: a token store with its fingerprint, the folder of the tasks, and a pretrained model."""

    store: Path | None
    text: str
    tasks: Path | None
    model: str  # takes the place of pretraining; "": every cell pretrains
    device: str
    steps: int  # of every run, to try the study out; 0: all
    hashes: dict[Path, str] = field(default_factory=dict)

    @cached_property
    def tokenizer(self) -> Path | None:
        """The tokenizer of presets: that of the model, or of the token store."""
        if is_folder(self.model):
            return resolve_model_path(self.model)
        return self.store / TOKENIZER if self.store is not None else None

    def hash_of(self, path: Path) -> str:
        """Return a hash of a file or of the files of a folder: where they lie does not decide a result."""
        if path not in self.hashes:
            files = sorted(file for file in path.rglob("[!.]*") if file.is_file()) if path.is_dir() else [path]
            parts = []
            for file in files:
                with file.open("rb") as opened:
                    parts.append((file.relative_to(path).as_posix(), hashlib.file_digest(opened, "sha256").hexdigest()))
            self.hashes[path] = hashlib.sha256(repr(parts).encode()).hexdigest()
        return self.hashes[path]


def plan_study(
    study: Study,
    size: str,
    *,
    store: Path | None,
    tasks: Path | None,
    seeds: int,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    model: str = "",
    device: str = "",
    steps: int = 0,
) -> StudyPlan:
    """Return the work of a study; every setting, file and model is checked.

    `model`: a folder or preset in place of the model that all cells pretrain. `steps`: a short trial with so many steps
    of every run, on few examples."""
    if not 0 <= seeds <= MOST_SEEDS:
        raise UserError(f"seeds: must be 0 to {MOST_SEEDS:,}, not {seeds:,}")
    if steps < 0:
        raise UserError(f"steps: must be at least 0, not {steps}")
    check_names(skip, [step.key for step in study.steps], f"{study.name}: steps")
    chosen = study.size(size)
    cells = [replace(cell, set=cell.at.get(size, cell.set)) for cell in study.running(only)]
    if model and len(ways := study.pretraining(cells, chosen)) != 1:
        cells_here = "the chosen cells" if only else "its cells"
        why = f"{cells_here} pretrain in different ways" if ways else f"{cells_here} pretrain no model"
        raise UserError(f"{study.name}: {why}, so `model={model}` cannot take the place of pretraining; leave it out")
    kept = [step for cell in cells for step in study.steps_of(cell, chosen) if not (model and step.do == "pretrain")]
    if store is None and any(step.reads_store for step in kept):
        raise UserError(f"{study.name}: needs a token store (`store=DIR`): `bertree prepare` makes one of your text")
    if tasks is not None and not tasks.is_dir():
        what = "is a file" if tasks.exists() else "no such folder"
        raise UserError(f"{tasks}: {what}; `tasks` is the folder with the data of the tasks")
    text = Store.open(store).fingerprint if store is not None else ""
    inputs = Inputs(store=store, text=text, tasks=tasks, model=model, device=device, steps=steps)
    by_cell: dict[tuple[str, int], list[PlannedStep]] = {}
    for cell in cells:
        first: list[PlannedStep] = []
        for seed in range(seeds or chosen.seeds):
            by_cell[cell.name, seed] = _plan_cell(study, chosen, cell, seed, inputs, skip, first)
            first = first or by_cell[cell.name, seed]
    work = [step for planned in by_cell.values() for step in planned if step.step.do not in JOINING]
    for (name, seed), planned in by_cell.items():
        for step in planned:
            if step.step.do in JOINING:
                work.append(_with_members(step, study.cell(name).members or (name,), seed, by_cell))
    if not work:
        why = "give `tasks`, the folder with their data" if tasks is None else "skip fewer steps"
        raise UserError(f"{study.name}: no step is left to compute; {why}")
    checked: set[str] = set()
    with collect_notes() as notes:
        for step in work:
            try:
                if step.identity not in checked:
                    check_step(step, brief=steps > 0)
            except UserError as error:
                raise UserError(f"{study.name}: cell '{step.cell}': {step.step.key}: {error}") from None
            checked.add(step.identity)
    for message in dict.fromkeys(notes):  # many steps have the same
        note(message)
    if tasks is None and any(step.data for step in study.steps):
        note("`tasks`: no folder with the data of the tasks, so only the figures of pretraining are computed")
    return StudyPlan(study=study, size=size, steps=work, model=model, brief=steps)


def _plan_cell(
    study: Study,
    size: StudySize,
    cell: StudyCell,
    seed: int,
    inputs: Inputs,
    skip: Sequence[str],
    first: Sequence[PlannedStep],
) -> list[PlannedStep]:
    """Plan the steps of a cell and seed; `first` are those of the cell's first seed."""
    planned: dict[str, PlannedStep] = {}
    names, replaced = {step.key for step in study.steps}, set[str]()
    for step in study.steps_of(cell, size):
        if inputs.model and step.do == "pretrain":
            replaced.add(step.key)
            continue
        others = names - replaced - {step.key}  # a student may have the name of its step
        missing = [name for name in (step.model, step.student) if name in others and name not in planned]
        if step.key in skip or (inputs.tasks is None and (step.data or step.glove)):
            continue
        if missing and step.do != "ensemble":
            if missing[0] in skip:
                continue
            raise UserError(f"{study.name}: cell '{cell.name}': {step.key}: {missing[0]} is not a step before it")
        bases = [before for before in planned.values() if before.step.do in BASES]
        takes_model = step.do not in ("pretrain", "ensemble") and not step.recipe and not step.glove
        newest = bases[-1] if bases and takes_model and not step.model else None
        source = planned.get(step.model, newest) if takes_model else None
        if takes_model and not source and (step.model in replaced or (replaced and not step.model)):
            step = replace(step, model=inputs.model)
        model, student = size.recipes.get(step.model, step.model), size.recipes.get(step.student, step.student)
        data = tuple(_find_data(step, name, inputs.tasks) for name in (step.data, *step.more_data) if name)
        glove = _find_data(step, step.glove, inputs.tasks) if step.glove else None
        outside = ["" if source else model, "" if step.student in planned else student]  # that no step makes
        folders = [resolve_model_path(name) for name in outside if is_folder(name)]
        tokenizer = inputs.tokenizer if outside[0] in PRESETS else None
        folders += [tokenizer] if tokenizer and inputs.model else []
        planned[step.key] = PlannedStep(
            step=replace(step, **FEW) if inputs.steps and step.do in ALONE else step,
            cell=cell.name,
            seed=seed if step.seeded else 0,
            settings=settings_of(step, cell, size),
            recipe=size.recipes.get(step.recipe, step.recipe + size.suffix) if step.recipe else "",
            model=outside[0],
            student=outside[1],
            model_step=source,
            student_step=planned.get(step.student),
            chosen_by=next((choice for choice in first if choice.step.key == step.key), None) if step.choose else None,
            store=inputs.store,
            text=inputs.text if step.reads_store or (model in PRESETS and not inputs.model) else "",
            data=data,
            glove=glove,
            tokenizer=tokenizer,
            contents=(
                *map(inputs.hash_of, data),
                inputs.hash_of(glove) if glove else "",
                *map(inputs.hash_of, folders),
            ),
            median=study.median,
            device=inputs.device,
        )
        if inputs.steps:
            planned[step.key] = _shortened(planned[step.key], inputs.steps)
    return list(planned.values())


def _shortened(planned: PlannedStep, steps: int) -> PlannedStep:
    """Return a step that trains only so many steps, or on few examples, whatever its settings say."""
    step, settings = planned.step, planned.settings
    if step.do == "pretrain" or (step.do == "distill" and not step.task):
        try:
            if step.do == "pretrain":
                recipe = recipes.load(planned.recipe, settings)
            else:
                recipe = find_recipe(planned.student, {"data.store": str(planned.store)}, settings)
        except UserError as error:
            raise UserError(f"cell '{planned.cell}': {step.key}: {error}") from None
        added = []
        for number, phase in enumerate(recipe.phases):
            size = min(phase.batch_tokens, max(SMALL_BATCH, 4 * phase.max_length))
            added += [f"phases.{number}.steps={steps}", f"phases.{number}.batch_tokens={size}"]
        added += ["schedule.warmup=1", "run.minutes=0.0", f"run.eval_every={steps}", "run.eval_tokens=4096"]
    else:
        examples = [f"examples={FEW_EXAMPLES}"] if step.task else []
        added = ["epochs=1", *examples] if step.trains else ["tokens=8"] if step.do == "context" else []
    return replace(planned, settings=(*settings, *added))


def _with_members(
    step: PlannedStep, cells: Sequence[str], seed: int, by_cell: dict[tuple[str, int], list[PlannedStep]]
) -> PlannedStep:
    """Return an ensemble with its members: of one seed, or of all if it is the same for all."""
    name_of_step = step.step.model
    if step.model_step:  # a context is that of the cell's own model
        name_of_step, cells = step.model_step.step.key, (*cells, step.cell)
    members = tuple(
        member
        for (name, number), planned in by_cell.items()
        if name in cells and (number == seed or not step.step.seeded)
        for member in planned
        if member.step.key == name_of_step
    )
    if len(members) < 2:
        raise UserError(
            f"cell '{step.cell}': {step.step.key}: has {len(members)} models to join; name cells with `members`, or "
            "join all seeds with `seeded = false`"
        )
    return replace(step, members=tuple({member.identity: member for member in members}.values()))


def _find_data(step: StudyStep, name: str, tasks: Path | None) -> Path:
    """Return the data of a step: in the folder of the tasks, or in a folder of that one."""
    assert tasks is not None
    for path in (tasks / name, *sorted(tasks.glob(f"*/{name}"))):
        if path.exists():
            return path
    raise UserError(f"{tasks}: has no {name}, which the step {step.key} needs; leave it out with `skip={step.key}`")
