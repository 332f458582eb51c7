"""A step of a cell and seed with everything it needs, and its identity: a hash of everything that decides its result.

Cells whose steps have the same identity share them: a pretrained model that several cells fine-tune is trained once,
and nothing that differs is ever shared.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from bertree.config.settings import as_tree
from bertree.data.store_files import TOKENIZER
from bertree.files.formats import json_text
from bertree.model.presets import PRESETS
from bertree.pretraining import recipe as recipes
from bertree.study.definition import StudyStep

PATHS = ("store", "held_out")  # settings that do not decide a result: the fingerprint of the text does
# Fields of a step that are not part of its identity: `PlannedStep` has what they refer to.
RESOLVED = dict.fromkeys(("name", "recipe", "model", "student", "data", "glove", "device"), "")


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
    contents: tuple[str, ...]  # hashes of the data and of the word vectors
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
            "model": self.model_step.identity if self.model_step else self.model,
            "student": self.student_step.identity if self.student_step else self.student,
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

    @property
    def tokenizer(self) -> Path | None:
        """The store's tokenizer, for a preset, which has none of its own."""
        return self.store / TOKENIZER if self.store is not None and self.model in PRESETS else None
