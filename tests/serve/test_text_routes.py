"""Masks, entities, answers, layers and the design space over HTTP: what the Python API gives; mistakes in one line."""

import json
from base64 import b64decode

import numpy as np
import pytest

from tests.support.asking import Asker, refused

QUESTION = "which colour is it ?"
PASSAGE = "a lamp in the green garden"


def test_masks_are_filled_as_by_the_model(own: Asker) -> None:
    text = "Ünter 🙂 the <mask> on the [MASK] of Oslo"
    report = own.post("/fill", {"text": text, "k": 3, "model": "words"}).json
    model = own.service.registry.model("words").model
    assert (report["model"], report["cut"]) == ("words", False)
    for mask, wanted in zip(report["masks"], model.fill_masks(text, 3), strict=True):
        assert text[mask["start"] : mask["end"]] in ("<mask>", "[MASK]")
        assert (mask["start"], mask["end"]) == (wanted.start, wanted.end)
        for shown, candidate in zip(mask["candidates"], wanted.candidates, strict=True):
            assert shown["text"] == candidate.token
            assert model.required_tokenizer.backend.token_to_id(shown["token"]) == candidate.id
            assert shown["probability"] == pytest.approx(candidate.probability, abs=1e-6)


def test_texts_that_are_filled_at_the_same_time_get_their_own_masks(own: Asker) -> None:
    model = own.service.registry.model("words").model
    texts = [f"{'the boat ' * n}<mask> and [MASK]" for n in range(12)]
    answers = own.post_all([("/fill", {"text": text, "k": n + 1}) for n, text in enumerate(texts)])
    for n, (text, answer) in enumerate(zip(texts, answers, strict=True)):
        wanted = model.fill_masks(text, n + 1)
        masks = [mask["candidates"] for mask in answer.json["masks"]]
        probabilities = [[candidate["probability"] for candidate in candidates] for candidates in masks]
        assert probabilities == [pytest.approx([c.probability for c in mask.candidates], abs=1e-6) for mask in wanted]


def test_a_text_that_is_cut_is_reported(own: Asker) -> None:
    answer = own.post("/fill", {"text": "the <mask> " + "boat " * 200})
    assert answer.json["cut"] is True
    assert answer.headers["x-truncated-texts"] == "1"
    assert int(answer.headers["x-truncated-tokens"]) == 76
    assert "x-truncated-texts" not in own.post("/fill", {"text": "the <mask>"}).headers


def test_a_wrong_field_of_fill_is_named(own: Asker) -> None:
    assert "no mask" in refused(own, "/fill", {"text": "no mask"}, "text")
    assert "empty" in refused(own, "/fill", {"text": " "}, "text")
    assert "cut off" in refused(own, "/fill", {"text": "boat " * 200 + "[MASK]"}, "text")
    for k in (0, -1, 1001, 10**30, 1.5, "5", None):
        refused(own, "/fill", {"text": "[MASK]", "k": k}, "k")
    refused(own, "/fill", {"text": 5}, "text")
    refused(own, "/fill", {"text": "[MASK]", "model": "wrds"}, "model", 404)
    assert "cannot fill masks" in refused(own, "/fill", {"text": "[MASK]", "model": "gpt"}, "model")
    assert own.post("/fill", {}).status == 422


@pytest.mark.parametrize("name", ["ner", "crf"])
def test_entities_are_those_that_the_model_predicts(own: Asker, name: str) -> None:
    text = "the boat of Ada Emil – in 🙂 Turin, and Greta"
    report = own.post("/entities", {"text": text, "model": name}).json
    (line,) = own.service.registry.model(name).model.predict([text])
    assert len(report["entities"]) == len(line["entities"]) >= 2
    for entity, wanted in zip(report["entities"], line["entities"], strict=True):
        assert text[entity["start"] : entity["end"]] == entity["text"] == wanted["text"]
        assert entity["label"] == wanted["type"]
        assert entity["score"] == (None if name == "crf" else pytest.approx(wanted["score"], abs=1e-6))
    assert report["cut"] is False


