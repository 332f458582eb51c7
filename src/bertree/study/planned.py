"""A step of a cell and seed with everything it needs, and its identity: a hash of everything that decides its result.
Its settings, files, model and text are checked before anything is trained.

Cells whose steps have the same identity share them: a pretrained model that several cells fine-tune is trained once,
and nothing that differs is ever shared.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from bertree.comparison.info import find_point
from bertree.config.names import holds_model, resolve_model_path
from bertree.config.settings import as_tree
from bertree.data.formats import Format
from bertree.data.masking import Masking
from bertree.data.store import Store
from bertree.data.stream import check_codes
from bertree.distillation.text_recipe import find_recipe
from bertree.embeddings import sts
from bertree.errors import UserError
from bertree.files.formats import json_text
from bertree.finetuning import config as finetune_config
from bertree.finetuning.store_evaluation import OBJECTIVES
from bertree.interop.folder import read_architecture
from bertree.model.presets import PRESETS
from bertree.objectives.embedding_losses import CROSS, loss_named
from bertree.pretraining import build
from bertree.pretraining import recipe as recipes
from bertree.study.definition import StudyStep
from bertree.study.load import check_names
from bertree.tasks.files import TaskFiles
from bertree.tasks.registry import make_task
from bertree.text.records import read_records

PATHS = ("store", "held_out")  # settings that do not decide a result: the fingerprint of the text does
# Fields of a step that are not part of its identity: `PlannedStep` has what they refer to.
RESOLVED = dict.fromkeys(("name", "recipe", "model", "student", "data", "glove", "device"), "")
HEADLESS_TASKS = ("perplexity", "lambada", "questions", "cloze", "attribution")  # that need no fine-tuned head


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """A step of a cell and seed with everything it needs."""

    step: StudyStep
    cell: str
    seed: int
    settings: tuple[str, ...]
    recipe: str  # pretrain, info, time
    model: str  # a preset or a folder, if no step makes the model
    student: str  # distill: a preset or a folder, if no step makes the student
    model_step: "PlannedStep | None"  # the step that makes the model
    student_step: "PlannedStep | None"
    members: "tuple[PlannedStep, ...]" = ()  # ensemble: the steps whose models it joins
    chosen_by: "PlannedStep | None" = None  # the step of the first seed, which chooses the settings
    store: Path | None
    text: str  # fingerprint of the store, if the step reads it
    data: tuple[Path, ...]
    glove: Path | None
    tokenizer: Path | None = field(default=None, compare=False)  # for a preset, which has none of its own
    contents: tuple[str, ...]  # hashes of the data, of the word vectors and of the folders of models
    device: str = field(default="", compare=False)  # on which the study runs
    median: bool = field(default=False, compare=False)  # of fine-tuning seeds, instead of the mean

    @cached_property
    def identity(self) -> str:
        """A hash of everything that decides the result."""
        step = as_tree(self.step) | RESOLVED | {"set": [], "more_data": []}
        settings: object = list(self.settings)
        if self.step.do == "pretrain":
            resolved = as_tree(recipes.load(self.recipe, self.settings))
            settings = resolved | {"name": "", "note": "", "data": {**resolved["data"], **dict.fromkeys(PATHS, "")}}
        parts = {
            "step": step,
            "settings": settings,
            "recipe": "" if self.step.do == "pretrain" else self.recipe,
            "seed": self.seed if self.step.seeded else 0,
            "text": self.text,
            "data": list(self.contents),
            "model": self.model_step.identity if self.model_step else _unless_folder(self.model),
            "student": self.student_step.identity if self.student_step else _unless_folder(self.student),
            "members": [member.identity for member in self.members],
        }
        return hashlib.sha256(json_text(parts).encode()).hexdigest()[:12]

    @property
    def folder(self) -> str:
        """The step's folder in the folder of the study."""
        return f"steps/{self.step.key}-{self.identity}"

    @property
    def sources(self) -> "list[PlannedStep]":
        """The steps that make its models."""
        return [step for step in (self.model_step, self.student_step, *self.members) if step is not None]

    @property
    def needs(self) -> "list[PlannedStep]":
        """The steps that must be done before it."""
        return [*self.sources, *([self.chosen_by] if self.chosen_by else [])]


def is_folder(model: str) -> bool:
    """Return whether a name is that of a model's folder, or of the bundled model."""
    return bool(model) and model not in PRESETS and holds_model(resolve_model_path(model))


def _unless_folder(model: str) -> str:
    return "" if is_folder(model) else model  # a folder is recognized by its content


