"""What answers tell: calibration as scikit-learn has it, disagreements of each kind of task, the frontier."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertree.comparison.answers import calibrations, differences, disagreements
from bertree.files.formats import Json
from bertree.finetuning.evaluate import ScoredSplit
from bertree.report.calibration import BINS, calibrate
from bertree.report.comparison import Comparison, read_comparison
from bertree.report.comparison_page import comparison_page, comparison_rows
from bertree.tasks.registry import make_task
from bertree.tasks.task import Task, Truncation
from tests.comparison.test_compare import LARGE, SMALL, speed
from tests.support.pages import Page


def split(task: Task[Any], lines: Sequence[Mapping[str, Any]], gold: Sequence[Any]) -> ScoredSplit:
    examples = [task.parse(dict(lines[0]))._replace(gold=value) for value in gold]
    return ScoredSplit("dev", Path("dev.csv"), examples, [dict(line) for line in lines], {}, {}, Truncation(), [], "")


def labels(predicted: Sequence[str], sure: Sequence[float], gold: Sequence[str]) -> list[Json]:
    rows = zip(predicted, sure, gold, strict=True)
    return [{"text": f"text {n}", "gold": g, "predicted": p, "score": s} for n, (p, s, g) in enumerate(rows)]


def answers_with_confidence() -> tuple[np.ndarray, np.ndarray]:
    """How sure a model is of each answer, and which are right."""
    random = np.random.default_rng(0)
    confidence = np.concatenate([random.uniform(0.3, 1, 500), np.arange(BINS + 1) / BINS])  # the edges too
    return confidence, (random.random(len(confidence)) < confidence**2).astype(float)


def test_calibration_is_that_of_a_plain_loop() -> None:
    confidence, right = answers_with_confidence()
    calibration = calibrate(confidence, right)
    assert calibration is not None
    edges, error = np.linspace(0, 1, BINS + 1), 0.0
    for low, high in pairwise(edges):
        inside = (confidence > low) & (confidence <= high) | (confidence == 0) & (low == 0)
        if inside.any():
            error += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert calibration.error == pytest.approx(error, abs=1e-12)
    assert calibration.right == pytest.approx(right.mean())
    assert calibration.confidence == pytest.approx(confidence.mean())
    assert calibrate(np.array([np.nan]), np.array([1.0])) is None


@pytest.mark.peer
def test_calibration_is_that_of_scikit_learn() -> None:
    curves = pytest.importorskip("sklearn.calibration")
    confidence, right = answers_with_confidence()
    calibration = calibrate(confidence, right)
    assert calibration is not None
    theirs = curves.calibration_curve(right, confidence, n_bins=BINS, strategy="uniform")
    ours = [[part.right for part in calibration.bins], [part.confidence for part in calibration.bins]]
    np.testing.assert_allclose(ours, theirs)


def test_disagreements_of_classes_are_counted_and_the_surest_mistakes_shown() -> None:
    task = make_task("classification").with_labels(["a", "b", "c"])
    gold = ["a", "a", "b", "b", "c", "c"]
    first = split(task, labels("aabaab", [0.9, 0.8, 0.7, 0.6, 0.5, 0.9], gold), gold)
    other = split(task, labels("abbbac", [0.9, 0.6, 0.7, 0.6, 0.5, 0.9], gold), gold)
    (disagreement,) = disagreements(task, [first, other])
    assert disagreement.counts == {
        "both right": 2, "both wrong, alike": 1, "only the first is right": 1, "only the second is right": 2,
    }  # fmt: skip
    shown = [(example.texts, example.answers, example.better) for example in disagreement.examples]
    assert shown == [(("text 1",), ("a", "b"), 0), (("text 5",), ("b", "c"), 1), (("text 3",), ("a", "b"), 1)]
    (difference,) = differences([task, task], [first, other])
    assert (difference.score, difference.value) == ("accuracy", pytest.approx(1 / 6))
    assert difference.verdict == "not significant"
    assert all(calibration is not None for calibration in calibrations(task, [first, other]))


def test_numbers_and_tags_have_no_calibration_and_differ_by_how_far_they_are_off() -> None:
    task = make_task("regression")
    gold = [1.0, 2.0, 3.0, 4.0]
    sides = [
        split(
            task, [{"text": "t", "gold": g, "predicted": p, "score": p} for g, p in zip(gold, side, strict=True)], gold
        )
        for side in ([1.0, 2.5, 1.0, 4.0], [1.5, 2.0, 2.9, 4.0])
    ]
    assert calibrations(task, sides) == (None, None)
    (disagreement,) = disagreements(task, sides)
    assert disagreement.counts == {"equally close": 1, "the first is closer": 1, "the second is closer": 2}
    assert [example.answers for example in disagreement.examples] == [("1", "1.5"), ("1", "2.9"), ("2.5", "2")]
    (difference,) = differences([task, task], sides)
    assert (difference.score, difference.value > 0) == ("spearman", True)
    ner = make_task("ner").with_labels(["O", "B-X"])
    words = {"text": "a b", "words": ["a", "b"], "gold": ["B-X", "O"], "score": 0.9}
    lines = [[words | {"predicted": tags}] for tags in (["B-X", "O"], ["B-X", "B-X"])]
    tagged = [split_of_words(lines_of_model) for lines_of_model in lines]
    assert calibrations(ner, tagged) == (None, None)
    assert disagreements(ner, tagged)[0].examples[0].answers == ("b/O", "b/B-X")


def split_of_words(lines: list[Json]) -> ScoredSplit:
    return ScoredSplit("dev", Path("dev"), [], lines, {}, {}, Truncation(), [], "")


def test_questions_are_right_by_exact_match_and_options_are_shown_as_texts() -> None:
    squad = make_task("squad")
    line = {"gold": ["The Boat"], "predicted": "boat."}
    assert (squad.error(line), squad.error(line | {"predicted": "a lamp"})) == (0.0, 1.0)
    race, asked = make_task("race"), {"context": "c", "question": "q", "options": ["x", "y"], "gold": 1, "score": 0.9}
    sides = [split_of_words([asked | {"predicted": answer}]) for answer in (0, 1)]
    (example,) = disagreements(race, sides)[0].examples
    assert (example.texts, example.gold, example.answers) == (("q", "c", "x / y"), "y", ("x", "y"))


def test_the_frontier_leaves_out_what_costs_more_and_scores_less() -> None:
    def model(name: str, latency: float, size: int) -> Any:
        return replace(LARGE, name=name, weight_bytes=size, speeds=(speed(latency_ms=latency),))

    models = (model("large", 60, 400), model("same", 59, 400), model("small", 10, 60), model("bad", 30, 500))
    comparison = Comparison(models, {"accuracy": (0.9, 0.85, 0.8, 0.7), "loss": (1.0, 2.0, 3.0, 4.0)})
    assert comparison.as_json()["frontier"] == {
        "latency_ms_cpu": ["large", "small"], "weight_bytes": ["large", "small"],
    }  # fmt: skip
    by_loss = Comparison(models, {"loss": (1.0, 2.0, 3.0, None)})
    assert by_loss.as_json()["frontier"]["weight_bytes"] == ["large", "small"]
    page = Page(comparison_page(comparison))
    assert "accuracy against milliseconds for a text, CPU" in page.titles()
    assert "on the frontier (filled): large, small" in page.text


def test_page_and_table_show_what_the_answers_tell(tmp_path: Path) -> None:
    task = make_task("classification").with_labels(["a", "b"])
    gold = ["a", "b"] * 40
    sides = [split(task, labels(side, [0.8] * 80, gold), gold) for side in (gold, ["a"] * 80)]
    comparison = Comparison(
        (LARGE, SMALL),
        {"accuracy": (1.0, 0.5)},
        calibration=calibrations(task, sides),
        differences=differences([task, task], sides),
        disagreements=disagreements(task, sides),
    )
    assert read_comparison(comparison.write(tmp_path)) == comparison
    rows = {row.name: row for row in comparison_rows(comparison)}
    assert rows["calibration error"].values == ["20.0 %", "30.0 %"]
    assert rows["  difference"].values == ["", "-50.00"]
    assert not comparison.is_kept("accuracy")
    page = Page(comparison_page(comparison))
    assert page.row("student", 0)[0] == "-50.00" or page.row("student", 1)[0] == "-50.00"
    assert page.row("only teacher is right") == ["40", "50.0 %"]
    assert "Where teacher and student disagree" in page.text
    assert "Reliability" in page.titles()
