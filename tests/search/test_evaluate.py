"""The evaluation of search: figures of each mode, the page of failures, and the weight that is tuned."""

import json
from pathlib import Path

import numpy as np
import pytest

import bertree
from bertree.errors import UserError
from bertree.search.evaluation import SearchQuestion, difference
from bertree.search.index import Index
from bertree.search.questions import _choose_weight, _figures, read_questions
from tests.support.search_samples import SHIPS

ASKED = [
    {"question": "Two brigs and a sloop", "document": "c"},
    {"question": "a lantern in the tower", "document": ["b", "a"]},
    {"question": "brig at anchor", "document": "d"},
    {"question": "the ?", "document": "d"},
]


def test_figures_are_those_of_their_definitions() -> None:
    right = frozenset({"a", "b"})
    assert _figures(["x", "a", "y", "z", "u", "b"], right) == {
        "first": 0.0,
        "recall@5": 0.5,
        "recall@10": 1.0,
        "mrr": 0.5,
        "ndcg": pytest.approx((1 / np.log2(3) + 1 / np.log2(7)) / (1 + 1 / np.log2(3))),
    }
    assert set(_figures([], right).values()) == {0.0}
    assert set(_figures(["b", "a"], right).values()) == {1.0}


def test_each_mode_is_scored_on_the_same_questions(index: Index, tmp_path: Path) -> None:
    result = bertree.evaluate_search(index, ASKED, out=tmp_path / "out")
    assert [scores.mode for scores in result.modes] == ["words", "vectors", "hybrid"]
    words, _, hybrid = result.modes
    assert words.values["first"].tolist() == [1, 1, 0, 0], "a question of stop words finds nothing by words"
    assert hybrid.values["first"].tolist()[:3] == [1, 1, 0]
    figures = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert figures == json.loads(json.dumps(result.json()))
    assert figures["modes"]["words"]["first"]["over_words"] == {"mean": 0.0, "interval": [0.0, 0.0]}
    assert difference(np.array([1.0, 1, 0, 1]), np.array([0.0, 1, 0, 0]))["interval"] == [0.0, 1.0]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "brig at anchor" in page
    assert "The brig lay at anchor" in page, "what came first in place of the right document"
    assert "Two brigs and a sloop" not in page


def test_the_weight_is_tuned_on_half_and_kept_in_the_index(index: Index) -> None:
    before = index.state.word_weight
    tuned = bertree.evaluate_search(index, ASKED, tune=True).tuned
    assert tuned is not None
    assert (tuned.before, tuned.chosen_on, tuned.held_out) == (before, 2, 2)
    assert index.state.word_weight == tuned.weight != before
    index.add({"id": "e", "text": "Something new."})
    assert index.state.word_weight == tuned.weight


def test_of_weights_that_are_as_good_the_nearest_to_the_old_one_is_kept() -> None:
    assert _choose_weight(np.ones(21), 0.67) == 0.65
    scores = np.zeros(21)
    scores[4:8] = 1  # 0.2 to 0.35
    assert [_choose_weight(scores, before) for before in (0.0, 0.3, 0.67)] == [0.25, 0.3, 0.3]


class Shortest:
    def predict(self, inputs: list[tuple[str, str]]) -> list[dict[str, float]]:
        return [{"predicted": -float(len(text))} for _, text in inputs]


def test_a_reranker_is_a_further_mode(index: Index) -> None:
    *_, last = bertree.evaluate_search(index, ASKED, rerank=Shortest()).modes
    assert last.mode == "reranked"
    assert {ranked[0] for ranked in last.ranked} == {"a"}


def test_an_index_without_a_model_is_scored_by_words(index: Index) -> None:
    assert [scores.mode for scores in bertree.evaluate_search(Index.open(index.path), ASKED).modes] == ["words"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "has no questions"),
        ([{"question": "x"}], "has no column 'document'"),
        ([{"question": " ", "document": "a"}], "the question is empty"),
        ([{"question": "x", "document": []}], "has no document that answers"),
    ],
)
def test_bad_questions_are_refused_in_one_line(lines: list[dict], message: str, tmp_path: Path) -> None:
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match=message):
        read_questions(tmp_path / "asked.jsonl")


def test_documents_of_another_index_are_refused(index: Index) -> None:
    with pytest.raises(UserError, match="has none of these documents, such as 'x'"):
        bertree.evaluate_search(index, [SearchQuestion("x", frozenset({"x"}))])
    with pytest.raises(UserError, match="2 questions cannot be divided"):
        bertree.evaluate_search(index, ASKED[:2], tune=True)
    result = bertree.evaluate_search(index, [*ASKED, {"question": "x", "document": "gone"}])
    assert result.missing == ["gone"]


def test_mined_negatives_are_the_best_passages_of_other_documents(index: Index, tmp_path: Path) -> None:
    asked, out = tmp_path / "asked.jsonl", tmp_path / "mined.jsonl"
    rows = [{"question": "Two brigs", "document": "c"}, {"question": "x", "document": "gone"}]
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows))
    mined = bertree.mine_negatives(index, asked, out, negatives=2)
    assert (mined.rows, mined.missing) == (1, 1)
    (row,) = map(json.loads, out.read_text().splitlines())
    best = [hit.text for hit in index.search("Two brigs", 4) if hit.document != "c"]
    assert (row["positive"], row["negatives"]) == (SHIPS[2]["text"], best[:2])
    bertree.mine_negatives(index, asked, out, negatives=2, skip=1)
    assert json.loads(out.read_text())["negatives"] == best[1:3]
    with pytest.raises(UserError, match=r"must be a \.jsonl file"):
        bertree.mine_negatives(index, asked, tmp_path / "mined.csv")
