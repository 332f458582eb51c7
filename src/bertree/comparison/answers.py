"""Compare the answers of models to the same examples: calibration, significance of differences, disagreements.

A task says what a right answer is (`Task.error`), how sure a model is of one (`Task.confidence`) and what its scores
are made of (`Task.statistics`); the rest holds for all tasks. Numbers and tagged sentences have no confidence.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertree.files.formats import Json
from bertree.finetuning.evaluate import ScoredSplit
from bertree.report.calibration import Calibration, calibrate
from bertree.report.comparison import AnsweredExample, Disagreement, ScoreDifference
from bertree.report.formats import digits
from bertree.tasks.metrics import Interval, paired_difference
from bertree.tasks.task import Task

SHOWN = 5  # examples on which a model is better than the other
ROOM = 320  # characters of a text that are shown


@dataclass(frozen=True)
class ModelScores:
    """The scores of several models with their intervals, and the comparison of their answers."""

    values: dict[str, list[float | None]] = field(default_factory=dict)
    intervals: dict[str, tuple[Interval | None, ...]] = field(default_factory=dict)
    calibration: tuple[Calibration | None, ...] = ()
    differences: tuple[ScoreDifference, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()


def model_scores(tasks: Sequence[Task[Any]], scored: Sequence[Sequence[ScoredSplit]]) -> ModelScores:
    """Return the scores of each model on all splits, the task's metric first, and compare the answers on the first
    split."""
    values = [
        {split.prefix + key: value for split in splits for key, value in split.scores.items()} for splits in scored
    ]
    spans = [
        {split.prefix + key: value for split in splits for key, value in split.intervals.items()} for splits in scored
    ]
    names = dict.fromkeys(name for of_model in values for name in of_model if not name.endswith("threshold"))
    order = sorted(names, key=lambda name: name != tasks[0].metric)
    first = [splits[0] for splits in scored]
    return ModelScores(
        {name: [of_model.get(name) for of_model in values] for name in order},
        {name: tuple(of_model.get(name) for of_model in spans) for name in order},
        calibrations(tasks[0], first),
        differences(tasks, first),
        disagreements(tasks[0], first),
    )


def calibrations(task: Task[Any], splits: Sequence[ScoredSplit]) -> tuple[Calibration | None, ...]:
    """Return the calibration of each model; None if its answers have no confidence."""
    calibrated = []
    for split in splits:
        lines = [line for line in split.predictions if line.get("gold") is not None]
        confidence = [(task.confidence(line), task.error(line) == 0) for line in lines]
        sure = [(share, right) for share, right in confidence if share is not None]
        calibrated.append(calibrate(*np.array(sure, np.float64).T) if sure else None)
    return tuple(calibrated)


def differences(tasks: Sequence[Task[Any]], splits: Sequence[ScoredSplit]) -> tuple[ScoreDifference, ...]:
    """Return the difference in the task's metric of each other model from the first."""
    name = splits[0].prefix + tasks[0].metric
    first, *others = (
        task.statistics(split.examples, split.predictions)[tasks[0].metric]
        for task, split in zip(tasks, splits, strict=True)
    )
    return tuple(ScoreDifference(name, *paired_difference(first, other)) for other in others)


def disagreements(task: Task[Any], splits: Sequence[ScoredSplit]) -> tuple[Disagreement, ...]:
    """Return the examples on which each other model answers better or worse than the first."""
    first, *others = ([line for line in split.predictions if line.get("gold") is not None] for split in splits)
    return tuple(_disagreement(task, first, other) for other in others)


def _disagreement(task: Task[Any], first: Sequence[Json], other: Sequence[Json]) -> Disagreement:
    pairs = list(zip(first, other, strict=True))
    errors_n2 = np.array([[task.error(line) for line in pair] for pair in pairs])
    kinds = [_kind(pair, errors) for pair, errors in zip(pairs, errors_n2.tolist(), strict=True)]
    sure_n2 = np.array([[task.confidence(line) or 0.0 for line in pair] for pair in pairs])
    examples: list[AnsweredExample] = []
    for better in (0, 1):
        lead_n = errors_n2[:, 1 - better] - errors_n2[:, better]
        order = np.lexsort((-sure_n2[:, 1 - better], -lead_n))  # the larger error first, then the surer wrong answer
        examples += [_example(task, pairs[n], better) for n in order[:SHOWN].tolist() if lead_n[n] > 0]
    return Disagreement(dict(sorted(Counter(kinds).items())), tuple(examples))


def _kind(pair: tuple[Json, Json], errors: Sequence[float]) -> str:
    """Return which of two answers is better, in words."""
    if isinstance(pair[0]["predicted"], float):
        return "equally close" if errors[0] == errors[1] else f"the {_nth(errors)} is closer"
    if min(errors) > 0:
        return "both wrong, " + ("alike" if pair[0]["predicted"] == pair[1]["predicted"] else "differently")
    return "both right" if max(errors) == 0 else f"only the {_nth(errors)} is right"


def _nth(errors: Sequence[float]) -> str:
    return "first" if errors[0] < errors[1] else "second"


def _example(task: Task[Any], pair: tuple[Json, Json], better: int) -> AnsweredExample:
    line = pair[0]
    texts = [str(line[name]) for name in ("question", "text", "pair", "context") if line.get(name)]
    if "options" in line:
        texts.append(" / ".join(map(str, line["options"])))
    shortened = tuple(text[:ROOM] + ("…" if len(text) > ROOM else "") for text in texts)
    gold, *answers = (_answer(pair, side) for side in (line["gold"], *(prediction["predicted"] for prediction in pair)))
    sure = tuple(task.confidence(prediction) for prediction in pair)
    return AnsweredExample(shortened, gold, (answers[0], answers[1]), (sure[0], sure[1]), better)


def _answer(pair: tuple[Json, Json], answer: Any) -> str:
    """Return an answer in words. Of a tagged sentence, only the words with different tags are shown."""
    if isinstance(answer, float):
        return digits(answer, 4)
    if "options" in pair[0] and isinstance(answer, int):
        return str(pair[0]["options"][answer])
    if "words" in pair[0]:
        rows = zip(pair[0]["words"], pair[0]["gold"], pair[0]["predicted"], pair[1]["predicted"], answer, strict=True)
        return " ".join(f"{word}/{tag}" for word, *tags, tag in rows if len(set(tags)) > 1)
    if isinstance(answer, list):
        return " / ".join(dict.fromkeys(answer)) or "no answer"
    return str(answer) or "no answer"
