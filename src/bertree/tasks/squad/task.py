"""SQuAD 1.1 and 2.0: the answer to a question is a span of its context, or (2.0) there is none.

Version 2.0 also compares "no answer", the score of the first token, with the best span: an answer is given if s_best >
s_null + threshold. The threshold is chosen on the dev split, from its predictions. With XLNet's head
(`head=beam`) an answer is given if the logit of "no answer" is below -threshold.

`choose_answer` answers a question from several passages. They are treated like the windows of one long context: a
span's score is not normalized within its passage, so spans of different passages can be compared, and probabilities are
a softmax over the best spans of all passages.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from bertree.config.settings import setting
from bertree.console import note
from bertree.errors import UserError, listed, suggest
from bertree.files.formats import Json
from bertree.tasks.files import find_splits, split_in_name
from bertree.tasks.metrics import Statistic, mean_statistic, softmax
from bertree.tasks.squad import official
from bertree.tasks.squad.official import ROWS, VERSIONS, SquadExample, read, read_questions
from bertree.tasks.squad.windows import NULL_TOKENS, AnswerSpan, SpanCandidates, best_spans, question_units
from bertree.tasks.task import Logits, Splits, Task, Truncation, Unit
from bertree.text.cleaning import replace_surrogates
from bertree.text.records import suffix_of
from bertree.text.tokenizer import Tokenizer

# What the user may set, and the head of the network: first and last token apart, or the last given the first.
HEADS = {"span": "span", "beam": "beam-span"}


@dataclass(frozen=True)
class SquadTask(Task[SquadExample]):
    """`squad` (1.1: every question has an answer) or `squad2` (2.0: some have none)."""

    max_length: int = 384
    stride: int = setting(128, "tokens from the start of one window to the start of the next")
    max_answer: int = setting(30, "tokens of the longest answer")
    best: int = setting(20, "spans that share a question's probability")
    threshold: float = setting(0.0, 'SQuAD 2.0: by how much a span\'s score must exceed that of "no answer"')
    no_answer: str = setting("first", "the token of no answer: first, or last for models that read from left to right")
    head: str = setting("span", "span, or beam: the end of an answer is predicted with its start known")
    kind = "question answering"
    layout = ("no_answer",)

    @property
    def metric(self) -> str:  # type: ignore[override]  # depends on the version
        """F1; for 2.0 with the best threshold, since the threshold is chosen at the end."""
        return "best_f1" if self.impossible else "f1"

    def __post_init__(self) -> None:
        if self.name not in VERSIONS:
            raise UserError(f"task '{self.name}': unknown; {suggest(self.name, VERSIONS)}")
        for name in ("stride", "max_answer", "best"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)}: must be at least 1")
        if self.head not in HEADS.values():
            if self.head not in HEADS:
                raise UserError(f"head '{self.head}': unknown; {suggest(self.head, HEADS)}")
            object.__setattr__(self, "head", HEADS[self.head])
        if self.no_answer not in NULL_TOKENS:
            raise UserError(f"no_answer '{self.no_answer}': unknown; {suggest(self.no_answer, NULL_TOKENS)}")

    @property
    def classes(self) -> int:
        """First and last token."""
        return 2

    @property
    def impossible(self) -> bool:
        """True if questions may have no answer: version 2.0."""
        return self.name == "squad2"

    def for_direction(self, direction: str) -> Self:
        return replace(self, no_answer="last") if direction == "forward" else self

    def for_heads(self, heads: Mapping[str, int]) -> Self:
        return replace(self, head=next((head for head in HEADS.values() if head in heads), self.head))

    def splits(self, data: Path) -> Splits:
        """Return the files with train, dev or test in their names; a version in the name selects 1.1 or 2.0."""
        if data.is_file():
            return {split_in_name(data.name) or "dev": (data,)}
        version = VERSIONS[self.name]
        other_versions = [name for name in VERSIONS.values() if name != version]
        names = (self.name, f"squad{version}", f"squad-v{version}", "squad")  # the last may hold 1.1 and 2.0
        versions = (version, *other_versions)
        try:
            return find_splits(data, names, kinds=(".json",), versions=versions)
        except UserError as error:
            with suppress(UserError):  # files of rows, if there is no official file
                return find_splits(data, names, kinds=ROWS, versions=versions)
            raise error

    def read(self, paths: Sequence[Path]) -> list[SquadExample]:
        """Read the questions of files in the official layout, plain or compressed."""
        return read(paths, self.impossible)

    def read_unlabeled(self, path: Path) -> Iterable[SquadExample] | None:
        """Return the questions of a file in the official layout."""
        return read_questions(path) if suffix_of(path) == ".json" else None

    def parse(self, record: str | Json, where: str = "input") -> SquadExample:
        """Parse {"question": ..., "context": ...}, or a line with a tab between the two."""
        if isinstance(record, str):
            question, tab, context = record.rstrip("\r\n").partition("\t")
            if not tab:
                raise UserError(f"{where}: a line must hold a question, a tab and the context to find its answer in")
            record = {"question": question, "context": context}
        for name in ("question", "context"):
            if not isinstance(record.get(name), str) or not record[name].strip():
                raise UserError(
                    f"{where}: a question needs a text in '{name}'; there is: {listed(record) or 'nothing'}"
                )
        identity = record.get("id", "")
        return SquadExample(
            str(identity), replace_surrogates(record["question"]), replace_surrogates(record["context"])
        )

    def check_training(self, examples: Sequence[SquadExample]) -> None:
        """Raise an error about an answer that is not in its context."""
        for example in examples:
            if absent := next((answer.text for answer in example.answers or () if answer.start is None), None):
                shown = absent if len(absent) <= 40 else absent[:37] + "..."
                line = f"{_where(example)}: an answer is not in its context at the given place: {shown!r}"
                raise UserError(f"{line}; it cannot be learned from, so correct it or leave the question out")

    def group(self, example: SquadExample) -> str | None:
        return example.context

    def units(
        self, examples: Sequence[SquadExample], tokenizer: Tokenizer, max_length: int
    ) -> tuple[list[Unit], Truncation]:
        """Return question and context in overlapping windows; only questions beyond 64 tokens are truncated."""
        absent = sum(answer.start is None for example in examples for answer in example.answers or ())
        if absent:
            where = examples[0].file or self.name
            note(f"{where}: {absent} answers are not in their contexts at the given places; they are only scored")
        return question_units(
            examples,
            tokenizer,
            max_length,
            stride=self.stride,
            max_answer=self.max_answer,
            no_answer=self.no_answer,
        )

    def predict(self, examples: Sequence[SquadExample], units: Sequence[Unit], logits: Sequence[Logits]) -> list[Json]:
        """Return the answers as they stand in the contexts, with their offsets."""
        lines = []
        together = zip(units, logits, strict=True)
        for number, group in groupby(together, key=lambda pair: pair[0].example):
            windows, rows = zip(*group, strict=True)
            candidates = best_spans(windows, rows, self.max_answer, self.best, self.head == "beam-span")
            lines.append(self._prediction(examples[number], candidates))
        assert len(lines) == len(examples), "units of every example, in their order"
        return lines

    def error(self, line: Json) -> float:
        """Return 0 for an exact match, 1 for any other answer."""
        return 1 - float(official.score_questions([line["gold"]], [line["predicted"]], 1 + self.impossible).exact[0])

    def prediction_text(self, line: Json) -> str:
        """Return answer, probability, offsets and question."""
        offsets = f"{line['start']}-{line['end']}" if line.get("start") is not None else "-"
        return (
            f"{' '.join(line['predicted'].split()) or 'no answer'}\t{line['score']:.3f}\t{offsets}\t{line['question']}"
        )

    def score(self, examples: Sequence[SquadExample], predictions: Sequence[Json]) -> dict[str, float]:
        """Return the scores of the official scripts, from 0 to 1. The best thresholds are theirs: on `null_odds`, with
        every question answered by its best span; this task's own threshold has the opposite sign."""
        golds = _gold_texts(examples)
        counted = official.score_questions(golds, [line.get("predicted") for line in predictions], 1 + self.impossible)
        figures = {"exact": official.mean_score(counted.exact), "f1": official.mean_score(counted.f1)}
        if not self.impossible:
            return figures
        has_answer = np.fromiter(map(bool, golds), bool, len(golds))
        for name, questions in (("has_answer", has_answer), ("no_answer", ~has_answer)):
            figures[f"{name}_exact"] = official.mean_score(counted.exact, questions)
            figures[f"{name}_f1"] = official.mean_score(counted.f1, questions)
        texts, odds = _candidates(predictions)
        answered = official.score_questions(golds, texts, 2)
        for name, each in (("exact", answered.exact), ("f1", answered.f1)):
            best = official.best_threshold(each, [bool(text) for text in texts], has_answer.tolist(), odds)
            figures[f"best_{name}"], figures[f"best_{name}_threshold"] = best
        return figures

    def statistics(self, examples: Sequence[SquadExample], predictions: Sequence[Json]) -> dict[str, Statistic]:
        """Return exact match and F1, over all questions and over those with and without an answer, and the best."""
        golds = _gold_texts(examples)
        counted = official.score_questions(golds, [line.get("predicted") for line in predictions], 1 + self.impossible)
        has_answer = np.fromiter(map(bool, golds), bool, len(golds))
        subsets = {"": np.ones_like(has_answer)}
        subsets |= {"has_answer_": has_answer, "no_answer_": ~has_answer} if self.impossible else {}
        statistics = {
            f"{name}{figure}": mean_statistic(np.asarray(values)[questions])
            for name, questions in subsets.items()
            for figure, values in (("exact", counted.exact), ("f1", counted.f1))
            if questions.any()
        }
        if self.impossible:
            texts, odds = _candidates(predictions)
            answered = official.score_questions(golds, texts, 2)
            for name, each in (("best_exact", answered.exact), ("best_f1", answered.f1)):
                statistics[name] = official.best_statistic(each, list(map(bool, texts)), has_answer.tolist(), odds)
        return statistics

    def tune(self, examples: Sequence[SquadExample], predictions: Sequence[Json]) -> Self:
        """2.0: return the task with the threshold of the highest F1 on these questions."""
        if not self.impossible:
            return self
        golds, (texts, odds) = _gold_texts(examples), _candidates(predictions)
        answering, refusing = (official.score_questions(golds, answers, 2).f1 for answers in (texts, [""] * len(texts)))
        cut = official.best_null_odds(answering, refusing, odds)
        return replace(self, threshold=-cut)

    def apply_tuning(self, predictions: Sequence[Json]) -> list[Json]:
        """Return predictions of version 2.0 with this task's threshold instead of the one they were made with."""
        return [self._decide(line) if self.impossible else line for line in predictions]

    def settings(self) -> Json:
        """Return how windows are cut and answers chosen."""
        layout = {"no_answer": self.no_answer} if self.no_answer != "first" else {}
        return {"stride": self.stride, "max_answer": self.max_answer, "threshold": self.threshold} | layout

    def submission(self, examples: Sequence[SquadExample], predictions: Sequence[Json]) -> dict[str, str]:
        """Return the answers by question, as the official scripts read them; for 2.0 also the odds of "no answer"."""
        files = {"predictions.json": _by_id(predictions, "predicted")}
        return files | ({"null_odds.json": _by_id(predictions, "null_odds")} if self.impossible else {})

    def _prediction(self, example: SquadExample, candidates: SpanCandidates) -> Json:
        line: Json = {"id": example.id, "question": example.question, "context": example.context}
        if example.answers is not None:
            line["gold"] = [answer.text for answer in example.answers]
        spans = candidates.spans
        scores = [span.score for span in spans] + ([candidates.null] if self.impossible or not spans else [])
        shares = softmax(scores).tolist()
        answer: Json = {"predicted": "", "start": None, "end": None, "score": shares[0]}
        if spans:
            text = example.context[spans[0].start : spans[0].end]
            answer |= {"predicted": text, "start": spans[0].start, "end": spans[0].end}
        if not self.impossible:
            return line | answer
        # Without any span (a context without a token) the odds say nothing: both decisions give no answer.
        odds = {"null_odds": candidates.odds if spans else 0.0, "null_score": shares[-1]}
        return self._decide(line | answer | odds | {"best": answer})

    def _decide(self, line: Json) -> Json:
        """Return the record with its best span as the answer, or with none."""
        if line["null_odds"] < -self.threshold:  # s_best > s_null + threshold
            return line | line["best"]
        return line | {"predicted": "", "start": None, "end": None, "score": line["null_score"]}


