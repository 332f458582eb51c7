"""Multiple choice: which option continues a text (SWAG, HellaSwag) or answers a question about it (RACE).

Each option is paired with the context, and the scores of one question's options share a softmax. If a pair is too
long, the context is truncated, since the question and the option are needed. A context is tokenized once, however many
questions and options it has.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.tasks.choice import read
from bertree.tasks.choice.read import LAYOUTS, LEVELS, ChoiceExample
from bertree.tasks.metrics import accuracy, softmax
from bertree.tasks.splits import find_splits, split_folders, split_of_folder
from bertree.tasks.task import Logits, Splits, Task, Truncation, Unit
from bertree.text.framing import Frame, tokenize_distinct
from bertree.text.records import suffix_of
from bertree.text.tokenizer import Tokenizer

HIDDEN = ("label", "answer", "answers")  # fields with the answer, ignored in predictions
OBJECTS = (".jsonl", ".ndjson", ".json", ".parquet")


class ChoiceFiles(NamedTuple):
    """The default length of a pair in tokens, and the file types of a task."""

    max_length: int
    kinds: tuple[str, ...] = OBJECTS


FORMS = {
    "swag": ChoiceFiles(128, (".csv", *OBJECTS)),
    "hellaswag": ChoiceFiles(192),
    "race": ChoiceFiles(512),
    "choice": ChoiceFiles(512),
}
_BLANK = re.compile(r"_+")
_BLANK_ALONE = re.compile(r"(?<![^\W_])_+(?![^\W_])")  # in the user's own questions a name may contain an underscore


@dataclass(frozen=True)
class ChoiceTask(Task[ChoiceExample]):
    """`swag`, `hellaswag`, `race` or `choice` (the user's own data)."""

    max_length: int = 0  # 0: the task's default

    head = "choice"
    kind = "multiple choice"

    def __post_init__(self) -> None:
        if self.name not in FORMS:
            raise UserError(f"task '{self.name}': unknown; {suggest(self.name, FORMS)}")
        if not self.max_length:
            object.__setattr__(self, "max_length", FORMS[self.name].max_length)

    @property
    def classes(self) -> int:
        return 1

    def splits(self, data: Path) -> Splits:
        if self.name == "race" and (found := _race_splits(data)):
            return found
        kinds = FORMS[self.name].kinds
        return find_splits(data, (self.name,), ("hellaswag_", "swag_"), kinds=kinds, parts=LEVELS)

    def read(self, paths: Sequence[Path]) -> list[ChoiceExample]:
        found: list[ChoiceExample] = []
        for path in paths:
            before = len(found)
            found += read.read(path, self.name)
            if len(found) == before:
                raise UserError(f"{path}: holds no question")
        return found

    def read_unlabelled(self, path: Path) -> Iterable[ChoiceExample] | None:
        """Return the questions of a passage of RACE as released: a .txt file that is one JSON object."""
        if self.name != "race" or suffix_of(path) != ".txt":
            return None
        try:
            return [replace(example, answer=None) for example in read.read(path, self.name)]
        except UserError:
            return None  # a line for each object

    def parse(self, record: str | Json, where: str = "input") -> ChoiceExample:
        if isinstance(record, str):
            raise UserError(f'{where}: {self.name} needs an object: {{"context": ..., "options": [..., ...]}}')
        asked = {key: value for key, value in record.items() if key not in HIDDEN}
        if "context" in asked or self.name == "choice":
            return read.own_format(asked, where)
        if self.name != "race":
            return LAYOUTS[self.name](asked, where)
        found = read.race_passage(asked, where)
        if len(found) != 1:
            raise UserError(f"{where}: holds {len(found)} questions; give one at a time (article, question, options)")
        return found[0]

    def parse_all(self, record: str | Json, where: str = "input") -> list[ChoiceExample]:
        if self.name != "race" or isinstance(record, str) or "context" in record or "questions" not in record:
            return [self.parse(record, where)]
        asked = {key: value for key, value in record.items() if key not in HIDDEN}
        if not (found := read.race_passage(asked, where)):
            raise UserError(f"{where}: 'questions' is empty")
        return found

    def group(self, example: ChoiceExample) -> str | None:
        return example.context or None

    def units(
        self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_length: int
    ) -> tuple[list[Unit], Truncation]:
        frame = Frame(tokenizer, pair=True)
        room = frame.room(max_length)
        contexts = _collapse_spaces([example.context for example in examples])
        asked = [[self._option_text(example, option) for option in example.options] for example in examples]
        ids = tokenize_distinct((*contexts.values(), *(text for texts in asked for text in texts)), tokenizer)
        found: list[Unit] = []
        cut_examples = cut_tokens = 0
        for number, (example, texts) in enumerate(zip(examples, asked, strict=True)):
            first = ids[contexts[example.context]]
            sequences = []
            lost_context = lost_asked = 0  # tokens of the context are counted once, not for each option
            for text in texts:
                second = ids[text]
                kept = second[-room:]  # the end, where the option is in most cases
                left = room - len(kept)
                # A continuation depends most on the end of its context; a passage is read from its beginning.
                fitting = first[:left] if self.name in ("race", "choice") else first[max(0, len(first) - left) :]
                of_context, of_asked = len(first) - len(fitting), len(second) - len(kept)
                sequences.append(frame.wrap(fitting, kept, dropped=of_context + of_asked))
                lost_context, lost_asked = max(lost_context, of_context), lost_asked + of_asked
            lost = lost_context + lost_asked
            cut_examples, cut_tokens = cut_examples + (lost > 0), cut_tokens + lost
            found.append(Unit(number, tuple(sequences), answer=example.answer))
        return found, Truncation(cut_examples, cut_tokens)

    def _option_text(self, example: ChoiceExample, option: str) -> str:
        """Return the second text of a pair: the option in the question's blank, or after it."""
        blank = {"race": _BLANK, "choice": _BLANK_ALONE}.get(self.name)
        if blank and blank.search(example.question):
            return " ".join(blank.sub(lambda _: option, example.question).split())
        return " ".join(f"{example.question} {option}".split())

    def predict(self, examples: Sequence[ChoiceExample], units: Sequence[Unit], logits: Sequence[Logits]) -> list[Json]:
        assert len(examples) == len(units), "one unit a question"
        lines = []
        for unit, scores in zip(units, logits, strict=True):
            example = examples[unit.example]
            flat = scores.reshape(-1)
            assert len(flat) == len(example.options), "a score for each option"
            shares = softmax(flat)
            best = int(flat.argmax())
            line: Json = {"context": example.context, "question": example.question, "options": list(example.options)}
            if example.answer is not None:
                line["gold"] = example.answer
            line |= {"predicted": best, "answer": example.options[best]}
            lines.append(line | {"score": float(shares[best]), "probabilities": shares.tolist()})
        return lines

    def prediction_text(self, line: Json) -> str:
        """Return number, text and probability of the chosen option."""
        return f"{line['predicted']}\t{line['answer']}\t{line['score']:.3f}"

    def score(self, examples: Sequence[ChoiceExample], predictions: Sequence[Json]) -> dict[str, float]:
        """Return the accuracy; for RACE also that of each level."""
        known = [pair for pair in zip(examples, predictions, strict=True) if pair[0].answer is not None]
        found = {"accuracy": _accuracy(known)}
        for level in LEVELS:
            if of_level := [pair for pair in known if pair[0].level == level]:
                found[f"accuracy-{level}"] = _accuracy(of_level)
        return found


def _accuracy(known: Sequence[tuple[ChoiceExample, Json]]) -> float:
    return accuracy([example.answer for example, _ in known], [line["predicted"] for _, line in known])


def _collapse_spaces(texts: Sequence[str]) -> dict[str, str]:
    """Map each distinct text to the same with single spaces: to a byte-level BPE a line end would be a token."""
    return {text: " ".join(text.split()) for text in dict.fromkeys(texts)}


def _race_splits(data: Path) -> Splits:
    """Find RACE's files as released: a folder per split (or one of them), in it one per level, a file per passage."""
    if files := _level_files(data):
        return {split_of_folder(data): files}
    folders = split_folders(data, ("race",)).items()
    return {split: files for split, folder in folders if (files := _level_files(folder))}


def _level_files(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for level in LEVELS for path in (folder / level).glob("*.txt") if path.name[0] != "."))
