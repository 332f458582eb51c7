"""Answers from several passages."""

import pytest

import bertree
from bertree.errors import Unable, UserError
from tests.support.learnable import Trained

QUESTION = "which colour is it ?"
PASSAGES = ["the boat on a river", "a lamp in the green garden", "the table with a blue window", "stone and tree"]


@pytest.mark.parametrize("kind", ["squad", "squad2", "beam"])
def test_the_answer_in_one_passage_is_the_prediction(trained: Trained, kind: str) -> None:
    model = bertree.load(trained(kind) / "model")
    for passage in PASSAGES:
        (line,) = model.predict({"question": QUESTION, "context": passage})
        answer = model.answer(QUESTION, passage)
        assert answer.score == pytest.approx(line["score"], abs=1e-9)
        if answer.best is None:
            assert line["predicted"] == ""
        else:
            assert (answer.best.text, answer.best.start, answer.best.end) == (
                line["predicted"],
                line["start"],
                line["end"],
            )
            assert answer.best == answer.candidates[0]


@pytest.mark.parametrize("kind", ["squad", "squad2", "beam"])
def test_of_several_passages_the_one_with_the_answer_is_found(trained: Trained, kind: str) -> None:
    model = bertree.load(trained(kind) / "model")
    best = model.answer(QUESTION, [PASSAGES[0], PASSAGES[1], PASSAGES[3]])
    assert best.best is not None
    assert (best.best.text, best.best.passage) == ("green", 1)
    for answer in best.candidates:
        passage = [PASSAGES[0], PASSAGES[1], PASSAGES[3]][answer.passage]
        assert passage[answer.start : answer.end] == answer.text
    assert len({answer.text for answer in best.candidates}) == len(best.candidates) == 5
    assert sum(answer.score for answer in best.candidates) <= 1 + 1e-9
    twice = model.answer(QUESTION, [PASSAGES[2], PASSAGES[1], PASSAGES[2]], k=2)
    assert {answer.text for answer in twice.candidates} == {"green", "blue"}


def test_passages_without_an_answer_give_none(trained: Trained) -> None:
    model = bertree.load(trained("squad2") / "model")
    answer = model.answer(QUESTION, ["it the boat of a tree", "the stone it is on"])
    assert answer.best is None
    assert 0 < answer.score <= 1
    assert answer.candidates, "what would have been the answer"


def test_what_cannot_be_answered_is_said(trained: Trained) -> None:
    model = bertree.load(trained("squad") / "model")
    with pytest.raises(UserError, match="no passage"):
        model.answer(QUESTION, [])
    with pytest.raises(UserError, match="passage 2: a question needs a text in 'context'"):
        model.answer(QUESTION, ["a boat", " "])
    with pytest.raises(UserError, match="not for questions"):
        bertree.load(trained("ner") / "model").answer(QUESTION, "a boat")
    with pytest.raises(Unable, match="no task head"):
        bertree.load("bert-tiny").answer(QUESTION, "a boat")
