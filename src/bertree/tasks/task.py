"""The interface of a task: files -> examples -> units for an encoder; logits -> predictions -> scores.

A task never sees the network. It turns an example into units (a text longer than the model's positions into several),
names the head that reads them, and gets the head's logits back. So all tasks share batching, training and commands.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from bertree.config import settings
from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.tasks.metrics import Interval, Statistic, interval, score_statistics
from bertree.text.tokenizer import Encoded, Tokenizer

Example = TypeVar("Example")
Logits = NDArray[np.float32]
Splits = dict[str, tuple[Path, ...]]
MAX_LABELS = 10_000
INPUT_FIELDS = ("text", "pair", "texts", "words", "context", "question", "options")  # of the kinds of examples
INTERNAL = {"setting": False}  # metadata of a plain field that is not a setting, in the class that declares it first


def check_label_count(labels: Sequence[str], source: object) -> None:
    """Raise an error if a column has so many different values that it can hardly hold labels."""
    if len(labels) > MAX_LABELS:
        raise UserError(
            f"{source}: has {len(labels):,} different labels, but at most {MAX_LABELS:,} are supported; "
            "is `label` the right column?"
        )


class Unit(NamedTuple):
    """The input of a head: one sequence, a pair in both orders, the options of one question, or texts whose vectors are
    compared.

    `answer` is a class (sequence, choice), a number (regression), a class for each chosen token, -100 if it has none
    (token), or the first and last token as indices into `chosen` (span). For vectors: a class, a number from 0 to 1,
    or a number for each text that equal texts share. None: not known."""

    example: int  # number of its example
    sequences: tuple[Encoded, ...]
    # For `token`, `span` and `beam-span`: the tokens of its sequence that the head reads.
    chosen: Sequence[int] | None = None
    answer: Any = None
    source: Any = None  # private data of the task for `predict`
    teacher_logits: Logits | None = None  # if there is a teacher: a row for each row of the head


class Truncation(NamedTuple):
    """How many examples were truncated, and the tokens they lost."""

    examples: int = 0
    tokens: int = 0

    def message(self, name: str, count: int, longest: int) -> str:
        """Return a message about a split of `count` examples."""
        return (
            f"{name}: {self.examples:,} of {count:,} examples do not fit into {longest} tokens and lose "
            f"{self.tokens:,} of theirs; a larger max_length reads more"
        )


@dataclass(frozen=True)
class Task(ABC, Generic[Example]):
    """A task. It is frozen: labels or a threshold that are learned from data give a new task.

    Fields of plain types are settings (`stride=64`) unless they are marked as internal.
    """

    name: str = field(metadata=INTERNAL)
    labels: tuple[str, ...] = ()  # names of the head's classes, in order; empty for span, choice, regression
    max_length: int = field(default=128, metadata=INTERNAL)  # default length of a sequence in tokens
    about: str = field(default="", metadata=INTERNAL)  # what is predicted, in a few words, for help texts

    regression = False  # True if the head's one output is a number
    head = "sequence"  # a name of HEAD_KINDS (objectives/supervised.py)
    kind = "classification"  # of problem, for display
    metric = "accuracy"  # a key of `score`; higher is better
    layout: ClassVar[tuple[str, ...]] = ()  # settings that say how a model reads its input; its folder stores them

    @property
    def scored_head(self) -> str:
        """The head whose outputs are scored, if it is not the one that is trained."""
        return self.head

    @property
    def classes(self) -> int:
        """The number of outputs of the head for what it reads."""
        return len(self.labels)

    @abstractmethod
    def splits(self, data: Path) -> Splits:
        """Return the files of each split in a folder: train, dev, test, and others of the task (dev-mismatched)."""

    @abstractmethod
    def read(self, paths: Sequence[Path]) -> list[Example]:
        """Read the examples of a split. A gold answer that is missing (test) is None."""

    @abstractmethod
    def parse(self, record: str | Json, where: str = "input") -> Example:
        """Return one example without a gold answer, from a line of text or an object: an input of `bertree predict`.

        `where` is what messages begin with: the file and the line."""

    def parse_all(self, record: str | Json, where: str = "input") -> list[Example]:
        """As `parse`, for a record that may hold several examples: a passage with its questions."""
        return [self.parse(record, where)]

    def read_unlabeled(self, path: Path) -> Iterable[Example] | None:
        """Return the examples of a file in the task's own layout, without gold answers, to predict them.

        None if it is in no such layout: then each of its records or lines is parsed."""
        return None

    def check_training(self, examples: Sequence[Example]) -> None:
        """Raise an error about examples that cannot be trained on. Examples that are only scored need not pass."""

    def input_of(self, example: Example) -> Hashable:
        """Return what the model reads of an example, to find examples that are trained on and scored; None: unknown."""
        values = [getattr(example, name, None) for name in INPUT_FIELDS]
        texts = tuple(tuple(value) if isinstance(value, list) else value for value in values)
        return texts if any(value is not None for value in values) else None

    def group(self, example: Example) -> str | None:
        """Return what an example shares with others that must stay on the same side when examples are held out (the
        passage that several questions are about); None: nothing."""
        return None

    @abstractmethod
    def units(
        self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int
    ) -> tuple[list[Unit], Truncation]:
        """Return the units of the examples, in their order, and how much was truncated."""

    @abstractmethod
    def predict(self, examples: Sequence[Example], units: Sequence[Unit], logits: Sequence[Logits]) -> list[Json]:
        """Return one record per example: its text, `gold` if known, `predicted`, `score`.

        `logits` has one array per unit: a row of classes for its sequence, for each chosen token (token, span), or
        for each option (choice). A CRF's array holds 1 at the class it decoded, 0 elsewhere."""

    @abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[Json]) -> dict[str, float]:
        """Return the scores of a split with gold answers, the task's `metric` among them, from 0 to 1."""

    def statistics(self, examples: Sequence[Example], predictions: Sequence[Json]) -> dict[str, Statistic]:
        """Return each score as a function of how often every example is drawn."""
        labeled = [pair for pair in zip(examples, predictions, strict=True) if pair[1].get("gold") is not None]
        return score_statistics(self.score, *zip(*labeled, strict=True)) if labeled else {}

    def intervals(self, examples: Sequence[Example], predictions: Sequence[Json]) -> dict[str, Interval]:
        """Return the 95 % confidence interval of each score."""
        return {name: interval(statistic) for name, statistic in self.statistics(examples, predictions).items()}

    def error(self, line: Json) -> float:
        """Return how wrong a prediction with a gold answer is: 0 is right, 1 wrong; of numbers, the distance."""
        gold, predicted = line["gold"], line["predicted"]
        return abs(predicted - gold) if isinstance(predicted, float) else float(predicted != gold)

    def confidence(self, line: Json) -> float | None:
        """Return the probability that a model gives to its prediction; None: it gives none."""
        return None if isinstance(line["predicted"], float) else line.get("score")

    def prediction_text(self, line: Json) -> str:
        """Return a readable prediction: one line or more, with tabs between columns."""
        predicted = line["predicted"]
        text = "\t".join(" ".join(str(line[key]).split()) for key in ("text", "pair") if line.get(key) is not None)
        if isinstance(predicted, float):
            return f"{predicted:.3f}\t{text}"
        return f"{predicted}\t{line['score']:.3f}\t{text}"

    def labels_in(self, examples: Sequence[Example]) -> tuple[str, ...]:
        """Return the labels of the training examples, unless the task has fixed labels."""
        return self.labels

    def with_labels(self, labels: Sequence[str]) -> Self:
        """Return the task with these labels."""
        return replace(self, labels=tuple(labels))

    def for_heads(self, heads: Mapping[str, int]) -> Self:
        """Return the task with the head that a model has, where it can be learned by several."""
        return self

    def for_direction(self, direction: str) -> Self:
        """Return the task with the layout for models whose tokens see only those read before them: from left to right
        (forward), from right to left (backward), or each way apart (both)."""
        return self

    def tune(self, examples: Sequence[Example], predictions: Sequence[Json]) -> Self:
        """Return the task with what is chosen on a dev split: the threshold of SQuAD 2.0."""
        return self

    def apply_tuning(self, predictions: Sequence[Json]) -> list[Json]:
        """Return predictions from before `tune` as the tuned task would give them."""
        return list(predictions)

    def settings(self) -> Json:
        """Return the settings that a model folder stores, so that it predicts as it was trained."""
        return {}

    def submission(self, examples: Sequence[Example], predictions: Sequence[Json]) -> dict[str, str]:
        """Return names and contents of the files that the task's evaluation server takes."""
        raise UserError(f"{self.name}: there is no submission format for this task")


