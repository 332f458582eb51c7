"""SQuAD as its official scripts define it: its files, read and checked, and its metric.

Both official versions of the files are read: articles of paragraphs, each a context with its questions; plain or
compressed. An answer must be in its context at the given place. If it is off by a few characters or differs in white
space, it is corrected; if it is not there, it is kept without a place: its text can be scored, but not trained on. A
file of rows (.jsonl, .parquet), one for each question with its context, is read too.

Exact match and F1 are over normalized words, by the rules of each version's official script. Both versions lower-case
the text, remove ASCII punctuation and articles, and collapse white space; the best gold answer of a question counts.
They differ if nothing is left of a text: in version 1.1 two empty texts have an F1 of 0, in version 2.0 they have 1,
since "no answer" is an answer there. A question without a prediction scores 0 here; the script of version 2.0 stops
with an error.
"""

import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertree.console import note
from bertree.errors import UserError, listed
from bertree.files.formats import Json
from bertree.tasks.metrics import Statistic
from bertree.text.cleaning import replace_surrogates
from bertree.text.records import json_object, list_field, location, read_content, read_records, suffix_of

VERSIONS = {"squad": "1.1", "squad2": "2.0"}
ROWS = (".jsonl", ".ndjson", ".parquet")  # files with a row for each question
NEAR = 10  # characters an answer may be away from where the file says
_KINDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number", bool: "true or false"}
Figures = NDArray[np.float64]
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


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


class QuestionScores(NamedTuple):
    """One score per question."""

    exact: Figures
    f1: Figures


class BestThreshold(NamedTuple):
    """The best score that a threshold on the null odds can give: questions with odds up to it are answered."""

    share: float
    threshold: float


@lru_cache(maxsize=1 << 16)  # the gold answers of a question are often the same text
def normalize(text: str) -> str:
    """Lower-case a text and remove ASCII punctuation, articles and superfluous white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(gold: str, predicted: str) -> float:
    """Return 1 if both texts are the same after normalizing."""
    return float(normalize(gold) == normalize(predicted))


def f1(gold: str, predicted: str, empty_counts: bool) -> float:
    """Return the overlap of two bags of words. `empty_counts`: two empty bags agree (version 2.0)."""
    expected, actual = normalize(gold).split(), normalize(predicted).split()
    if not expected or not actual:
        return float(empty_counts and expected == actual)
    common = sum((Counter(expected) & Counter(actual)).values())
    if common == 0:
        return 0.0
    # The same order of operations as the scripts', so that the last bit agrees.
    precision, recall = common / len(actual), common / len(expected)
    return 2 * precision * recall / (precision + recall)


def score_questions(golds: Sequence[Sequence[str]], predicted: Sequence[str | None], version: int) -> QuestionScores:
    """Return exact match and F1 of every question; `golds` has its gold texts, none if it has no answer (version 2)."""
    counted = QuestionScores(np.zeros(len(golds)), np.zeros(len(golds)))
    for number, (texts, text) in enumerate(zip(golds, predicted, strict=True)):
        if text is None:
            continue
        expected = set(texts) if version == 1 else {gold for gold in texts if normalize(gold)} or {""}
        counted.exact[number] = max((exact(gold, text) for gold in expected), default=0.0)
        counted.f1[number] = max((f1(gold, text, version == 2) for gold in expected), default=0.0)
    return counted


def mean_score(figures: Figures, questions: NDArray[np.bool_] | None = None) -> float:
    """Return the mean over the selected questions; 0 if there are none."""
    figures = figures if questions is None else figures[questions]
    # A plain sum, as the scripts do: numpy adds in pairs and may differ in the last bit.
    return sum(figures.tolist()) / len(figures) if len(figures) else 0.0


def best_threshold(
    counted: Figures, answered: Sequence[bool], has_answer: Sequence[bool], odds: Sequence[float]
) -> BestThreshold:
    """Search as the script of version 2.0: return the first threshold on the null odds with the highest mean score.

    `counted` is the score of each question if it is answered, `answered` whether its prediction is not empty. If
    answering nothing is best, the script returns 0, whatever the odds are."""
    answerable = np.asarray(has_answer, bool)
    order = np.argsort(np.asarray(odds, np.float64), kind="stable")
    change = np.where(answerable, counted, -np.asarray(answered, np.float64))[order]
    totals = np.concatenate([[np.float64((~answerable).sum())], change]).cumsum()
    where = int(totals.argmax())
    return BestThreshold(float(totals[where]) / max(len(order), 1), float(odds[order[where - 1]]) if where else 0.0)


def best_statistic(
    counted: Figures, answered: Sequence[bool], has_answer: Sequence[bool], odds: Sequence[float]
) -> Statistic:
    """Return the score of `best_threshold` for samples of the questions, in each of which the threshold is searched."""
    change_n = np.where(np.asarray(has_answer, bool), counted, -np.asarray(answered, np.float64))
    rows_n3 = np.stack([np.asarray(odds, np.float64), change_n, 1.0 - np.asarray(has_answer, np.float64)], 1)

    def best(counts_bm: Figures, cells_m3: Figures) -> Figures:
        order = np.argsort(cells_m3[:, 0], kind="stable")
        totals_bm = (counts_bm * cells_m3[:, 1])[:, order].cumsum(1)
        scores_b: Figures = (np.maximum(totals_bm.max(1), 0) + counts_bm @ cells_m3[:, 2]) / counts_bm.sum(1)
        return scores_b

    return Statistic(rows_n3, best)


def best_null_odds(answering: Figures, refusing: Figures, odds: Sequence[float]) -> float:
    """Return the null odds below which questions are answered for the highest mean score.

    Unlike the script's, this threshold separates no questions with equal odds, lies half way between two odds so that
    rounding does not matter, and works if answering nothing, or everything, is best."""
    order = np.argsort(np.asarray(odds, np.float64), kind="stable")
    if not len(order):
        return 0.0
    ascending = np.asarray(odds, np.float64)[order]
    totals = np.concatenate([[0.0], (answering - refusing)[order]]).cumsum()
    parts = np.concatenate([[True], ascending[1:] > ascending[:-1], [True]])
    where = int(np.where(parts, totals, -np.inf).argmax())
    low = float(ascending[where - 1]) if where else float(ascending[0]) - 2.0
    high = float(ascending[where]) if where < len(order) else low + 2.0
    middle = low + (high - low) / 2
    return middle if middle > low else high
