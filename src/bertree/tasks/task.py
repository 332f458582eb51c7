"""What a task is: files -> examples -> units an encoder reads; logits -> predictions -> scores.

A task never sees the network. It turns an example into units (a text longer than the model's positions into
several), says with which head they are read, and gets back what that head said about each unit. So every task
runs through the same packed batches, the same loop and the same verbs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.files import Json
from bertree.text.tokenizer import Encoded, Tokenizer

Example = TypeVar("Example")
Logits = NDArray[np.float32]
Splits = dict[str, tuple[Path, ...]]


MOST_LABELS = 10_000


def check_label_count(labels: Sequence[str], source: object) -> None:
    """Refuse a column with so many different values that it is hardly one of labels."""
    if len(labels) > MOST_LABELS:
        raise UserError(
            f"{source}: has {len(labels):,} different labels, of which at most {MOST_LABELS:,} can be learned; "
            "is --label the right column?"
        )


class Unit(NamedTuple):
    """What a head answers at once: one sequence, the options of one question, or texts whose vectors are compared.

    `answer` is a class (sequence, choice), a score (sequence of a regression), a class for each chosen token with
    -100 where none is asked (token), or the first and last token as indices into `chosen` (span). Of vectors: a
    class, a score from 0 to 1, or a number for each text that equal texts share. None: not known.
    """

    example: int  # the example it is of, or a part of
    sequences: tuple[Encoded, ...]
    chosen: Sequence[int] | None = None  # for `token` and `span`: which tokens of its one sequence the head reads
    answer: Any = None
    source: Any = None  # what the task's own `predict` needs to read the answer back; nobody else looks at it
    soft: Logits | None = None  # what a teacher says of it, where one was asked: a row for each row of the head


class Truncation(NamedTuple):
    """What did not fit."""

    examples: int = 0
    tokens: int = 0

    def message(self, name: str, count: int, longest: int) -> str:
        """For people, of a split of so many examples."""
        return (
            f"{name}: {self.examples:,} of {count:,} examples do not fit into {longest} tokens and lose "
            f"{self.tokens:,} of theirs; a larger max_length reads more"
        )


@dataclass(frozen=True)
class Task(ABC, Generic[Example]):
    """One task. Frozen: what is learned from the data (labels, a threshold) makes a new task."""

    name: str
    labels: tuple[str, ...] = ()  # names of the head's classes, in their order; none for span, choice, regression
    max_length: int = 128  # tokens a sequence, unless told otherwise
    about: str = ""  # what is predicted, in a few words, for help texts

    regression = False  # whether the head's one score is a number to be met
    head = "sequence"  # a name of HEAD_KINDS (objectives/supervised.py)
    kind = "classification"  # of problem, for people
    metric = "accuracy"  # the score that counts, a key of `score`; higher is better

    @property
    def scored_head(self) -> str:
        """The head whose answers are scored, where it is not the one that is trained."""
        return self.head

    @property
    def classes(self) -> int:
        """How many scores the head gives for what it reads."""
        return len(self.labels)

    @abstractmethod
    def splits(self, data: Path) -> Splits:
        """The files of each split in a folder: train, dev, test, and more where the task has them (dev-mismatched)."""

    @abstractmethod
    def read(self, paths: Sequence[Path]) -> list[Example]:
        """The examples of a split, checked. A gold answer that is not there (test) is None."""

    @abstractmethod
    def parse(self, record: str | Json, where: str = "input") -> Example:
        """Return one example without a gold answer, from a line of text or an object: an input of `bertree predict`.

        `where` is what messages begin with: the file and the line."""

    def parse_all(self, record: str | Json, where: str = "input") -> list[Example]:
        """As `parse`, for a record that may hold several examples: a passage with its questions."""
        return [self.parse(record, where)]

    def read_unlabelled(self, path: Path) -> Iterable[Example] | None:
        """Return the examples of a file in the task's own layout, without gold answers, to predict them.

        None if it is in no such layout: then each of its records or lines is parsed."""
        return None

    def check_training(self, examples: Sequence[Example]) -> None:
        """Refuse what cannot be learned from, before training. What is only scored may be less than perfect."""

    def group(self, example: Example) -> str | None:
        """What an example shares with others so that all of them belong on one side when a part is held out (the
        passage that several questions are about); None: it stands alone."""
        return None

    @abstractmethod
    def units(
        self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int
    ) -> tuple[list[Unit], Truncation]:
        """What the encoder reads, in order of the examples, and what did not fit."""

    @abstractmethod
    def predict(self, examples: Sequence[Example], units: Sequence[Unit], logits: Sequence[Logits]) -> list[Json]:
        """One readable line per example: its text, `gold` where known, `predicted`, `score`.

        `logits` has one array per unit: a row of classes for its sequence, for each chosen token (token, span), or
        for each option (choice). A CRF's array holds 1 at the class it decoded, 0 elsewhere."""

    @abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[Json]) -> dict[str, float]:
        """Figures for a split with gold answers, the task's `metric` among them, as shares (not percent)."""

    def prediction_text(self, line: Json) -> str:
        """Return a prediction for people, as one line or more, with tabs between columns."""
        predicted = line["predicted"]
        text = "\t".join(" ".join(str(line[key]).split()) for key in ("text", "pair") if line.get(key) is not None)
        if isinstance(predicted, float):
            return f"{predicted:.3f}\t{text}"
        return f"{predicted}\t{line['score']:.3f}\t{text}"

    def labels_in(self, examples: Sequence[Example]) -> tuple[str, ...]:
        """The labels of a training split, where the task does not know them beforehand."""
        return self.labels

    def with_labels(self, labels: Sequence[str]) -> Self:
        """The same task with these classes."""
        return replace(self, labels=tuple(labels))

    def tune(self, examples: Sequence[Example], predictions: Sequence[Json]) -> Self:
        """The same task with what is set by looking at a dev split: SQuAD 2.0's threshold."""
        return self

    def apply_tuning(self, predictions: Sequence[Json]) -> list[Json]:
        """Predictions of the task before it was tuned, as it makes them now."""
        return list(predictions)

    def settings(self) -> Json:
        """Plain values a model folder must remember to predict as it was trained."""
        return {}

    def submission(self, examples: Sequence[Example], predictions: Sequence[Json]) -> dict[str, str]:
        """Names and texts of the files the task's server takes."""
        raise UserError(f"{self.name}: there is no submission format for this task")
