"""SQuAD's counting, by cases worked out by hand from the rules of the two official scripts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertree.tasks.squad import official


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Cat", "cat"),
        ("theatre in another banana", "theatre in another banana"),  # articles inside words stay
        ("a cat, an owl and the dog!", "cat owl and dog"),
        ("5 a.m.", "5 am"),  # full stops go before articles are looked for
        ("the-end", "theend"),
        ("vitamin A", "vitamin"),
        ("1914–18", "1914–18"),  # only ASCII punctuation is dropped
        ("Ada’s", "ada’s"),
        ("Ada's", "adas"),
        ("a’s", "’s"),  # but ’ is no letter, so an article beside it is a word of its own
        ("«the»", "« »"),
        ("_the_", ""),
        ("  two\u00a0 \n words\t", "two words"),
        ("$3.50", "350"),
        ("The", ""),
        ("...", ""),
        ("", ""),
    ],
)
def test_what_counts_of_a_text(text: str, expected: str) -> None:
    assert official.normalize(text) == expected


@pytest.mark.parametrize(
    ("gold", "predicted", "exact", "f1"),
    [
        ("the old bridge", "Old Bridge.", 1, 1),
        ("old bridge", "old stone bridge", 0, 0.8),  # 2 of 3 right, 2 of 2 found
        ("red red wine", "red wine wine", 0, 2 / 3),  # bags, not sets: red and wine once each
        ("one two", "two one", 0, 1),  # order does not matter to F1
        ("1914–18", "1914-18", 0, 0),
        ("Paris", "London", 0, 0),
        ("Paris", "", 0, 0),
    ],
)
def test_one_answer(gold: str, predicted: str, exact: float, f1: float) -> None:
    for version in (1, 2):
        counted = official.score_questions([[gold]], [predicted], version)
        assert counted.exact.tolist() == [exact]
        assert counted.f1.tolist() == pytest.approx([f1], abs=1e-15)


@pytest.mark.parametrize(
    ("golds", "predicted", "version", "exact", "f1"),
    [
        # Nothing left on both sides: equal, but in 1.1 no word in common.
        (["The"], "", 1, 1, 0),
        (["The"], "a", 1, 1, 0),
        (["The"], "", 2, 1, 1),
        # No answer.
        ([], "", 2, 1, 1),
        ([], "the", 2, 1, 1),
        ([], "something", 2, 0, 0),
        # In 2.0 a gold text of which nothing is left does not count beside others; in 1.1 it does.
        (["The", "Paris"], "", 1, 1, 0),
        (["The", "Paris"], "", 2, 0, 0),
        (["The", "Paris"], "paris", 2, 1, 1),
        # The best of several, exact and F1 each on its own.
        (["old bridge", "the stone bridge", "bridge"], "Stone Bridge", 1, 1, 1),
        (["old bridge", "bridge of stone"], "stone bridge", 1, 0, 0.8),
        # No prediction at all.
        (["Paris"], None, 1, 0, 0),
        ([], None, 2, 0, 0),
    ],
)
def test_golds(golds: list[str], predicted: str | None, version: int, exact: float, f1: float) -> None:
    counted = official.score_questions([golds], [predicted], version)
    assert (counted.exact[0], counted.f1[0]) == (exact, pytest.approx(f1))


def test_a_missing_prediction_counts_in_the_share() -> None:
    counted = official.score_questions([["yes"], ["no"], ["maybe so"]], ["yes", None, "maybe"], 1)
    assert official.mean_score(counted.exact) == pytest.approx(1 / 3)
    assert official.mean_score(counted.f1) == pytest.approx((1 + 0 + 2 / 3) / 3)
    assert official.mean_score(counted.f1, np.array([False, True, False])) == 0
    assert official.mean_score(counted.f1, np.zeros(3, bool)) == 0


def test_best_threshold_by_hand() -> None:
    # By odds: right (-3), wrong text for an unanswerable one (-1), half right (0), right (2), unanswerable (4).
    figures = np.array([0.5, 1.0, 0.0, 0.0, 1.0])
    has_answer = [True, True, False, False, True]
    odds = [0.0, -3.0, 4.0, -1.0, 2.0]
    # From 2 unanswerable ones: 3, 2, 2.5, 3.5, 2.5.
    assert official.best_threshold(figures, [True] * 5, has_answer, odds) == (3.5 / 5, 2.0)
    # With an empty prediction for the unanswerable one at -1 nothing is lost there: 3, 3, 3.5, 4.5, 3.5.
    assert official.best_threshold(figures, [True, True, True, False, True], has_answer, odds) == (4.5 / 5, 2.0)
    # Where equal the first is kept; where nothing is gained by answering, 0.
    assert official.best_threshold(np.array([1.0, 0.0, 0.0]), [True] * 3, [True, True, True], [1.0, 2.0, 3.0]) == (
        1 / 3,
        1.0,
    )
    assert official.best_threshold(np.array([0.0, 0.0]), [True] * 2, [False, True], [5.0, 6.0]) == (0.5, 0.0)


def test_the_cut_does_not_part_equal_odds() -> None:
    # Answering one of the two at 1 alone would be best, but no threshold can.
    answering, refusing = np.array([1.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0])
    assert official.best_threshold(answering, [True] * 3, [True, False, True], [1.0, 1.0, 3.0]) == (2 / 3, 1.0)
    assert official.best_null_odds(answering, refusing, [1.0, 1.0, 3.0]) > 3.0
    assert official.best_null_odds(answering, refusing, [1.0, 3.0, 5.0]) == 2.0
    assert official.best_null_odds(refusing, answering, [1.0, 3.0, 1.0]) < 1.0
    assert official.best_null_odds(np.zeros(0), np.zeros(0), []) == 0.0


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0.0, 1.0]), st.integers(-3, 3)), min_size=1, max_size=12))
def test_the_cut_is_the_best_there_is(rows: list[tuple[float, float, int]]) -> None:
    answering, refusing, odds = (np.array(column, np.float64) for column in zip(*rows, strict=True))

    def total(cut: float) -> float:
        return float(np.where(odds < cut, answering, refusing).sum())

    assert total(official.best_null_odds(answering, refusing, odds.tolist())) == pytest.approx(
        max(total(cut + 0.5) for cut in range(-5, 5))
    )


texts = st.text(st.sampled_from("aAnN tThHeE.,-–’'é\n_1bc"), max_size=20)


@given(texts, texts, st.booleans())
def test_laws(gold: str, predicted: str, empty_counts: bool) -> None:
    score = official.f1(gold, predicted, empty_counts)
    assert 0 <= score <= 1
    assert score == pytest.approx(official.f1(predicted, gold, empty_counts))
    assert official.exact(gold, predicted) <= official.f1(gold, predicted, True)  # what is equal overlaps fully
    assert official.normalize(gold.upper()) == official.normalize(gold)
    assert official.exact(gold, f" the\n{gold}!") == 1


def test_the_best_threshold_is_searched_again_in_every_sample() -> None:
    random = np.random.default_rng(0)
    counted, odds, has_answer = random.random(40), random.normal(size=40), random.random(40) < 0.6
    answered = (random.random(40) < 0.8).tolist()
    statistic = official.best_statistic(counted, answered, has_answer.tolist(), odds.tolist())
    for counts in (np.ones(40), np.bincount(random.integers(0, 40, 40), minlength=40)):
        drawn = np.repeat(np.arange(40), counts.astype(int))
        plain = official.best_threshold(
            counted[drawn], [answered[n] for n in drawn], has_answer[drawn].tolist(), odds[drawn].tolist()
        )
        share = statistic.of_samples(counts[None].astype(float), statistic.rows_nk)
        assert share.tolist() == pytest.approx([plain.share])
