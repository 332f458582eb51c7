"""Our figures against scikit-learn's and scipy's, on random and on degenerate answers."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertree.tasks import metrics

sklearn = pytest.importorskip("sklearn.metrics")
scipy = pytest.importorskip("scipy.stats")

ANSWERS = st.integers(1, 4).flatmap(
    lambda kinds: st.lists(st.tuples(*[st.sampled_from("0123"[:kinds])] * 2), min_size=1, max_size=40)
)
# Few values, so that there are ties and constant columns; also any finite ones of a bearable size.
NUMBERS = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 5.0]), st.floats(-1e6, 1e6, width=32))
SCORES = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=40)


@given(ANSWERS)
def test_classification(answers: list[tuple[str, str]]) -> None:
    gold, predicted = [g for g, _ in answers], [p for _, p in answers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert metrics.accuracy(gold, predicted) == pytest.approx(sklearn.accuracy_score(gold, predicted))
        assert metrics.macro_f1(gold, predicted) == pytest.approx(sklearn.f1_score(gold, predicted, average="macro"))
        assert metrics.matthews(gold, predicted) == pytest.approx(sklearn.matthews_corrcoef(gold, predicted))
        peer = sklearn.f1_score([g == "1" for g in gold], [p == "1" for p in predicted])
        assert metrics.f1(gold, predicted) == pytest.approx(peer)


@given(SCORES)
def test_correlations(scores: list[tuple[float, float]]) -> None:
    gold, predicted = np.array(scores).T
    constant = np.ptp(gold) == 0 or np.ptp(predicted) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert metrics.ranks(gold) == pytest.approx(scipy.rankdata(gold))
        spearman = 0.0 if constant else scipy.spearmanr(gold, predicted).statistic
        assert metrics.spearman(gold, predicted) == pytest.approx(spearman, abs=1e-9)
        # Beside values a million times larger, scipy's own rounding shows.
        if constant or min(np.ptp(gold) / abs(gold).max(), np.ptp(predicted) / abs(predicted).max()) > 1e-3:
            pearson = 0.0 if constant else scipy.pearsonr(gold, predicted).statistic
            assert metrics.pearson(gold, predicted) == pytest.approx(pearson, abs=1e-6)


@pytest.mark.parametrize("figure", [metrics.pearson, metrics.spearman])
def test_what_is_undefined_is_nought(figure: object) -> None:
    assert callable(figure)
    for gold, predicted in (([], []), ([1.0], [2.0]), ([1, 2, 3], [0.1, 0.1, 0.1]), ([0.1] * 10, list(range(10)))):
        assert figure(gold, predicted) == 0.0
    assert figure([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert figure([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)


def test_no_answers_and_very_many() -> None:
    for figure in (metrics.accuracy, metrics.f1, metrics.macro_f1, metrics.matthews):
        assert figure([], []) == 0.0
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 3, 300_000)
    predicted = np.where(rng.random(300_000) < 0.6, gold, rng.integers(0, 3, 300_000))
    ours = metrics.matthews([str(g) for g in gold], [str(p) for p in predicted])
    assert ours == pytest.approx(sklearn.matthews_corrcoef(gold, predicted))
