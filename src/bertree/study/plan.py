"""The work of a study at one size: every step of every cell and seed, checked before anything is trained.

A step is identified by a hash of everything that decides its result: what it does, its settings, its seed, its text
and the step whose model it takes. Cells whose steps have the same identity share them: a pretrained model that several
cells fine-tune is trained once, and nothing that differs is ever shared.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from bertree.config.settings import as_tree
from bertree.console import note
from bertree.data.masking import Masking
from bertree.data.store import Store
from bertree.errors import UserError
from bertree.files.formats import json_text
from bertree.finetuning import config as finetune_config
from bertree.inference.load import identify
from bertree.model.presets import PRESETS, preset
from bertree.pretraining import build
from bertree.pretraining import recipe as recipes
from bertree.study.definition import TRAINING, Study, StudyCell, StudySize, StudyStep, check_names
from bertree.tasks.files import TaskFiles
from bertree.tasks.registry import make_task

SEED_STEP = 100  # between the fine-tuning seeds of two seeds of a study
PATHS = ("store", "held_out")  # settings that do not decide a result: the fingerprint of the text does


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """A step of a cell and seed with everything it needs."""

    step: StudyStep
    cell: str
    seed: int
    settings: tuple[str, ...]
    recipe: str  # pretrain, distill
    model_step: "PlannedStep | None"  # whose model it takes
    model: str  # a preset or a folder, if no step makes the model
    store: Path | None
    text: str  # fingerprint of the store
    data: Path | None

    @cached_property
    def identity(self) -> str:
        """A hash of everything that decides the result."""
        step = as_tree(self.step) | {"name": "", "set": [], "recipe": "", "model": self.model, "data": str(self.data)}
        settings: object = list(self.settings)
        if self.step.do == "pretrain":
            resolved = as_tree(recipes.load(self.recipe, self.settings))
            settings = resolved | {"name": "", "note": "", "data": {**resolved["data"], **dict.fromkeys(PATHS, "")}}
        parts = {
            "step": step,
            "settings": settings,
            "seed": self.seed if self.step.seeded else 0,
            "text": self.text,
            "model": self.model_step.identity if self.model_step else self.model,
        }
        return hashlib.sha256(json_text(parts).encode()).hexdigest()[:12]

    @property
    def folder(self) -> str:
        """Its folder below that of the study."""
        return f"steps/{self.step.key}-{self.identity}"


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The steps of a study, in the order in which they are done."""

    study: Study
    size: str
    steps: Sequence[PlannedStep]  # cell by cell, seed by seed

    @property
    def distinct(self) -> list[PlannedStep]:
        """The steps that must be computed: of those that cells share, the first."""
        first: dict[str, PlannedStep] = {}
        for step in self.steps:
            first.setdefault(step.identity, step)
        return list(first.values())

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

    @property
    def minutes(self) -> float:
        """The estimated time: that of a cell and seed, times their number."""
        return self.study.size(self.size).minutes * len({(step.cell, step.seed) for step in self.steps})


def plan_study(
    study: Study,
    size: str,
    *,
    store: Path | None,
    tasks: Path | None,
    seeds: int,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
) -> StudyPlan:
    """Return the work of a study; every setting, file and model is checked."""
    check_names(skip, [step.key for step in study.steps], f"{study.name}: steps")
    study = replace(study, steps=tuple(step for step in study.steps if step.key not in skip))
    chosen = study.size(size)
    needs_store = any(step.do in ("pretrain", "distill", "evaluate") for step in study.steps)
    if needs_store and store is None:
        raise UserError(f"{study.name}: needs a token store (`store=DIR`): `bertree prepare` makes one of your text")
    if tasks is None and any(step.data for step in study.steps):
        note("`tasks`: no folder with the data of the tasks, so only the figures of pretraining are computed")
    fingerprint = Store.open(store).fingerprint if store is not None else ""
    steps = []
    for cell in study.running(only):
        for seed in range(seeds or chosen.seeds):
            of_cell = replace(cell, set=cell.at.get(size, cell.set))
            steps += _plan_cell(study, chosen, of_cell, seed, store, fingerprint, tasks)
    checked: set[str] = set()
    for step in steps:
        try:
            if step.identity not in checked:
                _check_step(step)
        except UserError as error:
            raise UserError(f"{study.name}: cell '{step.cell}': {step.step.key}: {error}") from None
        checked.add(step.identity)
    return StudyPlan(study=study, size=size, steps=steps)


