"""Confidence intervals: Wilson's values, samples of the known metrics equal those of the plain ones, few examples."""

import numpy as np
import pytest

from bertree.tasks import metrics
from bertree.tasks.metrics import (
    correlation_statistic,
    few_line,
    interval,
    label_statistics,
    mean_statistic,
    paired_difference,
    score_statistics,
    share_interval,
)
from bertree.tasks.registry import make_task


def test_wilson_of_published_values() -> None:
    assert share_interval(0.9, 10) == pytest.approx((0.5958, 0.9821), abs=1e-4)  # Brown, Cai and DasGupta's formula
    assert share_interval(1.0, 1) == pytest.approx((0.2065, 1.0), abs=1e-4)
    assert share_interval(0.0, 50) == pytest.approx((0.0, 0.0714), abs=1e-4)


@pytest.mark.slow
def test_samples_by_cells_are_those_of_the_plain_metrics() -> None:
    """Counting cells must give what the metrics give on samples that are drawn one by one, up to the noise of both."""
    random = np.random.default_rng(1)
    gold = [str(n) for n in random.integers(0, 3, 200)]
    predicted = [g if random.random() < 0.7 else str(random.integers(0, 3)) for g in gold]
    figures = {"f1": metrics.f1, "macro_f1": metrics.macro_f1, "matthews": metrics.matthews}
    cells = {name: interval(parts) for name, parts in label_statistics(tuple(figures), gold, predicted).items()}
    drawn = [random.integers(0, 200, 200) for _ in range(1000)]
    for name, metric in figures.items():
        plain = [metric([gold[n] for n in chosen], [predicted[n] for n in chosen]) for chosen in drawn]
        assert cells[name] == pytest.approx(np.quantile(plain, (0.025, 0.975)), abs=0.02), name
        assert cells[name][0] < metric(gold, predicted) < cells[name][1]
    x = random.integers(0, 6, 200) / 2  # with ties
    y = x + random.normal(size=200)
    for name, metric in {"pearson": metrics.pearson, "spearman": metrics.spearman}.items():
        plain = [metric(x[chosen], y[chosen]) for chosen in drawn]
        assert interval(correlation_statistic(name, x, y)) == pytest.approx(
            np.quantile(plain, (0.025, 0.975)), abs=0.02
        ), name


def test_scores_of_any_function() -> None:
    """Means are found as such, a share of right answers among them; what is no mean is sampled."""
    examples, answers = list(range(100)), [n % 4 != 0 for n in range(100)]

    def score(some: object, predicted: list[bool]) -> dict[str, float]:
        return {"share": sum(predicted) / len(predicted), "spread": float(np.std(predicted))}

    first, again = (
        {name: interval(parts) for name, parts in score_statistics(score, examples, answers).items()} for _ in range(2)
    )
    assert first["share"] == share_interval(0.75, 100)
    low, high = first["spread"]
    assert 0.3 < low < np.std(answers) < high <= 0.5
    assert again == first, "the same every time"


def test_what_is_right_throughout_is_not_certain() -> None:
    low, high = interval(label_statistics(("macro_f1",), ["a", "b"] * 3, ["a", "b"] * 3)["macro_f1"])
    assert (low, high) == share_interval(1.0, 6)
    assert low < 0.7


def test_samples_of_one_class_do_not_count_as_no_correlation() -> None:
    gold, opposite = ["a", "b"] * 2, ["b", "a"] * 2
    low, high = share_interval(1.0, 4)
    assert interval(label_statistics(("matthews",), gold, gold)["matthews"]) == (low, high)
    assert interval(label_statistics(("matthews",), gold, opposite)["matthews"]) == (-high, -low)
    assert interval(correlation_statistic("pearson", [0, 0, 1, 1], [0, 0, 2, 2])) == (low, high)


def test_entities_of_a_sentence_stand_together() -> None:
    task = make_task("ner").with_labels(["O", "B-X"])
    sentences = [task.parse({"words": ["a", "b"]}) for _ in range(40)]
    gold = [sentence.__class__(sentence.words, ("B-X", "O")) for sentence in sentences]
    lines = [{"gold": ["B-X", "O"], "predicted": ["B-X", "O"] if n % 2 else ["O", "O"]} for n in range(40)]
    scores, intervals = task.score(gold, lines), task.intervals(gold, lines)
    assert set(intervals) == set(scores)
    assert all(intervals[name][0] <= value <= intervals[name][1] for name, value in scores.items())
    assert intervals["f1"][1] - intervals["f1"][0] > 0.15


def test_few_examples_are_said_with_what_they_can_show() -> None:
    assert few_line("dev", metrics.FEW) == ""
    assert "only one example is scored" in few_line("dev", 1)
    assert few_line("dev", 60).endswith("differences of less than about 18 points are within chance")


def test_a_difference_is_that_of_both_scores_on_the_same_samples() -> None:
    """Scored again on the samples one by one: means, F1 and Spearman alike, and two equal models do not differ."""
    random = np.random.default_rng(2)
    gold = [str(n) for n in random.integers(0, 2, 150)]
    first, second = ([g if random.random() < right else "0" for g in gold] for right in (0.6, 0.85))
    score = np.array([float(g) for g in gold]) + random.normal(size=150)
    drawn = [random.integers(0, 150, 150) for _ in range(1000)]
    pairs = {
        "accuracy": [label_statistics(("accuracy",), gold, side)["accuracy"] for side in (first, second)],
        "f1": [label_statistics(("f1",), gold, side)["f1"] for side in (first, second)],
        "spearman": [correlation_statistic("spearman", score, np.array(side, float)) for side in (first, second)],
    }
    plain = {"accuracy": metrics.accuracy, "f1": metrics.f1, "spearman": metrics.spearman}
    for name, (left, right) in pairs.items():
        metric, against = plain[name], score.tolist() if name == "spearman" else gold
        sides = [np.array(side, float if name == "spearman" else str).tolist() for side in (first, second)]
        values = [
            metric([against[n] for n in chosen], [sides[1][n] for n in chosen])
            - metric([against[n] for n in chosen], [sides[0][n] for n in chosen])
            for chosen in drawn
        ]
        difference = paired_difference(left, right)
        assert difference.value == pytest.approx(metric(against, sides[1]) - metric(against, sides[0])), name
        assert difference.interval == pytest.approx(np.quantile(values, (0.025, 0.975)), abs=0.03), name
        assert (difference.p < 0.05) == (difference.interval[0] > 0), name
        assert paired_difference(left, left) == (0.0, (0.0, 0.0), 1.0)
    assert paired_difference(*pairs["accuracy"]).p < 0.01
    near = paired_difference(mean_statistic([1, 0, 1, 1]), mean_statistic([0, 1, 1, 1]))
    assert (near.value, near.p) == (0.0, 1.0)
    assert near.interval[0] < 0 < near.interval[1]
