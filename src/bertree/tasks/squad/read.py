"""SQuAD files -> questions with their contexts, checked.

Both official versions: articles of paragraphs, each a context with its questions; plain or compressed. An answer must
be in its context at the given place. If it is off by a few characters or differs in white space, it is corrected; if
it is not there, it is kept without a place: its text can be scored, but not trained on. A file of rows (.jsonl,
.parquet), one for each question with its context, is read too.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bertree.console import note
from bertree.errors import UserError, listed
from bertree.files.formats import Json
from bertree.text.cleaning import replace_surrogates
from bertree.text.records import json_object, list_field, location, read_content, read_records, suffix_of

VERSIONS = {"squad": "1.1", "squad2": "2.0"}
ROWS = (".jsonl", ".ndjson", ".parquet")  # files with a row for each question
NEAR = 10  # characters an answer may be away from where the file says
_KINDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number", bool: "true or false"}


class GoldAnswer(NamedTuple):
    """A gold answer: context[start : start + len(text)] is its text; `start` is None if it is not there."""

    text: str
    start: int | None


@dataclass(frozen=True)
class SquadExample:
    """A question about a context."""

    id: str
    question: str
    context: str
    answers: tuple[GoldAnswer, ...] | None = None  # none at all: the question has no answer; None: not known
    file: str = field(default="", compare=False)  # it comes from, for errors


@dataclass
class _Reader:
    path: Path
    impossible: bool  # questions without an answer are part of the task
    repaired: int = 0

    def error(self, where: str, what: str) -> UserError:
        return UserError(f"{self.path}: {where}: {what}")

    def value(self, record: Any, name: str, kind: type, where: str) -> Any:
        if not isinstance(record, dict):
            raise self.error(where, "must be an object")
        if name not in record:
            raise self.error(where, f"has no '{name}'; there are: {listed(record) or 'no fields'}")
        if type(record[name]) is not kind:
            raise self.error(where, f"'{name}' must be {_KINDS[kind]}")
        return record[name]

    def examples(self, data: Json, labeled: bool = True) -> Iterator[SquadExample]:
        for number, article in enumerate(self.value(data, "data", list, "the file"), start=1):
            where = f"article {number}"
            for position, paragraph in enumerate(self.value(article, "paragraphs", list, where), start=1):
                location = f"{where}, paragraph {position}"
                context = replace_surrogates(self.value(paragraph, "context", str, location))
                if not context.strip():
                    raise self.error(location, "its context is empty")
                for index, record in enumerate(self.value(paragraph, "qas", list, location), start=1):
                    identity = self.value(record, "id", str, f"{location}, question {index}")
                    question = replace_surrogates(self.value(record, "question", str, f"question {identity}"))
                    answers = self.answers(record, context, identity) if labeled else None
                    yield SquadExample(identity, question, context, answers, str(self.path))

    def answers(self, record: Json, context: str, identity: str) -> tuple[GoldAnswer, ...] | None:
        where = f"question {identity}"
        impossible = "is_impossible" in record and self.value(record, "is_impossible", bool, where)
        if impossible and not self.impossible:
            raise self.error(where, "is marked as one without an answer; the task for such files is 'squad2'")
        if "answers" not in record:
            return () if impossible else None
        answers = self.value(record, "answers", list, where)
        if impossible and answers:
            raise self.error(where, "is marked as one without an answer but has answers")
        if not answers and not self.impossible:
            raise self.error(where, "has no answer; the task for questions without an answer is 'squad2'")
        return tuple(self.answer(answer, context, where) for answer in answers)

    def answer(self, record: Any, context: str, where: str) -> GoldAnswer:
        text = replace_surrogates(self.value(record, "text", str, where))
        start = self.value(record, "answer_start", int, where)
        if not text.strip():
            raise self.error(where, "an answer text that is empty")
        if 0 <= start < len(context):
            if context.startswith(text, start):
                return GoldAnswer(text, start)
            if match := _nearest(context, text, start):
                self.repaired += 1
                return GoldAnswer(match.group(), match.start())
        return GoldAnswer(text, None)


def read(paths: Sequence[Path], impossible: bool) -> list[SquadExample]:
    """Read all questions of some files; `impossible`: some may have no answer."""
    examples: list[SquadExample] = []
    repaired = 0
    for path in paths:
        reader = _Reader(path, impossible)
        before = len(examples)
        examples += reader.examples(_as_released(path))
        if len(examples) == before:
            raise UserError(f"{path}: holds no questions")
        repaired += reader.repaired
    if repaired:
        note(f"{paths[0]}: {repaired} answers were a few characters off or differed in white space; corrected")
    return examples


def _as_released(path: Path) -> Json:
    """Return the content of a file; a row for each question, as in a table, becomes an article of its own."""
    if suffix_of(path) not in ROWS:
        return json_object(read_content(path), str(path))
    articles = []
    for number, row in read_records(path):
        question: Json = {"id": str(row.get("id", number))}
        question |= {key: row[key] for key in ("question", "is_impossible") if key in row}
        if isinstance(answers := row.get("answers"), dict):  # columns, as the Datasets of Hugging Face have them
            texts, starts = (list_field(answers, key, location(path, number)) for key in ("text", "answer_start"))
            question["answers"] = [{"text": t, "answer_start": s} for t, s in zip(texts, starts, strict=False)]
        elif answers is not None:
            question["answers"] = answers
        articles.append({"paragraphs": [{key: row[key] for key in ["context"] if key in row} | {"qas": [question]}]})
    return {"data": articles}


def read_questions(path: Path) -> list[SquadExample] | None:
    """Return the questions of a file without their answers; None if it is not in the official layout."""
    try:
        data = json_object(read_content(path), str(path))
    except UserError:
        return None  # JSON lines
    return list(_Reader(path, True).examples(data, labeled=False)) if "data" in data else None


def _nearest(context: str, text: str, start: int) -> re.Match[str] | None:
    pattern = re.compile(r"\s+".join(map(re.escape, text.split())))
    # White space in the context may be longer than in the answer, so the end is left some room.
    first, last = max(start - NEAR, 0), start + 2 * len(text) + 2 * NEAR
    near = [match for match in pattern.finditer(context, first, last) if abs(match.start() - start) <= NEAR]
    return min(near, key=lambda match: abs(match.start() - start), default=None)