def test_a_long_text_is_read_whole_in_windows(own: Asker) -> None:
    text = " ".join(["the boat on a river"] * 60 + ["Ada"] + ["of the stone"] * 20)
    report = own.post("/entities", {"text": text, "model": "ner"}).json["entities"]
    (line,) = own.service.registry.model("ner").model.predict([text])
    assert [e["start"] for e in report] == [e["start"] for e in line["entities"]]
    assert text.index("Ada") in [e["start"] for e in report]


def test_a_wrong_field_of_entities_is_named(own: Asker) -> None:
    refused(own, "/entities", {"text": ""}, "text")
    refused(own, "/entities", {"text": ["a"]}, "text")
    assert "these can: ner, crf" in refused(own, "/entities", {"text": "a", "model": "words"}, "model")
    assert own.post("/entities", {"text": "\u200b"}).json["entities"] == []


def test_the_answer_in_a_passage_is_that_of_the_model(own: Asker) -> None:
    report = own.post("/answer", {"question": QUESTION, "passage": PASSAGE}).json
    wanted = own.service.registry.model("squad2").model.answer(QUESTION, PASSAGE)
    assert wanted.best is not None
    assert (report["model"], report["answer"], report["passage"], report["cut"]) == ("squad2", "green", None, False)
    assert (report["start"], report["end"]) == (wanted.best.start, wanted.best.end)
    assert report["score"] == pytest.approx(wanted.score, abs=1e-6)
    answers = [candidate.text for candidate in wanted.candidates]
    assert [candidate["answer"] for candidate in report["candidates"]] == answers
    none = own.post("/answer", {"question": QUESTION, "passage": "it the boat of a tree"}).json
    assert (none["answer"], none["start"], none["end"]) == (None, None, None)
    assert 0 < none["score"] <= 1
    long = own.post("/answer", {"question": "which colour " * 60, "passage": PASSAGE})
    assert long.json["cut"] is True
    assert long.headers["x-truncated-texts"] == "1"


def test_a_question_is_answered_from_an_index(own: Asker) -> None:
    report = own.post("/answer", {"question": QUESTION, "k": 3}).json
    index = own.service.registry.index("passages").index
    hits = index.search(QUESTION, k=3)
    wanted = own.service.registry.model("squad2").model.answer(QUESTION, [hit.text for hit in hits])
    assert wanted.best is not None
    assert report["answer"] == wanted.best.text
    assert report["passage"]["document"] == hits[wanted.best.passage].document
    text = report["passage"]["text"]
    assert text[report["start"] : report["end"]] == report["answer"]
    for candidate in report["candidates"]:
        assert candidate["passage"]["text"][candidate["start"] : candidate["end"]] == candidate["answer"]
    only = own.post("/answer", {"question": QUESTION, "where": {"place": "garden"}, "rerank": "pair"}).json
    assert only["passage"]["metadata"]["place"] == "garden"


def test_a_wrong_field_of_answer_is_named(own: Asker) -> None:
    refused(own, "/answer", {"question": " ", "passage": PASSAGE}, "question")
    refused(own, "/answer", {"question": QUESTION, "passage": " "}, "passage")
    refused(own, "/answer", {"question": QUESTION, "passage": PASSAGE, "index": "passages"}, "index")
    refused(own, "/answer", {"question": QUESTION, "index": "pasages"}, "index", 404)
    refused(own, "/answer", {"question": QUESTION, "where": {"place": "nowhere"}}, "where")
    refused(own, "/answer", {"question": QUESTION, "k": 0}, "k")
    refused(own, "/answer", {"question": QUESTION, "passage": PASSAGE, "model": "ner"}, "model")


