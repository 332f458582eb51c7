"""What a task of vectors says and scores, on vectors written by hand."""

import numpy as np
import pytest

from bertree.batch import IGNORED
from bertree.errors import UserError
from bertree.tasks.similarity import SimilarityTask
from bertree.tasks.similarity_files import SentenceExample
from bertree.tasks.task import Unit
from bertree.text.tokenizer import Tokenizer
from tests.support.learnable import tokenizer


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return tokenizer()


def vectors(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


def judged(rows: list[SentenceExample], sides: list[np.ndarray], **more: object) -> tuple[list[dict], dict[str, float]]:
    task, kept = SimilarityTask("sentence", **more).with_dev_kind(rows)
    lines = task.predict(kept, [Unit(n, ()) for n in range(len(kept))], sides)
    assert task.metric in task.score(kept, lines)
    return lines, task.score(kept, lines)


def test_cosines_are_predicted_on_the_scale_of_the_dev_scores() -> None:
    rows = [SentenceExample(("a", "b"), 5.0), SentenceExample(("a", "c"), 2.0), SentenceExample(("a", "d"), 0.0)]
    sides = [vectors([1, 0], [2, 0]), vectors([1, 0], [3, 3]), vectors([1, 0], [0, 7])]
    lines, scores = judged(rows, sides)
    assert [line["score"] for line in lines] == pytest.approx([1, 0.5**0.5, 0])
    assert [line["predicted"] for line in lines] == pytest.approx([5, 5 * 0.5**0.5, 0]), "on the scale of the scores"
    assert scores["spearman"] == pytest.approx(1)
    assert scores["pearson"] == pytest.approx(np.corrcoef([5, 2, 0], [1, 0.5**0.5, 0])[0, 1])


def test_triplets() -> None:
    rows = [SentenceExample(("a", "b", "c")), SentenceExample(("d", "e", "f", "g")), SentenceExample(("h", "i", "j"))]
    sides = [
        vectors([1, 0], [9, 1], [0, 1]),  # nearer by the cosine, not by the distance
        vectors([1, 0], [1, 1], [0, 1], [1, 0.5]),
        vectors([1, 0], [1, 0.1], [0, 1]),
    ]
    lines, scores = judged([*rows, SentenceExample(("x", "y"))], sides)
    assert [line["predicted"] for line in lines] == ["positive", "negative", "positive"]
    assert scores == {"accuracy": pytest.approx(2 / 3), "euclidean_accuracy": pytest.approx(1 / 3)}


def test_positives_are_ranked_among_the_texts_of_their_pool() -> None:
    """The positive of the first is best, of the second is behind one; a positive of the same anchor does not count."""
    rows = [
        SentenceExample(("a", "b")),
        SentenceExample(("c", "d", "e")),
        SentenceExample(("a", "f")),
        SentenceExample(("g", "b")),
    ]
    sides = [
        vectors([1, 0, 0], [1, 0.2, 0]),
        vectors([0, 1, 0], [0, 1, 1], [0, 1, 0.1]),
        vectors([1, 0, 0], [1, 0.9, 0]),
        vectors([0, 0, 1], [1, 0.2, 0]),
    ]
    lines, scores = judged(rows, sides)
    assert [line["rank"] for line in lines] == [1, 2, 1, 4]
    assert lines[1]["predicted"] == "e"
    assert scores["mrr"] == pytest.approx((1 + 1 / 2 + 1 + 1 / 4) / 4)
    assert scores["recall_at_1"] == 0.5
    assert scores["recall_at_10"] == 1


def test_vectors_that_say_nothing_are_not_perfect() -> None:
    rows = [SentenceExample((str(n), f"{n}.")) for n in range(12)]
    for value in (1.0, 0.0, np.nan):
        _, scores = judged(rows, [vectors([value, value], [value, value])] * 12)
        assert scores["recall_at_1"] == 0
        assert scores["mrr"] == pytest.approx(1 / 12)


def test_classes() -> None:
    rows = [SentenceExample(("a", "b"), "yes"), SentenceExample(("a", "c"), "no")]
    lines, scores = judged(rows, [vectors([0, 3]), vectors([0, 1])], labels=("no", "yes"))
    assert [line["predicted"] for line in lines] == ["yes", "yes"]
    assert scores["accuracy"] == 0.5


def test_units(words: Tokenizer) -> None:
    task = SimilarityTask("sentence", loss="ranking", prompt="which is it ? ")
    rows = [SentenceExample(("boat", "tree", "road")), SentenceExample(("lamp", "tree"))]
    units, cut = task.units(rows, words, 32)
    assert [unit.answer for unit in units] == [(0, 1, 2), (3, 1, IGNORED)]
    assert units[0].sequences[1] == units[1].sequences[1]
    assert len(units[0].sequences[0].ids) == 2 + 5
    assert cut == (0, 0)
    _, cut = task.units([SentenceExample(("boat " * 40, "tree"))], words, 16)
    assert cut == (1, 44 - 14)
    task = SimilarityTask("sentence", loss="cosine", regression=True, low=1.0, high=5.0)
    assert task.units([SentenceExample(("boat", "tree"), 2.0)], words, 32)[0][0].answer == 0.25
    task = SimilarityTask("sentence", ("no", "yes"))
    assert task.units([SentenceExample(("boat", "tree"), "yes")], words, 32)[0][0].answer == 1
    with pytest.raises(UserError, match=r"label 'perhaps'.*\(no, yes\)"):
        task.units([SentenceExample(("boat", "tree"), "perhaps")], words, 32)