def task_options(task: Task[Any]) -> list[str]:
    """Return the names of the settings of a task."""
    hints = get_type_hints(type(task))
    plain = (int, float, bool, str)
    declared = [kind.__dataclass_fields__.values() for kind in type(task).__mro__ if is_dataclass(kind)]
    internal = {field.name for kind_fields in declared for field in kind_fields if field.metadata == INTERNAL}
    return [field.name for field in fields(task) if hints[field.name] in plain and field.name not in internal]


def configure_task(task: Task[Any], options: Json, where: str = "settings") -> Task[Any]:
    """Return the task with these settings; `where` they come from is named in messages."""
    hints = get_type_hints(type(task))
    for key, value in options.items():
        if key not in task_options(task):
            raise UserError(f"{where}: task.{key}: is not a setting of {task.name}, {suggest(key, task_options(task))}")
        figures = getattr(task, "figures", ())
        if key == "metric" and value not in figures:
            raise UserError(
                f"{where}: metric '{value}': is not a figure of {task.name}, {suggest(str(value), figures)}"
            )
        checked = settings.read(hints[key], value, where, f"task.{key}")
        try:
            task = replace(task, **{key: checked})
        except UserError as error:  # from the task's own checks
            raise UserError(f"{where}: {error}") from None
    return task
