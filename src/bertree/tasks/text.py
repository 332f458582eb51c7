"""A text or a pair of texts -> a class or a number: the tasks of GLUE and the user's own data.

All of them are one class: differences between releases are in `Columns`, differences between tasks in the fields
here. If a pair is too long, its longer text is truncated first.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertree.config.settings import setting
from bertree.console import note
from bertree.errors import UserError, suggest
from bertree.errors.arguments import methods_check_arguments
from bertree.files.formats import Json, read_text
from bertree.tasks import metrics
from bertree.tasks.columns import Columns, RawRow, TextExample
from bertree.tasks.files import WORDS, find_splits, split_folders, split_of_folder
from bertree.tasks.metrics import Statistic, correlation_statistic, label_statistics
from bertree.tasks.task import INTERNAL, Logits, Splits, Task, Truncation, Unit, check_label_count
from bertree.text.sources import FORMATS
from bertree.text.tables import read_table
from bertree.text.tokenizer import Tokenizer

METRICS: dict[str, Callable[[Sequence[Any], Sequence[Any]], float]] = {
    "accuracy": metrics.accuracy,
    "f1": metrics.f1,
    "macro_f1": metrics.macro_f1,
    "matthews": metrics.matthews,
    "pearson": metrics.pearson,
    "spearman": metrics.spearman,
}
LABEL = "label"  # default label column of the user's own data
OWN_MAX_LENGTH = 512  # default length of the user's own texts; shorter texts cost no more
TOKENIZE_AT_ONCE = 2048  # texts tokenized at once: the library needs far more memory than their ids


@methods_check_arguments
@dataclass(frozen=True)
class TextTask(Task[TextExample]):
    """Classification or regression of texts or pairs."""

    columns: Columns = field(default_factory=Columns)
    regression: bool = field(default=False, metadata=INTERNAL)
    bounds: tuple[float, float] = (-math.inf, math.inf)  # of a regression's gold scores
    figures: tuple[str, ...] = ("accuracy", "macro_f1", "matthews")
    metric: str = setting("accuracy", "the figure by which the best evaluation is chosen")
    numbered: bool = field(default=False, metadata=INTERNAL)  # a file may number the classes
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of the classes
    missing: tuple[str, ...] = ("",)  # contents of the label column if there is no gold answer
    blanked: tuple[str, ...] = ()  # strings in the text that are replaced by spaces
    folders: tuple[str, ...] = ()  # other names of a folder of this task
    prefixes: tuple[str, ...] = ()  # beginnings of released file names before the split's name
    words: Mapping[str, str] = field(default_factory=lambda: dict(WORDS))  # beginning of a file name -> split
    symmetric: bool = field(default=False, metadata=INTERNAL)  # the order of a pair has no meaning
    both_orders: bool = setting(
        False, "a pair is read in two orders, and the hidden states that the head reads are added"
    )
    # A split may be a folder with one folder of .txt files per class.
    label_folders: bool = field(default=False, metadata=INTERNAL)

    layout = ("both_orders",)

    @property
    def classes(self) -> int:
        return 1 if self.regression else len(self.labels)

    def for_direction(self, direction: str) -> Self:
        return replace(self, both_orders=self.symmetric)

    def splits(self, data: Path) -> Splits:
        names = (self.name, *self.folders)
        if self.label_folders:
            if self._holds_classes(data):
                return {split_of_folder(data): (data,)}
            folders = split_folders(data, names)
            labeled: Splits = {split: (folder,) for split, folder in folders.items() if self._holds_classes(folder)}
            if labeled:
                return labeled
        return find_splits(data, names, self.prefixes, self.words, (*FORMATS, ".json"))

    def _holds_classes(self, folder: Path) -> bool:
        return all((folder / label).is_dir() for label in self.labels)

    def read(self, paths: Sequence[Path]) -> list[TextExample]:
        examples: list[TextExample] = []
        for path in paths:
            if self.label_folders and path.is_dir():
                rows, skipped = self._from_folders(path), 0
            else:
                rows, skipped = self.columns.read(path)
            of_file = [self._example(row) for row in rows]
            if skipped:
                of_file = [example._replace(left_out=skipped) for example in of_file]
                note(f"{path}: {skipped} broken rows are skipped")
            without = sum(e.gold is None and r.label is not None for e, r in zip(of_file, rows, strict=True))
            if 0 < without < len(of_file):
                note(f"{path}: {without} of {len(of_file)} rows have no gold answer and are not used")
            examples += of_file
        return examples

    def _from_folders(self, folder: Path) -> list[RawRow]:
        if not self._holds_classes(folder):
            raise UserError(f"{folder}: must hold the folders {', '.join(self.labels)}")
        return [
            RawRow(f"{label}/{path.stem}", read_text(path), None, label, 0, str(path), 1)
            for label in self.labels
            for path in sorted((folder / label).glob("*.txt"))
        ]

    def _example(self, row: RawRow) -> TextExample:
        text, pair = self._clean(row.text), None if row.pair is None else self._clean(row.pair)
        example = TextExample(row.id, text, pair, None, row.file, row.line)
        if row.label is None or row.label in self.missing:
            return example
        return example._replace(gold=self._score(row, example) if self.regression else self._class(row, example))

    def _clean(self, text: str) -> str:
        for mark in self.blanked:
            text = text.replace(mark, " ")
        return text.strip()

    def _score(self, row: RawRow, example: TextExample) -> float:
        assert row.label is not None
        try:
            value = float(row.label)
        except ValueError:
            value = math.nan
        low, high = self.bounds
        if not math.isfinite(value) or not low <= value <= high:
            span = "" if math.isinf(high - low) else f" from {low:g} to {high:g}"
            raise UserError(f"{example.where}: the score '{row.label:.40}' is not a number{span}")
        return value

    def _class(self, row: RawRow, example: TextExample) -> str:
        assert row.label is not None
        label = self.aliases.get(row.label, row.label)
        if not self.labels or label in self.labels:
            return label
        if self.numbered and label.isdecimal() and 0 <= (number := int(label) - row.first) < len(self.labels):
            return self.labels[number]
        raise self._unknown(example, label)

    def _unknown(self, example: TextExample, label: str) -> UserError:
        labels = ", ".join(self.labels[:20])
        return UserError(f"{example.where}: label '{label:.40}' is not among those of the training set ({labels})")

    def read_unlabeled(self, path: Path) -> Iterable[TextExample] | None:
        """Return the rows of a released file; tables with plain column names are parsed row by row instead."""
        plain = self.columns.quoting == "auto" and not self.columns.headless and not self.columns.lead
        if plain or not self.columns.fits(path):
            return None
        rows, skipped = self.columns.read(path)
        if skipped:
            note(f"{path}: {skipped} broken rows are skipped")
        return (self._example(row._replace(label=None)) for row in rows)

    def parse(self, record: str | Json, where: str = "input") -> TextExample:
        if not isinstance(record, str):
            text = self.columns.text_of(record, "text", where)
            pair = self.columns.text_of(record, "pair", where) if self.columns.pair else None
        elif self.columns.pair:
            text, tab, rest = record.partition("\t")
            if not tab or "\t" in rest:
                raise UserError(f"{where}: '{record:.40}': {self.name} needs two texts with one tab between them")
            pair = rest
        else:
            text, pair = record, None
        return self.example(text, pair)

    def example(self, text: str, pair: str | None = None) -> TextExample:
        """Return an example without a gold answer."""
        return TextExample("0", self._clean(text), None if pair is None else self._clean(pair))

    def units(
        self, examples: Sequence[TextExample], tokenizer: Tokenizer, max_length: int, cut: str = "right"
    ) -> tuple[list[Unit], Truncation]:
        """Tokenize examples. `cut`: the end of a text that is dropped if it is too long, right or left."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        units: list[Unit] = []
        for start in range(0, len(examples), TOKENIZE_AT_ONCE):
            batch = examples[start : start + TOKENIZE_AT_ONCE]
            encoded = [tokenizer.encode_batch(texts, max_length, cut) for texts in self._orders(batch)]
            for example, *sequences in zip(batch, *encoded, strict=True):
                answer = example.gold
                if isinstance(answer, str) and (answer := numbers.get(answer)) is None:
                    raise self._unknown(example, str(example.gold))
                units.append(Unit(len(units), tuple(sequences), answer=answer))
        dropped = [unit.sequences[0].dropped for unit in units]
        return units, Truncation(sum(map(bool, dropped)), sum(dropped))

    def _orders(self, examples: Sequence[TextExample]) -> list[list[str | tuple[str, str]]]:
        """Return the texts as the model reads them: once, or pairs in two orders."""
        inputs: list[str | tuple[str, str]] = [e.text if e.pair is None else (e.text, e.pair) for e in examples]
        if not self.both_orders:
            return [inputs]
        if single := next((example for example in examples if example.pair is None), None):
            raise UserError(f"{single.where}: has one text, but both_orders is for pairs; set both_orders=false")
        return [inputs, [texts[::-1] for texts in inputs]]

    def predict(self, examples: Sequence[TextExample], units: Sequence[Unit], logits: Sequence[Logits]) -> list[Json]:
        lines: list[Json] = []
        for unit, scores in zip(units, logits, strict=True):
            example, row = examples[unit.example], np.asarray(scores, np.float64).reshape(-1)
            assert len(row) == self.classes, f"{len(row)} scores for {self.classes} classes"
            line: Json = {"text": example.text}
            if example.pair is not None:
                line["pair"] = example.pair
            if example.gold is not None:
                line["gold"] = example.gold
            if self.regression:
                line |= {"predicted": float(row[0]), "score": float(row[0])}
            else:
                shares = metrics.softmax(row)
                best = int(shares.argmax())
                line |= {"predicted": self.labels[best], "score": float(shares[best])}
                line["probabilities"] = dict(zip(self.labels, shares.tolist(), strict=True))
            lines.append(line)
        return lines

    def score(self, examples: Sequence[TextExample], predictions: Sequence[Json]) -> dict[str, float]:
        gold, predicted = _answers(examples, predictions)
        if not gold:
            raise UserError(f"{examples[0].file or self.name}: has no gold answers to score")
        return {name: METRICS[name](gold, predicted) for name in self.figures}

    def statistics(self, examples: Sequence[TextExample], predictions: Sequence[Json]) -> dict[str, Statistic]:
        gold, predicted = _answers(examples, predictions)
        if self.regression:
            return {kind: correlation_statistic(kind, gold, predicted) for kind in self.figures}
        return label_statistics(self.figures, gold, predicted)

    def labels_in(self, examples: Sequence[TextExample]) -> tuple[str, ...]:
        counts = Counter(example.gold for example in examples)
        counts.pop(None, None)
        if not counts:
            raise self._without_gold(examples)
        if self.regression or self.labels:
            return self.labels
        if len(counts) < 2:
            raise UserError(f"{examples[0].file}: all rows have the same label '{next(iter(counts))}'")
        labels = _sorted([str(label) for label in counts])
        check_label_count(labels, examples[0].file)
        return labels

    def _without_gold(self, examples: Sequence[TextExample]) -> UserError:
        if not examples or not Path(examples[0].file).is_file():
            return UserError(f"{self.name}: no gold answers to train on")
        path = Path(examples[0].file)
        table = read_table(path, quoting=self.columns.quoting, skip=True)
        try:
            table.column(self.columns.label, "label" if tuple(self.columns.label) == (LABEL,) else "")
        except UserError as error:
            return error
        return UserError(f"{path}: no row has a gold answer")

    def settings(self) -> Json:
        layout = {"both_orders": True} if self.both_orders else {}
        if self.name not in ("classification", "regression"):
            return layout
        pair = self.columns.pair[0] if self.columns.pair else None
        return {"text": self.columns.text[0], "pair": pair, "label": self.columns.label[0]} | layout


