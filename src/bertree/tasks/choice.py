"""Multiple choice: which option follows from a text (SWAG, HellaSwag) or answers a question about it (RACE).

Each option is read with the whole context as a pair, and the scores of one question's options compete. When a pair
is too long the context is cut, because without the question and the option there is nothing left to score. The
context is tokenised once however many questions and options it has.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertree.errors import UserError, suggest
from bertree.files import Json
from bertree.tasks import questions
from bertree.tasks.frames import Frame, tokenised
from bertree.tasks.questions import LAYOUTS, LEVELS, ChoiceExample
from bertree.tasks.records import find_splits
from bertree.tasks.task import Cut, Logits, Splits, Task, Unit
from bertree.text.tokenizer import Tokenizer

KINDS = {
    "swag": (".csv", ".jsonl", ".ndjson", ".parquet"),
    "hellaswag": (".jsonl", ".ndjson", ".parquet"),
    "race": (".jsonl", ".ndjson", ".parquet"),
    "choice": (".jsonl", ".ndjson", ".parquet"),
}
_FOLDERS = {"train": ("train",), "dev": ("dev", "valid", "validation", "val"), "test": ("test",)}
_BLANK = re.compile(r"_+")
_BLANK_ALONE = re.compile(r"(?<![^\W_])_+(?![^\W_])")  # in one's own questions a name may hold an underscore


@dataclass(frozen=True)
class ChoiceTask(Task[ChoiceExample]):
    """`swag`, `hellaswag`, `race` or `choice` (one's own)."""

    head = "choice"

    def __post_init__(self) -> None:
        if self.name not in KINDS:
            raise UserError(f"task '{self.name}': unknown; {suggest(self.name, KINDS)}")

    @property
    def classes(self) -> int:
        return 1

    def splits(self, data: Path) -> Splits:
        found = (self.name == "race" and _folders(data)) or find_splits(data, KINDS[self.name])
        if not found:
            raise UserError(f"{data}: holds no train, dev or test file ({', '.join(KINDS[self.name])}, also .gz, .xz)")
        return found

    def read(self, paths: Sequence[Path]) -> list[ChoiceExample]:
        found: list[ChoiceExample] = []
        for path in paths:
            before = len(found)
            found += questions.read(path, self.name)
            if len(found) == before:
                raise UserError(f"{path}: holds no question")
        return found

    def parse(self, record: str | Json) -> ChoiceExample:
        if isinstance(record, str):
            raise UserError(f'{self.name}: a line must be an object: {{"context": ..., "options": [..., ...]}}')
        asked = {key: value for key, value in record.items() if key not in ("label", "answer", "answers")}
        if "context" in asked or self.name == "choice":
            return questions.own(asked, "record")
        if self.name != "race":
            return LAYOUTS[self.name](asked, "record")
        found = questions.passage(asked, "record")
        if len(found) != 1:
            raise UserError(f"record: holds {len(found)} questions; give one at a time (article, question, options)")
        return found[0]

    def units(self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_length: int) -> tuple[list[Unit], Cut]:
        frame = Frame(tokenizer, pair=True)
        room = frame.room(max_length)
        contexts = _spaced([example.context for example in examples])
        asked = [[self._second(example, option) for option in example.options] for example in examples]
        ids = tokenised((*contexts.values(), *(text for texts in asked for text in texts)), tokenizer)
        found: list[Unit] = []
        cut_examples = cut_tokens = 0
        for number, (example, texts) in enumerate(zip(examples, asked, strict=True)):
            first = ids[contexts[example.context]]
            sequences = []
            for text in texts:
                second = ids[text]
                kept = second[-room:]  # its end, where the option mostly is
                left = room - len(kept)
                # A continuation hangs on what stands last before it; a passage is read from its beginning.
                fitting = first[:left] if self.name in ("race", "choice") else first[max(0, len(first) - left) :]
                dropped = len(first) - len(fitting) + len(second) - len(kept)
                sequences.append(frame.around(fitting, kept, dropped=dropped))
            lost = sum(sequence.dropped for sequence in sequences)
            cut_examples, cut_tokens = cut_examples + (lost > 0), cut_tokens + lost
            found.append(Unit(number, tuple(sequences), answer=example.answer))
        return found, Cut(cut_examples, cut_tokens)

    def _second(self, example: ChoiceExample, option: str) -> str:
        """What is read beside the context: the option in the question's blank, or after it."""
        blank = {"race": _BLANK, "choice": _BLANK_ALONE}.get(self.name)
        if blank and blank.search(example.question):
            return " ".join(blank.sub(lambda _: option, example.question).split())
        return " ".join(f"{example.question} {option}".split())

    def predict(self, examples: Sequence[ChoiceExample], units: Sequence[Unit], logits: Sequence[Logits]) -> list[Json]:
        assert len(examples) == len(units), "one unit a question"
        lines = []
        for unit, scores in zip(units, logits, strict=True):
            example = examples[unit.example]
            flat = scores.reshape(-1).astype(np.float64)
            assert len(flat) == len(example.options), "a score for each option"
            weights = np.exp(flat - flat.max())
            shares = weights / weights.sum()
            best = int(flat.argmax())
            line: Json = {"context": example.context, "question": example.question, "options": list(example.options)}
            if example.answer is not None:
                line["gold"] = example.answer
            line |= {"predicted": best, "answer": example.options[best]}
            lines.append(line | {"score": float(shares[best]), "probabilities": shares.tolist()})
        return lines

    def score(self, examples: Sequence[ChoiceExample], predictions: Sequence[Json]) -> dict[str, float]:
        """The share of right answers; for RACE also of each level that is there."""
        pairs = zip(examples, predictions, strict=True)
        right = [(e.level, e.answer == p["predicted"]) for e, p in pairs if e.answer is not None]
        found = {"accuracy": _share([is_right for _, is_right in right])}
        for level in LEVELS:
            if of_level := [is_right for its, is_right in right if its == level]:
                found[f"accuracy-{level}"] = _share(of_level)
        return found


def _share(right: Sequence[bool]) -> float:
    return sum(right) / len(right) if right else 0.0


def _spaced(texts: Sequence[str]) -> dict[str, str]:
    """Each distinct text with single spaces: to a byte-level BPE a line's end would be a token."""
    return {text: " ".join(text.split()) for text in dict.fromkeys(texts)}


def _folders(data: Path) -> Splits:
    """RACE as it is handed out: a folder a split, in it a folder a level, in it a file a passage."""
    found: Splits = {}
    for root in (data, data / "RACE"):
        for split, names in _FOLDERS.items():
            for folder in (root / name for name in names):
                files = sorted(p for level in LEVELS for p in (folder / level).glob("*.txt") if p.name[0] != ".")
                if files and split not in found:
                    found[split] = tuple(files)
    return found


CHOICE = {name: ChoiceTask(name, max_length=512 if name == "race" else 128) for name in KINDS}
