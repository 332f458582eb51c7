"""Control codes by the likelihood they give a text."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import bertree
from bertree.batch import Batch
from bertree.errors import BertreeWarning, UserError
from bertree.inference.model import Model
from bertree.text.framing import control_prefix
from tests.support.language_models import CODES, language_model

TEXTS = ["the lamp of a stone", "red", "to the garden by the window in the river"]


@pytest.fixture(scope="module")
def model() -> Model:
    return language_model("ctrl", CODES)


def log_likelihood(model: Model, code: str, text: str) -> float:
    tokenizer = model.required_tokenizer
    before, ids = control_prefix(tokenizer, code), tokenizer.encode_plain([text])[0].ids
    batch = Batch.pack([[*before, *ids]])
    with torch.no_grad():
        logs = model.network.mask_logits(model.network(batch), torch.arange(len(batch.ids) - 1)).log_softmax(1)
    places = range(len(before) - 1, len(batch.ids) - 1)
    return float(sum(logs[place, int(batch.ids[place + 1])] for place in places))


def test_codes_are_ranked_by_the_likelihood_of_the_text(model: Model) -> None:
    for ranking, text in zip(model.attribute(TEXTS), TEXTS, strict=True):
        wanted = {code: log_likelihood(model, code, text) for code in CODES}
        assert {rank.code: rank.log_likelihood for rank in ranking} == pytest.approx(wanted, abs=1e-4)
        assert [rank.code for rank in ranking] == sorted(CODES, key=lambda code: -wanted[code])
        assert sum(rank.probability for rank in ranking) == pytest.approx(1)
        odds = ranking[0].probability / ranking[1].probability
        assert math.log(odds) == pytest.approx(ranking[0].log_likelihood - ranking[1].log_likelihood, abs=1e-6)
        assert ranking[0].loss == pytest.approx(-ranking[0].log_likelihood / ranking.tokens)
        assert ranking[0].code in repr(ranking)
        assert len(ranking) == 3


def test_a_prior_weighs_the_codes(model: Model) -> None:
    (flat,) = model.attribute(TEXTS[0])
    (ranking,) = model.attribute(TEXTS[0], prior={"boat": 2, "tree": 1, "river": 1})
    before = {rank.code: rank.probability for rank in flat}
    whole = 1 + before["boat"]
    wanted = {code: p * (2 if code == "boat" else 1) / whole for code, p in before.items()}
    assert {rank.code: rank.probability for rank in ranking} == pytest.approx(wanted)
    (some,) = model.attribute(TEXTS[0], codes=["tree", "river"])
    assert np.isclose(sum(rank.probability for rank in some), 1)
    assert {rank.code for rank in some} == {"tree", "river"}


def test_the_prior_of_a_token_store_is_the_share_of_documents(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    for code, count in (("boat", 3), ("tree", 1), ("river", 1)):
        (tmp_path / "texts" / code).mkdir(parents=True)
        (tmp_path / "texts" / code / "a.txt").write_text("\n\n".join(f"the {code} of {n}" for n in range(count)))
    bertree.prepare(tmp_path / "texts", tmp_path / "model", tmp_path / "store", control="folder", workers=1)
    (ranking,) = model.attribute(TEXTS[0], prior=tmp_path / "store")
    (wanted,) = model.attribute(TEXTS[0], prior={"boat": 3, "tree": 1, "river": 1})
    assert ranking == wanted


def test_mistakes(model: Model) -> None:
    with pytest.raises(UserError, match="did you mean 'river'"):
        model.attribute("the", codes=["rivr"])
    with pytest.raises(UserError, match="prior: the code 'tree' needs a weight above 0"):
        model.attribute("the", prior={"boat": 1})
    with pytest.raises(UserError, match="nowhere"):
        model.attribute("the", prior="nowhere")
    with pytest.raises(UserError, match="a text has no tokens"):
        model.attribute("")
    with pytest.raises(UserError, match="was not trained with control codes"):
        language_model("gpt2").attribute("the")


def test_a_long_text_is_cut_with_a_note() -> None:
    model = language_model("gpt2", CODES)
    with pytest.warns(BertreeWarning, match="1 of 2 texts cut"):
        ranking = model.attribute(["the", " ".join(["the"] * 60)])
    assert [text.tokens for text in ranking] == [1, 48 - 3]


def test_given_texts_are_ranked_by_the_likelihood_they_give() -> None:
    model = language_model("gpt2", CODES)
    model._contents.takes_given = True
    tokenizer, text, given_texts = (
        model.required_tokenizer,
        "the lamp on the road",
        ["a stone", "the window by the river"],
    )
    (ranked,) = model.attribute(text, codes=["tree"], given=given_texts)
    assert sorted(score.given for score in ranked) == given_texts
    for score in ranked:
        perplexity = model.perplexity(text, control="tree", given=score.given)
        assert score.log_likelihood == pytest.approx(-perplexity.total, rel=1e-5)
    before = control_prefix(tokenizer, "tree", given_texts[0])
    assert before == control_prefix(tokenizer, "tree") + tokenizer.encode_plain(given_texts)[0].ids + [
        tokenizer.id_of("sep")
    ]
    (texts,) = model.generate("the lamp", control="tree", given=given_texts[0], tokens=4, temperature=0)
    (same,) = model.generate([before + tokenizer.encode_plain(["the lamp"])[0].ids], tokens=4, temperature=0)
    assert texts.ids == same.ids
    assert texts.given == given_texts[0]


def test_given_texts_that_are_refused() -> None:
    model = language_model("gpt2", CODES)
    with pytest.raises(UserError, match="trained with control codes alone"):
        model.generate("a", control="tree", given="a stone")
    model._contents.takes_given = True
    with pytest.raises(UserError, match="follows a control code; give one too"):
        model.generate("a", given="a stone")
    with pytest.raises(UserError, match="tokens, and bertree has 48 positions: nothing can follow; shorten it"):
        model.generate("a", control="tree", given="stone " * 60)
