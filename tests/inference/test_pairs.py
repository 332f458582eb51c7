"""Pairs of texts given to a classifier."""

from pathlib import Path

import pytest

import bertree
from bertree.errors import UserError
from tests.support import learnable
from tests.support.learnable import Trained


def test_a_model_whose_folder_names_no_task_reads_both_texts_of_a_pair(tmp_path: Path) -> None:
    model = bertree.load(learnable.model(tmp_path / "model", learnable.tokenizer(), heads={"sequence": 1}))
    pairs = [("the boat", "a river"), ("the boat", "Ada is in Turin"), ("a river", "the boat")]
    scores = [line["predicted"] for line in model.predict(pairs)]
    assert len(set(scores)) == 3
    batch = model.batch(pairs)
    wanted = model.network.class_logits("sequence", model.network(batch), batch)[:, 0].tolist()
    assert scores == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(UserError, match="input 2: a pair must have two texts"):
        model.predict([("a", "b"), ("a", "b", "c")])
    with pytest.raises(UserError, match="input 1"):
        model.predict([("a", 5)])


def test_a_model_of_single_texts_refuses_a_pair(trained: Trained) -> None:
    model = bertree.load(trained("classification") / "model")
    with pytest.raises(UserError, match=r"input 1: is a pair of texts, but .* was fine-tuned on single texts"):
        model.predict([("the boat", "a fine river")])
