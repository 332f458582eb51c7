"""Multiple choice: which option continues a text (SWAG, HellaSwag) or answers a question about it (RACE).

Each release has its own field names and its own way to mark the right option (an index, a letter). All become
`ChoiceExample`s. Each option is paired with the context, and the scores of one question's options share a softmax. If a
pair is too long, the context is truncated, since the question and the option are needed. A context is tokenized once,
however many questions and options it has.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.tasks.files import find_splits, split_folders, split_of_folder
from bertree.tasks.metrics import accuracy, softmax
from bertree.tasks.task import Logits, Splits, Task, Truncation, Unit
from bertree.text.framing import Frame, tokenize_distinct
from bertree.text.records import (
    json_object,
    list_field,
    location,
    read_content,
    read_records,
    suffix_of,
    text_field,
    texts_field,
)
from bertree.text.tokenizer import Tokenizer

LEVELS = ("middle", "high")
_LEVEL = re.compile(r"(?<![a-z])(middle|high)(?![a-z])")
HIDDEN = ("label", "answer", "answers")  # fields with the answer, ignored in predictions
OBJECTS = (".jsonl", ".ndjson", ".json", ".parquet")


@dataclass(frozen=True)
class ChoiceExample:
    """A context, a question about it (or the beginning of its continuation), the options, and the right one."""

    context: str
    question: str
    options: tuple[str, ...]
    answer: int | None = None
    level: str = ""  # RACE: middle or high


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
        if self.name == "race" and (splits := _race_splits(data)):
            return splits
        kinds = FORMS[self.name].kinds
        return find_splits(data, (self.name,), ("hellaswag_", "swag_"), kinds=kinds, parts=LEVELS)

    def read(self, paths: Sequence[Path]) -> list[ChoiceExample]:
        examples: list[ChoiceExample] = []
        for path in paths:
            before = len(examples)
            examples += read_file(path, self.name)
            if len(examples) == before:
                raise UserError(f"{path}: holds no question")
        return examples

    def read_unlabeled(self, path: Path) -> Iterable[ChoiceExample] | None:
        """Return the questions of a passage of RACE as released: a .txt file that is one JSON object."""
        if self.name != "race" or suffix_of(path) != ".txt":
            return None
        try:
            return [replace(example, answer=None) for example in read_file(path, self.name)]
        except UserError:
            return None  # a line for each object

    def parse(self, record: str | Json, where: str = "input") -> ChoiceExample:
        if isinstance(record, str):
            raise UserError(f'{where}: {self.name} needs an object: {{"context": ..., "options": [..., ...]}}')
        unlabeled = {key: value for key, value in record.items() if key not in HIDDEN}
        if "context" in unlabeled or self.name == "choice":
            return own_format(unlabeled, where)
        if self.name != "race":
            return LAYOUTS[self.name](unlabeled, where)
        questions = race_passage(unlabeled, where)
        if len(questions) != 1:
            count = len(questions)
            raise UserError(f"{where}: holds {count} questions; give one at a time (article, question, options)")
        return questions[0]

    def parse_all(self, record: str | Json, where: str = "input") -> list[ChoiceExample]:
        if self.name != "race" or isinstance(record, str) or "context" in record or "questions" not in record:
            return [self.parse(record, where)]
        unlabeled = {key: value for key, value in record.items() if key not in HIDDEN}
        if not (questions := race_passage(unlabeled, where)):
            raise UserError(f"{where}: 'questions' is empty")
        return questions

    def group(self, example: ChoiceExample) -> str | None:
        return example.context or None

    def units(
        self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_length: int
    ) -> tuple[list[Unit], Truncation]:
        frame = Frame(tokenizer, pair=True)
        room = frame.room(max_length)
        contexts = _collapse_spaces([example.context for example in examples])
        option_texts = [[self._option_text(example, option) for option in example.options] for example in examples]
        ids = tokenize_distinct((*contexts.values(), *(text for texts in option_texts for text in texts)), tokenizer)
        units: list[Unit] = []
        cut_examples = cut_tokens = 0
        for number, (example, texts) in enumerate(zip(examples, option_texts, strict=True)):
            first = ids[contexts[example.context]]
            sequences = []
            lost_context = lost_option = 0  # tokens of the context are counted once, not for each option
            for text in texts:
                second = ids[text]
                kept = second[-room:]  # the end, where the option is in most cases
                left = room - len(kept)
                # A continuation depends most on the end of its context; a passage is read from its beginning.
                fitting = first[:left] if self.name in ("race", "choice") else first[max(0, len(first) - left) :]
                of_context, of_option = len(first) - len(fitting), len(second) - len(kept)
                sequences.append(frame.wrap(fitting, kept, dropped=of_context + of_option))
                lost_context, lost_option = max(lost_context, of_context), lost_option + of_option
            lost = lost_context + lost_option
            cut_examples, cut_tokens = cut_examples + (lost > 0), cut_tokens + lost
            units.append(Unit(number, tuple(sequences), answer=example.answer))
        return units, Truncation(cut_examples, cut_tokens)

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
        labeled = [pair for pair in zip(examples, predictions, strict=True) if pair[0].answer is not None]
        scores = {"accuracy": _accuracy(labeled)}
        for level in LEVELS:
            if of_level := [pair for pair in labeled if pair[0].level == level]:
                scores[f"accuracy-{level}"] = _accuracy(of_level)
        return scores


def _accuracy(labeled: Sequence[tuple[ChoiceExample, Json]]) -> float:
    return accuracy([example.answer for example, _ in labeled], [line["predicted"] for _, line in labeled])


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


def read_file(path: Path, task: str) -> Iterator[ChoiceExample]:
    """Yield the questions of a file, in the layout of this task."""
    if task == "race" and suffix_of(path) == ".txt":
        yield from race_passage(json_object(read_content(path), location(path, 1)), location(path, 1), race_level(path))
        return
    level = race_level(path) if task == "race" else ""
    for number, record in read_records(path):
        where = location(path, number)
        if task == "race":
            yield from race_passage(record, where, level)
        else:
            yield LAYOUTS[task](record, where)


def swag(record: Json, where: str) -> ChoiceExample:
    """Read a row of SWAG's CSV: a sentence, the beginning of the next one, and its endings."""
    names = [name for name in record if re.fullmatch(r"ending\d+", str(name))]
    options = [text_field(record, name, where) for name in sorted(names, key=lambda name: int(name[6:]))]
    if not options:
        raise UserError(f"{where}: has no field 'ending0'; a row of SWAG has sent1, sent2, ending0 to ending3, label")
    context, beginning = text_field(record, "sent1", where), text_field(record, "sent2", where)
    return _example(context, beginning, options, record.get("label"), where)