def _answers(examples: Sequence[TextExample], predictions: Sequence[Json]) -> tuple[list[Any], list[Any]]:
    """Return gold and predicted answers of the examples that have a gold answer."""
    lines = [line for example, line in zip(examples, predictions, strict=True) if example.gold is not None]
    return [example.gold for example in examples if example.gold is not None], [line["predicted"] for line in lines]


def _sorted(labels: Sequence[str]) -> tuple[str, ...]:
    """Return labels in order; as numbers if all of them are numbers."""
    try:
        numbers = {label: float(label) for label in labels}
    except ValueError:
        return tuple(sorted(labels))
    return tuple(sorted(labels, key=lambda label: (numbers[label], label)))


def text_task(
    kind: str = "classification",
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
) -> TextTask:
    """Return a task for the user's own files, whose header (or JSON, or parquet) has these columns.

    The text is in the column `text` unless another is named. A file without the default label column, `label`, has no
    gold answers. A column that was named must exist, since a misspelt name would look the same."""
    labeled = label not in (None, LABEL)
    columns = Columns(
        (text or "text",), (pair,) if pair else (), (label or LABEL,), quoting="auto", labeled=labeled, roles=False
    )
    if kind == "regression":
        return TextTask(
            kind,
            max_length=OWN_MAX_LENGTH,
            about="a number for a text or a pair",
            columns=columns,
            regression=True,
            figures=("pearson", "spearman"),
            metric="spearman",
        )
    if kind != "classification":
        raise UserError(f"task '{kind}': unknown; {suggest(kind, ('classification', 'regression'))}")
    return TextTask(kind, max_length=OWN_MAX_LENGTH, about="a class for a text or a pair", columns=columns)