def test_layers_are_those_of_the_model(own: Asker) -> None:
    model = own.service.registry.model("words").model
    report = own.post("/layers", {"text": "the <mask> boat", "pair": "a river", "model": "words"}).json
    wanted = model.inspect(("the <mask> boat", "a river"))
    count = len(wanted.tokens)
    assert report["tokens"] == wanted.tokens
    assert [len(layer) for layer in report["attention"]] == [2, 2]
    assert report["attention"][1][0][3] == pytest.approx(wanted.attention[1, 0, 3].tolist(), abs=1e-4)
    assert [len(layer) for layer in report["lens"]] == [count] * 3
    assert report["lens"][-1][2][0]["text"] == wanted.lens[-1][2][0].token
    assert report["norms"][0] == pytest.approx(wanted.norms[0].tolist(), abs=1e-3)
    assert report["cut"] is False
    long = own.post("/layers", {"text": "boat " * 500, "model": "words"}).json
    assert (len(long["tokens"]), long["cut"]) == (128, True)
    assert own.post("/layers", {"text": "the boat", "model": "ner"}).json["lens"] is None
    refused(own, "/layers", {"text": ""}, "text")
    refused(own, "/layers", {"text": "a", "pair": ""}, "pair")


def test_attention_can_be_had_in_few_bytes(own: Asker) -> None:
    body = {"text": "the <mask> boat", "model": "words"}
    wanted = np.array(own.post("/layers", body).json["attention"])
    packed = own.post("/layers", body | {"encoding_format": "base64"}).json
    count = len(packed["tokens"])
    matrices = [
        np.frombuffer(b64decode(layer), np.uint8).reshape(-1, count, count) / 255 for layer in packed["attention"]
    ]
    assert np.abs(np.array(matrices) - wanted).max() < 0.5 / 255 + 1e-4
    for form in ({}, {"encoding_format": "base64"}):
        whole = own.post("/layers", body | form).json
        assert own.post("/layers", body | form | {"layers": [2]}).json == whole | {"attention": whole["attention"][1:]}
    long = {"text": "boat " * 500, "model": "words", "encoding_format": "base64"}
    assert len(b64decode(own.post("/layers", long).json["attention"][0])) == 2 * 128 * 128
    for layers in ([0], [3], [1, 2, 1], 1, ["1"]):
        refused(own, "/layers", body | {"layers": layers}, "layers")
    refused(own, "/layers", body | {"encoding_format": "hex"}, "encoding_format")


def test_the_design_space_is_live(own: Asker) -> None:
    space = own.get("/space").json
    assert "albert-base" in {point["name"] for point in space["presets"]}
    axes = {axis["name"]: axis for axis in space["axes"]}
    assert axes["sharing"]["choices"] == ["none", "attention", "ffn", "all"]
    point = own.post("/space", {"preset": "albert-base", "changes": {"layers": 6}, "length": 128, "batch": 8}).json
    assert point["valid"] is True
    assert {"axis": "layers", "before": 12, "value": 6} in point["differences"]
    assert set(point["memory"]) == {"weights", "gradients", "optimizer", "activations", "peak"}
    wrong = own.post("/space", {"preset": "bert-base", "changes": {"heads": 7}})
    assert (wrong.status, wrong.json["valid"]) == (200, False)
    assert "heads" in wrong.json["message"]
    assert "did you mean 'bert-base'" in refused(own, "/space", {"preset": "bert-bse"}, "preset")
    refused(own, "/space", {"preset": "bert-base", "batch": 0}, "batch")
    refused(own, "/space", {"preset": "bert-base", "changes": {"layers": [1]}}, "changes")
    assert own.post("/space", {"preset": "bert-base", "batch": 10**18}).json["valid"] is False


def test_the_documentation_lists_the_routes(own: Asker) -> None:
    document = own.get("/openapi.json").json
    for path in ("/fill", "/entities", "/answer", "/search", "/generate", "/layers", "/map", "/space"):
        assert path in document["paths"]
    json.dumps(document)