def _plan_cell(
    study: Study, size: StudySize, cell: StudyCell, seed: int, store: Path | None, text: str, tasks: Path | None
) -> list[PlannedStep]:
    planned: list[PlannedStep] = []
    for step in study.steps_of(cell):
        if step.data and tasks is None:
            continue
        model = (cell.model if step.do == "finetune" else "") or step.model
        trained = [before for before in planned if before.step.do in TRAINING and before.step.do != "finetune"]
        named = next((before for before in planned if before.step.key == model), None)
        source = named or (trained[-1] if trained and not model and step.do != "pretrain" else None)
        recipe = (cell.recipe if step.do == "pretrain" else "") or step.recipe
        changes = (step.set, size.set.get(step.do), size.set.get(step.name), cell.set.get(step.do))
        settings = [text for part in (*changes, cell.set.get(step.name)) for text in part or ()]
        on_text = step.do in ("pretrain", "distill", "evaluate")
        planned.append(
            PlannedStep(
                step=step,
                cell=cell.name,
                seed=seed if step.seeded else 0,
                settings=tuple(settings),
                recipe=size.recipes.get(recipe, recipe + size.suffix) if recipe else "",
                model_step=source,
                model="" if source else model,
                store=store if on_text else None,
                text=text if on_text else "",
                data=_find_data(step, tasks) if step.data and tasks else None,
            )
        )
    return planned


def _find_data(step: StudyStep, tasks: Path) -> Path:
    """Return the data of a step: in the folder of the tasks, or in a folder of that one."""
    for path in (tasks / step.data, *sorted(tasks.glob(f"*/{step.data}"))):
        if path.exists():
            return path
    raise UserError(f"{tasks}: has no {step.data}, which the step {step.key} needs")


def _check_step(planned: PlannedStep) -> None:
    step = planned.step
    if step.do == "pretrain":
        _check_pretraining(planned)
    elif step.do == "finetune":
        assert planned.data is not None
        task = make_task(step.task)
        finetune_config.load(planned.settings, task, {"readout": {"frozen": step.frozen}} if step.frozen else {})
        TaskFiles.of(planned.data).splits(task)
    elif planned.model and planned.model not in PRESETS:
        identify(planned.model)


def _check_pretraining(planned: PlannedStep) -> None:
    assert planned.store is not None
    recipe = recipes.load(planned.recipe, (*planned.settings, f'data.store="{planned.store}"'))
    if name := recipe.model.get("preset"):
        a = preset(str(name)).architecture.with_values(recipe.axes)
        if (longest := max(phase.max_length for phase in recipe.phases)) > a.max_positions:
            raise UserError(f"sequences of {longest} tokens are longer than the model's {a.max_positions} positions")
    train, held_out = build.open_stores(recipe.data)
    if recipe.data.format.endswith("+nsp") and min(train.documents, held_out.documents) < 2:
        raise UserError(f"{planned.store}: NSP needs two documents to train on and two held out; prepare more text")
    if train.tokens < max(phase.batch_tokens for phase in recipe.phases):
        raise UserError(f"{planned.store}: has {train.tokens:,} tokens to train on, fewer than one batch; prepare more")
    masking = Masking.parse(recipe.data.masking)
    epochs = sum(phase.steps * phase.batch_tokens for phase in recipe.phases) / train.tokens
    varied = any(text.partition("=")[0].endswith("masking") for text in planned.settings)
    if varied and masking and masking.duplicates and epochs <= masking.duplicates and not recipe.run.minutes:
        raise UserError(
            f"data.masking={recipe.data.masking}: the run reads its text {epochs:.1f} times, so its masks never repeat "
            "and it equals a run with dynamic masks; use fewer duplicates, more steps or less text (data.share)"
        )
