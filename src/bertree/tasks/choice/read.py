"""Questions with options from the files of SWAG, HellaSwag, RACE, and the user's own.

Each release has its own names for the same four parts, and its own way to mark the right option (an index, a letter).
All become `ChoiceExample`s.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertree.errors import UserError
from bertree.files.formats import Json
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

LEVELS = ("middle", "high")
_LEVEL = re.compile(r"(?<![a-z])(middle|high)(?![a-z])")


@dataclass(frozen=True)
class ChoiceExample:
    """A context, a question about it (or the beginning of its continuation), the options, and the right one."""

    context: str
    question: str
    options: tuple[str, ...]
    answer: int | None = None
    level: str = ""  # RACE: middle or high


def read(path: Path, task: str) -> Iterator[ChoiceExample]:
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
    context, begun = text_field(record, "sent1", where), text_field(record, "sent2", where)
    return _example(context, begun, options, record.get("label"), where)


def hellaswag(record: Json, where: str) -> ChoiceExample:
    """Read an object of HellaSwag; ctx_b, the beginning of the endings, may be empty."""
    options = texts_field(record, "endings", where)
    context, begun = text_field(record, "ctx_a", where), text_field(record, "ctx_b", where)
    return _example(context, begun, options, record.get("label"), where)


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
    every = list_field(record, "options", where)
    answers = list_field(record, "answers", where) if "answers" in record else [None] * len(questions)
    if not len(questions) == len(every) == len(answers):
        counts = f"{len(questions)} questions, {len(every)} lists of options and {len(answers)} answers"
        raise UserError(f"{where}: has {counts}; one of each is needed for every question")
    if not level:
        told = _LEVEL.search(re.sub(r"\d+", " ", str(record.get("id", record.get("example_id", "")))))
        level = told[1] if told else ""
    found = []
    for question, options, answer in zip(questions, every, answers, strict=True):
        one = _example(article, question, texts_field({"options": options}, "options", where), answer, where)
        found.append(replace(one, level=level))
    return found


def race_level(path: Path) -> str:
    """Return RACE's level, from the name of a file or of its folder."""
    told = _LEVEL.search(path.name.lower()) or _LEVEL.fullmatch(path.parent.name.lower())
    return told[1] if told else ""


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
        said = label.strip()
        same = [number for number, option in enumerate(options) if option.strip() == said] if by_text else []
        if len(same) == 1:
            index = same[0]
        elif re.fullmatch(r"[0-9]{1,9}", said):
            index = int(said)
        elif re.fullmatch(r"[A-Za-z]", said):
            index = ord(said.upper()) - ord("A")
    if index is None or not 0 <= index < len(options):
        last = len(options) - 1
        forms = f"0 to {last}, A to {chr(ord('A') + min(last, 25))}" + (", or an option's text" if by_text else "")
        raise UserError(f"{where}: label {str(label)[:80]!r} is none of the {len(options)} options; it can be {forms}")
    return index


LAYOUTS = {"swag": swag, "hellaswag": hellaswag, "choice": own_format}
