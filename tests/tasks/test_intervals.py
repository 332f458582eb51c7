"""Confidence intervals: Wilson's values, samples of the known metrics equal those of the plain ones, few examples."""

import numpy as np
import pytest

from bertree.tasks import intervals, metrics
from bertree.tasks.intervals import correlation_interval, few_line, label_intervals, score_intervals, share_interval
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
    cells = label_intervals(tuple(figures), gold, predicted)
    drawn = [random.integers(0, 200, 200) for _ in range(1000)]
    for name, metric in figures.items():
        plain = [metric([gold[n] for n in chosen], [predicted[n] for n in chosen]) for chosen in drawn]
        assert cells[name] == pytest.approx(np.quantile(plain, (0.025, 0.975)), abs=0.02), name
        assert cells[name][0] < metric(gold, predicted) < cells[name][1]
    x = random.integers(0, 6, 200) / 2  # with ties
    y = x + random.normal(size=200)
    for name, metric in {"pearson": metrics.pearson, "spearman": metrics.spearman}.items():
        plain = [metric(x[chosen], y[chosen]) for chosen in drawn]
        assert correlation_interval(name, x, y) == pytest.approx(np.quantile(plain, (0.025, 0.975)), abs=0.02), name


def test_scores_of_any_function() -> None:
    """Means are found as such, a share of right answers among them; what is no mean is sampled."""
    examples, answers = list(range(100)), [n % 4 != 0 for n in range(100)]

    def score(some: object, predicted: list[bool]) -> dict[str, float]:
        return {"share": sum(predicted) / len(predicted), "spread": float(np.std(predicted))}

    found = score_intervals(score, examples, answers)
    assert found["share"] == share_interval(0.75, 100)
    low, high = found["spread"]
    assert 0.3 < low < np.std(answers) < high <= 0.5
    assert score_intervals(score, examples, answers) == found, "the same every time"


def test_what_is_right_throughout_is_not_certain() -> None:
    low, high = label_intervals(("macro_f1",), ["a", "b"] * 3, ["a", "b"] * 3)["macro_f1"]
    assert (low, high) == share_interval(1.0, 6)
    assert low < 0.7


def test_samples_of_one_class_do_not_count_as_no_correlation() -> None:
    gold, opposite = ["a", "b"] * 2, ["b", "a"] * 2
    low, high = share_interval(1.0, 4)
    assert label_intervals(("matthews",), gold, gold)["matthews"] == (low, high)
    assert label_intervals(("matthews",), gold, opposite)["matthews"] == (-high, -low)
    assert correlation_interval("pearson", [0, 0, 1, 1], [0, 0, 2, 2]) == (low, high)


def test_entities_of_a_sentence_stand_together() -> None:
    task = make_task("ner").with_labels(["O", "B-X"])
    sentences = [task.parse({"words": ["a", "b"]}) for _ in range(40)]
    gold = [sentence.__class__(sentence.words, ("B-X", "O")) for sentence in sentences]
    lines = [{"gold": ["B-X", "O"], "predicted": ["B-X", "O"] if n % 2 else ["O", "O"]} for n in range(40)]
    scores, found = task.score(gold, lines), task.intervals(gold, lines)
    assert set(found) == set(scores)
    assert all(found[name][0] <= value <= found[name][1] for name, value in scores.items())
    assert found["f1"][1] - found["f1"][0] > 0.15


def test_few_examples_are_said_with_what_they_can_show() -> None:
    assert few_line("dev", intervals.FEW) == ""
    assert "only one example is scored" in few_line("dev", 1)
    assert few_line("dev", 60).endswith("differences of less than about 18 points are within chance")