def check_step(planned: PlannedStep, brief: bool = False) -> None:
    """Raise an error if a step cannot be computed. `brief`: a short trial, whose masks need not repeat."""
    step = planned.step
    if planned.model and planned.model not in PRESETS and not planned.members:  # those have the name of their step
        if not (path := resolve_model_path(planned.model)).exists():
            raise UserError(f"{planned.model}: no such folder or preset")
        read_architecture(path)
    for name in {planned.model, planned.student} & PRESETS.keys():
        if Path(name).exists():
            raise UserError(f"{name}: is a preset here, but a file or folder of this name hides it; rename that")
    if planned.model in PRESETS and planned.tokenizer is None and step.do not in ("info", "plan"):
        raise UserError(f"{planned.model}: is a preset, which has no tokenizer; give a token store with `store`")
    check_names(step.objectives, OBJECTIVES, "objectives")
    if step.do == "pretrain" or step.measure == "training":
        _check_pretraining(planned, brief)
    elif step.do == "finetune" or (step.do == "distill" and step.task):
        _check_task(planned)
    elif step.do == "distill":
        find_recipe(planned.student, {"data.store": str(planned.store)}, planned.settings)
    elif step.do == "embeddings" and step.loss != CROSS:
        loss_named(step.loss)
    elif step.do == "sts":
        sts.find(planned.data)
    elif step.do == "info":
        axes(planned)
    elif step.task == "attribution":
        _check_attribution(planned)
    elif step.task and step.task not in HEADLESS_TASKS:
        make_task(step.task)


def axes(planned: PlannedStep) -> list[str]:
    """Check the axes that a step `info` changes, and return them."""
    if planned.recipe:
        recipe = recipes.load(planned.recipe, planned.settings)
        return [f"{key}={str(value).lower()}" for key, value in recipe.axes.items()]
    if planned.model:
        find_point(planned.model, planned.settings)
    return list(planned.settings)


def _check_task(planned: PlannedStep) -> None:
    step = planned.step
    task = make_task(step.task)
    for choice in step.choose or ("",):
        settings = [*planned.settings, *choice.split()]
        if step.do == "distill":
            finetune_config.load_task_distill(settings, task)
        else:
            finetune_config.load(settings, task, {"readout": {"frozen": step.frozen}} if step.frozen else {})
    TaskFiles.of(planned.data[0]).splits(task)


def _check_attribution(planned: PlannedStep) -> None:
    """Check that the store of a model to train has control codes, and given texts if addresses are attributed."""
    (_, record), *_ = read_records(planned.data[0])
    if planned.model_step is None or planned.store is None:
        return
    if not (store := Store.open(planned.store)).controls:
        raise UserError(f"{planned.store}: has no control codes; make it with `bertree prepare --control`")
    if "url" in record and not store.has_given:
        raise UserError(f"{planned.store}: has no texts after its codes; make it with `bertree prepare --given url`")


def _check_pretraining(planned: PlannedStep, brief: bool) -> None:
    assert planned.store is not None
    if not planned.recipe:
        return
    for choice in planned.step.choose or ("",):
        recipe = recipes.load(planned.recipe, (*planned.settings, *choice.split(), f'data.store="{planned.store}"'))
    if recipe.model.get("preset"):
        a = recipe.with_axes(recipe.base_architecture(), recipe.axes)
        if (longest := max(phase.max_length for phase in recipe.phases)) > a.max_positions:
            raise UserError(f"sequences of {longest} tokens are longer than the model's {a.max_positions} positions")
    train, held_out = build.open_stores(recipe.data)
    for phase in () if recipe.data.in_lanes else recipe.phases:
        check_codes(train, Format.parse(recipe.data.format), phase.max_length)
    if recipe.data.format.endswith("+nsp") and min(train.documents, held_out.documents) < 2:
        raise UserError(f"{planned.store}: NSP needs two documents to train on and two held out; prepare more text")
    if train.tokens < max(phase.batch_tokens for phase in recipe.phases):
        raise UserError(f"{planned.store}: has {train.tokens:,} tokens to train on, fewer than one batch; prepare more")
    masking = Masking.parse(recipe.data.masking)
    epochs = sum(phase.steps * phase.batch_tokens for phase in recipe.phases) / train.tokens
    compares_masking = any(text.partition("=")[0].endswith("masking") for text in planned.settings)
    never_repeats = masking and masking.duplicates and epochs <= masking.duplicates
    if compares_masking and never_repeats and not brief and not recipe.run.minutes:
        raise UserError(
            f"data.masking={recipe.data.masking}: the run reads its text {epochs:.1f} times, so its masks never repeat "
            "and it equals a run with dynamic masks; use fewer duplicates, more steps or less text (data.share)"
        )