def hellaswag(record: Json, where: str) -> ChoiceExample:
    """Read an object of HellaSwag; ctx_b, the beginning of the endings, may be empty."""
    options = texts_field(record, "endings", where)
    context, beginning = text_field(record, "ctx_a", where), text_field(record, "ctx_b", where)
    return _example(context, beginning, options, record.get("label"), where)


def own_format(record: Json, where: str) -> ChoiceExample:
    """Read an object with `context`, `options` and, if there are any, `question` and `label`."""
    question = text_field(record, "question", where) if record.get("question") is not None else ""
    options = texts_field(record, "options", where)
    context = text_field(record, "context", where)
    return _example(context, question, options, record.get("label"), where, by_text=True)


def race_passage(record: Json, where: str, level: str = "") -> list[ChoiceExample]:
    """Read a passage of RACE with all its questions, or with one (`question`, `options`, `answer`)."""
    article = text_field(record, "article", where)
    if "questions" not in record and "question" in record:
        record = record | {"questions": [record["question"]], "options": [record.get("options")]}
        record |= {"answers": [record["answer"]]} if "answer" in record else {}
    questions = texts_field(record, "questions", where)
    option_lists = list_field(record, "options", where)
    answers = list_field(record, "answers", where) if "answers" in record else [None] * len(questions)
    if not len(questions) == len(option_lists) == len(answers):
        counts = f"{len(questions)} questions, {len(option_lists)} lists of options and {len(answers)} answers"
        raise UserError(f"{where}: has {counts}; one of each is needed for every question")
    if not level:
        match = _LEVEL.search(re.sub(r"\d+", " ", str(record.get("id", record.get("example_id", "")))))
        level = match[1] if match else ""
    examples = []
    for question, options, answer in zip(questions, option_lists, answers, strict=True):
        example = _example(article, question, texts_field({"options": options}, "options", where), answer, where)
        examples.append(replace(example, level=level))
    return examples


def race_level(path: Path) -> str:
    """Return RACE's level, from the name of a file or of its folder."""
    match = _LEVEL.search(path.name.lower()) or _LEVEL.fullmatch(path.parent.name.lower())
    return match[1] if match else ""


def _example(
    context: str, question: str, options: Sequence[str], label: Any, where: str, by_text: bool = False
) -> ChoiceExample:
    if len(options) < 2:
        raise UserError(f"{where}: has {len(options)} options; a choice needs two or more")
    return ChoiceExample(context, question, tuple(options), _answer(label, options, where, by_text))


def _answer(label: Any, options: Sequence[str], where: str, by_text: bool) -> int | None:
    """Return the right option: its index, its letter or, if allowed, its text, which is tried first."""
    if label is None or label in ("", "-1", -1):
        return None
    index = label if isinstance(label, int) and not isinstance(label, bool) else None
    if isinstance(label, str):
        text = label.strip()
        same = [number for number, option in enumerate(options) if option.strip() == text] if by_text else []
        if len(same) == 1:
            index = same[0]
        elif re.fullmatch(r"[0-9]{1,9}", text):
            index = int(text)
        elif re.fullmatch(r"[A-Za-z]", text):
            index = ord(text.upper()) - ord("A")
    if index is None or not 0 <= index < len(options):
        last = len(options) - 1
        forms = f"0 to {last}, A to {chr(ord('A') + min(last, 25))}" + (", or an option's text" if by_text else "")
        raise UserError(f"{where}: label {str(label)[:80]!r} is none of the {len(options)} options; it can be {forms}")
    return index


LAYOUTS = {"swag": swag, "hellaswag": hellaswag, "choice": own_format}
