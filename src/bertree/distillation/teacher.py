"""A fine-tuned teacher of a task: whether it fits the task, the order of its classes, its scores.

Teacher and student may have different tokenizers if the head scores whole texts (sequence, choice): each reads its own
tokens, and the scores are matched by example. If the head scores tokens, both must read the same tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertree.config.default_model import resolve_model_path
from bertree.errors import UserError
from bertree.finetuning.tuner import EncodedSplit
from bertree.inference.load import Model, load
from bertree.interop.weights import weights_hash
from bertree.objectives.supervised import HEAD_KINDS
from bertree.tasks.logits import Autocast, effective_max_length, logits
from bertree.tasks.registry import NAMELESS, with_model_layout
from bertree.tasks.task import Logits, Task, Unit
from bertree.tasks.text import TextTask
from bertree.text.identity import tokenizer_hash
from bertree.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Teacher:
    """A model that was fine-tuned for a task, with the names of its classes."""

    name: str
    model: Model
    labels: tuple[str, ...]

    @classmethod
    def of(cls, name: str, task: Task[Any]) -> "Teacher":
        """Load a teacher; refuse a model that was not fine-tuned for such a task."""
        if not resolve_model_path(name).is_dir():
            raise UserError(f"{name}: no such folder; a teacher is the model/ folder that bertree finetune has written")
        model = load(name)
        if "beam-span" in model.classes and task.head == "span":
            raise UserError(
                f"{name}: scores the end of an answer given its start (head=beam), so it has no score for each end; "
                "teach with a model that was fine-tuned with head=span"
            )
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
            return cls(name, model, model.find_task(task.name).labels)
        except UserError as error:
            raise UserError(f"{name}: {error}; {do}") from None

    def labels_for(self, task: Task[Any], examples: Sequence[Any]) -> Sequence[str]:
        """Return the task's labels: those of the training examples or, if some are missing there, the teacher's."""
        try:
            found = task.labels_in(examples)
        except UserError:  # no labels, or only one: the teacher knows the classes
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
        """Return whether its classes are as many as these and have only numbers for names."""
        return len(labels) == len(self.labels) and all(map(NAMELESS.fullmatch, self.labels))

    def order(self, task: Task[Any]) -> list[int] | None:
        """Return the teacher's column for each class of the task; None if the order is the same."""
        if set(task.labels) != set(self.labels):
            return None
        found = [self.labels.index(label) for label in task.labels]
        return found if found != list(range(len(found))) else None

    @property
    def tokenizer(self) -> Tokenizer:
        """The teacher's tokenizer."""
        return self.model.required_tokenizer

    @cached_property
    def digest(self) -> str:
        """SHA-256 of its weight files."""
        return weights_hash(Path(self.name))

    def longest(self, task: Task[Any]) -> int:
        """Return the maximum length it was fine-tuned with."""
        usual = self.model.task.get("max_length") or task.max_length
        return effective_max_length(0, usual, self.model.architecture.longest_input)

    def check(self, task: Task[Any], student: str, tokenizer: Tokenizer, max_length: int) -> bool:
        """Return whether it can read the student's units; refuse two models that must share units and cannot."""
        same = tokenizer is self.tokenizer or tokenizer_hash(tokenizer) == tokenizer_hash(self.tokenizer)
        if not HEAD_KINDS[task.head].reads_tokens:
            return same and max_length == self.longest(task) and task == with_model_layout(task, self.model.task)
        most = self.model.architecture.longest_input
        if not same:
            raise UserError(
                f"{student}: reads with another tokenizer than {self.name}, and {task.name} scores single tokens, "
                "so their scores cannot be matched; name a student with the teacher's tokenizer (half, or a preset)"
            )
        if max_length > most:
            raise UserError(
                f"max_length {max_length}: the teacher has only {most} positions, and {task.name} scores single "
                f"tokens, so both must read the same windows; set max_length={most}"
            )
        return True

    def units(self, task: Task[Any], part: EncodedSplit[Any], mask: str) -> list[Unit]:
        """Encode a split with its own tokenizer, in the order of the student's units. `mask` is the mask token in the
        examples."""
        assert not HEAD_KINDS[task.head].reads_tokens
        own = self.tokenizer.special.get("mask") or self.tokenizer.special.get("unk") or ""
        examples = part.examples
        if mask and mask != own and isinstance(task, TextTask):
            pairs = [(e, None if e.pair is None else e.pair.replace(mask, own)) for e in examples]
            examples = [e._replace(text=e.text.replace(mask, own), pair=pair) for e, pair in pairs]
        found, _ = with_model_layout(task, self.model.task).units(examples, self.tokenizer, self.longest(task))
        by_example = {unit.example: unit for unit in found}
        return [by_example[unit.example] for unit in part.units]

    def logits_of(
        self, task: Task[Any], units: Sequence[Unit], autocast: Autocast, advance: Callable[[int], None]
    ) -> list[Logits]:
        """Return its logits, with the classes in the task's order."""
        found = logits(self.model.network, task.head, units, autocast, advance)
        order = self.order(task)
        if order is not None:
            found = [rows[:, order] for rows in found]
        if not all(np.isfinite(rows).all() for rows in found):
            raise UserError(f"{self.name}: gives scores that are not finite, so there is nothing to learn from it")
        return found
