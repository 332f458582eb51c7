"""A fine-tuned model that teaches its task: whether it can, in which order it names the classes, what it says.

Teacher and student need not read alike. Where a head answers about whole texts (sequence, choice) each reads its own
tokens, and their scores meet by example; where it answers about tokens both must read the same ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertree.config.default_model import located
from bertree.errors import UserError
from bertree.finetuning.tuner import EncodedSplit
from bertree.inference.load import Model, load
from bertree.interop.weights import digest
from bertree.model.network import TOKEN_HEADS
from bertree.tasks.logits import Autocast, effective_max_length, logits
from bertree.tasks.registry import NAMELESS
from bertree.tasks.task import Logits, Task, Unit
from bertree.tasks.text import TextTask
from bertree.text.identity import tokenizer_hash
from bertree.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Teacher:
    """A model that was fine-tuned for a task, and its classes by the names it gives them."""

    name: str
    model: Model
    labels: tuple[str, ...]

    @classmethod
    def of(cls, name: str, task: Task[Any]) -> "Teacher":
        """Load it; refused where it was not fine-tuned for such a task."""
        if not located(name).is_dir():
            raise UserError(f"{name}: no such folder; a teacher is the model/ folder that bertree finetune has written")
        model = load(name)
        do = f"fine-tune it first: bertree finetune {name} --task {task.name} ..."
        if task.head not in model.classes:
            raise UserError(f"{name}: has no '{task.head}' head, so it cannot teach {task.name}; {do}")
        if model.network.crf is not None:
            raise UserError(
                f"{name}: has a CRF, which scores whole sequences of tags and not single ones; "
                "teach with a model that was fine-tuned without one (crf=false)"
            )
        if model.tokenizer is None:
            raise UserError(f"{name}: has no tokenizer, so it cannot read the task's texts; put its files there")
        try:
            return cls(name, model, model.task_named(task.name).labels)
        except UserError as error:
            raise UserError(f"{name}: {error}; {do}") from None

    def labels_for(self, task: Task[Any], examples: Sequence[Any]) -> Sequence[str]:
        """The task's labels: those of the training examples or, where they do not have all of them, the teacher's."""
        try:
            found = task.labels_in(examples)
        except UserError:  # no gold answer, or always the same: what there is to tell apart the teacher knows
            return task.labels or self.labels
        if task.regression or not found or self._nameless(found) or set(found) == set(self.labels):
            return found
        if set(found) < set(self.labels):
            return self.labels
        unknown = next(label for label in found if label not in self.labels)
        raise UserError(
            f"{self.name}: does not know the label '{unknown}' of the training examples, only "
            f"{', '.join(self.labels[:20])}; fine-tune it on this task first: bertree finetune {self.name} "
            f"--task {task.name} ..."
        )

    def _nameless(self, labels: Sequence[str]) -> bool:
        """Whether its classes have numbers for names, and are as many as these."""
        return len(labels) == len(self.labels) and all(map(NAMELESS.fullmatch, self.labels))

    def order(self, task: Task[Any]) -> list[int] | None:
        """Where its class is that the task names first, second ...; None: just there."""
        if set(task.labels) != set(self.labels):
            return None
        found = [self.labels.index(label) for label in task.labels]
        return found if found != list(range(len(found))) else None

    @property
    def tokenizer(self) -> Tokenizer:
        """What it reads with."""
        return self.model.needed_tokenizer

    @cached_property
    def digest(self) -> str:
        """What tells its weights from others."""
        return digest(Path(self.name))

    def longest(self, task: Task[Any]) -> int:
        """Tokens it reads of a text: as many as it was fine-tuned with."""
        usual = self.model.task.get("max_length") or task.max_length
        return effective_max_length(0, usual, self.model.architecture.max_positions)

    def check(self, task: Task[Any], student: str, tokenizer: Tokenizer, max_length: int) -> bool:
        """Whether it can read the student's very units. Refused where it must and cannot."""
        same = tokenizer is self.tokenizer or tokenizer_hash(tokenizer) == tokenizer_hash(self.tokenizer)
        if task.head not in TOKEN_HEADS:
            return same and max_length == self.longest(task)
        most = self.model.architecture.max_positions
        if not same:
            raise UserError(
                f"{student}: reads with another tokenizer than {self.name}, and {task.name} asks about single tokens, "
                "so their scores do not meet; name a student with the teacher's tokenizer (half, or a preset)"
            )
        if max_length > most:
            raise UserError(
                f"max_length {max_length}: the teacher has only {most} positions, and {task.name} asks about single "
                f"tokens, so both must read the same windows; set max_length={most}"
            )
        return True

    def units(self, task: Task[Any], part: EncodedSplit[Any], mask: str) -> list[Unit]:
        """What it reads of a split in its own tokens, in the order of the student's units. `mask` is how masks are
        spelled in the examples."""
        assert task.head not in TOKEN_HEADS
        own = self.tokenizer.special.get("mask") or self.tokenizer.special.get("unk") or ""
        examples = part.examples
        if mask and mask != own and isinstance(task, TextTask):
            pairs = [(e, None if e.pair is None else e.pair.replace(mask, own)) for e in examples]
            examples = [e._replace(text=e.text.replace(mask, own), pair=pair) for e, pair in pairs]
        found, _ = task.units(examples, self.tokenizer, self.longest(task))
        by_example = {unit.example: unit for unit in found}
        return [by_example[unit.example] for unit in part.units]

    def says(
        self, task: Task[Any], units: Sequence[Unit], autocast: Autocast, advance: Callable[[int], None]
    ) -> list[Logits]:
        """Its scores, the classes in the task's order."""
        found = logits(self.model.network, task.head, units, autocast, advance)
        order = self.order(task)
        if order is not None:
            found = [rows[:, order] for rows in found]
        if not all(np.isfinite(rows).all() for rows in found):
            raise UserError(f"{self.name}: gives scores that are not finite, so there is nothing to learn from it")
        return found