def _where(example: SquadExample) -> str:
    return f"{example.file}: question {example.id}" if example.file else f"question {example.id}"


def _gold_texts(examples: Sequence[SquadExample]) -> list[list[str]]:
    if unknown := next((example for example in examples if example.answers is None), None):
        raise UserError(f"{_where(unknown)}: has no gold answers to score against")
    return [[answer.text for answer in example.answers or ()] for example in examples]


def _candidates(predictions: Sequence[Json]) -> tuple[list[str], list[float]]:
    """Return the answer of each question if it is answered, and its odds of having none."""
    return [line["best"]["predicted"] for line in predictions], [line["null_odds"] for line in predictions]


def _by_id(predictions: Sequence[Json], field: str) -> str:
    values = {line["id"]: line[field] for line in predictions}
    if len(values) < len(predictions):
        raise UserError("several questions have the same id; a submission needs a different one for each")
    return json.dumps(values, ensure_ascii=False)


class Answer(NamedTuple):
    """A candidate answer: passages[passage][start:end]."""

    text: str
    score: float  # its probability among the candidates
    passage: int
    start: int
    end: int


class Answers(NamedTuple):
    """The answer to a question."""

    best: Answer | None  # None: the passages do not say it
    score: float  # probability of the best answer, or of there being none
    candidates: list[Answer]  # the likeliest first, with different texts


