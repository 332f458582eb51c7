"""What a task of vectors says and scores, on vectors written by hand."""

import numpy as np
import pytest

from bertree.errors import UserError
from bertree.objectives.objective import IGNORED
from bertree.tasks.similarity.read import Sentences
from bertree.tasks.similarity.task import SentenceTask
from bertree.tasks.task import Unit
from bertree.text.tokenizer import Tokenizer
from tests.support.learnable import tokenizer


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return tokenizer()


def vectors(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


def judged(rows: list[Sentences], given: list[np.ndarray], **more: object) -> tuple[list[dict], dict[str, float]]:
    task, kept = SentenceTask("sentence", **more).judged_by(rows)  # type: ignore[arg-type]
    lines = task.predict(kept, [Unit(n, ()) for n in range(len(kept))], given)
    assert task.metric in task.score(kept, lines)
    return lines, task.score(kept, lines)


def test_scores() -> None:
    rows = [Sentences(("a", "b"), 5.0), Sentences(("a", "c"), 2.0), Sentences(("a", "d"), 0.0)]
    given = [vectors([1, 0], [2, 0]), vectors([1, 0], [3, 3]), vectors([1, 0], [0, 7])]
    lines, found = judged(rows, given)
    assert [line["score"] for line in lines] == pytest.approx([1, 0.5**0.5, 0])
    assert [line["predicted"] for line in lines] == pytest.approx([5, 5 * 0.5**0.5, 0]), "on the scale of the scores"
    assert found["spearman"] == pytest.approx(1)
    assert found["pearson"] == pytest.approx(np.corrcoef([5, 2, 0], [1, 0.5**0.5, 0])[0, 1])


def test_triplets() -> None:
    rows = [Sentences(("a", "b", "c")), Sentences(("d", "e", "f", "g")), Sentences(("h", "i", "j"))]
    given = [
        vectors([1, 0], [9, 1], [0, 1]),  # nearer by the cosine, not by the distance
        vectors([1, 0], [1, 1], [0, 1], [1, 0.5]),
        vectors([1, 0], [1, 0.1], [0, 1]),
    ]
    lines, found = judged([*rows, Sentences(("x", "y"))], given)
    assert [line["predicted"] for line in lines] == ["positive", "negative", "positive"]
    assert found == {"accuracy": pytest.approx(2 / 3), "euclidean_accuracy": pytest.approx(1 / 3)}


def test_pairs() -> None:
    """The positive of the first is best, of the second is behind one; a positive of the same anchor does not count."""
    rows = [Sentences(("a", "b")), Sentences(("c", "d", "e")), Sentences(("a", "f")), Sentences(("g", "b"))]
    given = [
        vectors([1, 0, 0], [1, 0.2, 0]),
        vectors([0, 1, 0], [0, 1, 1], [0, 1, 0.1]),
        vectors([1, 0, 0], [1, 0.9, 0]),
        vectors([0, 0, 1], [1, 0.2, 0]),
    ]
    lines, found = judged(rows, given)
    assert [line["rank"] for line in lines] == [1, 2, 1, 4]
    assert lines[1]["predicted"] == "e"
    assert found["mrr"] == pytest.approx((1 + 1 / 2 + 1 + 1 / 4) / 4)
    assert found["recall_at_1"] == 0.5
    assert found["recall_at_10"] == 1


def test_vectors_that_say_nothing_are_not_perfect() -> None:
    rows = [Sentences((str(n), f"{n}.")) for n in range(12)]
    for value in (1.0, 0.0, np.nan):
        _, found = judged(rows, [vectors([value, value], [value, value])] * 12)
        assert found["recall_at_1"] == 0
        assert found["mrr"] == pytest.approx(1 / 12)


def test_classes() -> None:
    rows = [Sentences(("a", "b"), "yes"), Sentences(("a", "c"), "no")]
    lines, found = judged(rows, [vectors([0, 3]), vectors([0, 1])], labels=("no", "yes"))
    assert [line["predicted"] for line in lines] == ["yes", "yes"]
    assert found["accuracy"] == 0.5


def test_units(words: Tokenizer) -> None:
    task = SentenceTask("sentence", loss="ranking", before="which is it ? ")
    rows = [Sentences(("boat", "tree", "road")), Sentences(("lamp", "tree"))]
    units, cut = task.units(rows, words, 32)
    assert [unit.answer for unit in units] == [(0, 1, 2), (3, 1, IGNORED)]
    assert units[0].sequences[1] == units[1].sequences[1]
    assert len(units[0].sequences[0].ids) == 2 + 5
    assert cut == (0, 0)
    _, cut = task.units([Sentences(("boat " * 40, "tree"))], words, 16)
    assert cut == (1, 44 - 14)
    task = SentenceTask("sentence", loss="cosine", regression=True, low=1.0, high=5.0)
    assert task.units([Sentences(("boat", "tree"), 2.0)], words, 32)[0][0].answer == 0.25
    task = SentenceTask("sentence", ("no", "yes"))
    assert task.units([Sentences(("boat", "tree"), "yes")], words, 32)[0][0].answer == 1
    with pytest.raises(UserError, match=r"label 'perhaps' is not among those of the training set \(no, yes\)"):
        task.units([Sentences(("boat", "tree"), "perhaps")], words, 32)