def choose_answer(
    task: SquadTask, passages: Sequence[str], units: Sequence[Unit], logits: Sequence[Logits], most: int = 5
) -> Answers:
    """Return the best answer and at most `most` candidates, from the units of all passages in order."""
    beam = task.head == "beam-span"
    spans: list[tuple[AnswerSpan, int]] = []
    nulls: list[SpanCandidates] = []
    for number, group in groupby(zip(units, logits, strict=True), key=lambda pair: pair[0].example):
        windows, rows = zip(*group, strict=True)
        candidates = best_spans(windows, rows, task.max_answer, task.best, beam)
        nulls.append(candidates)
        spans += [(span, number) for span in candidates.spans]
    kept = _distinct(spans, passages)[: task.best]
    scores = [span.score for span, _ in kept]
    odds = null = min(candidates.null for candidates in nulls)
    if beam:
        odds = min(candidates.odds for candidates in nulls)
        null = odds + float(np.logaddexp.reduce(scores or [0.0]))
    elif scores:
        odds = null - scores[0]
    shares = softmax([*scores, null] if task.impossible or not kept else scores).tolist()
    answers = [
        Answer(passages[number][span.start : span.end], share, number, span.start, span.end)
        for (span, number), share in zip(kept, shares, strict=False)
    ]
    if answers and (not task.impossible or odds < -task.threshold):
        return Answers(answers[0], answers[0].score, answers[:most])
    return Answers(None, shares[-1], answers[:most])


def _distinct(spans: Sequence[tuple[AnswerSpan, int]], passages: Sequence[str]) -> list[tuple[AnswerSpan, int]]:
    """Return the best span of each text, best first."""
    kept: dict[str, tuple[AnswerSpan, int]] = {}
    for span, number in sorted(spans, key=lambda pair: -pair[0].score):
        kept.setdefault(passages[number][span.start : span.end], (span, number))
    return list(kept.values())
