"""The routes of OpenAI, Cohere and Text Embeddings Inference, field by field."""

import json
from typing import Any

import jsonschema
import numpy as np
import pytest

import bertree
from tests.support.asking import Asker

TEXTS = ["the boat is fine", "a gloomy river", "the lamp"]


def check_documented(asker: Asker, path: str, value: Any) -> None:
    """An answer has the form that the OpenAPI document says."""
    document = asker.get("/openapi.json").json
    schema = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(value, {**schema, "components": document["components"]})


def test_embeddings_have_the_fields_of_openai(asker: Asker) -> None:
    report = asker.post("/v1/embeddings", {"input": TEXTS, "model": "minilm", "user": "someone"}).json
    assert list(report) == ["object", "data", "model", "usage"]
    assert (report["object"], report["model"]) == ("list", "minilm")
    assert [(item["object"], item["index"], sorted(item)) for item in report["data"]] == [
        ("embedding", number, ["embedding", "index", "object"]) for number in range(3)
    ]
    assert sorted(report["usage"]) == ["prompt_tokens", "total_tokens"]
    check_documented(asker, "/v1/embeddings", report)


def test_models_are_listed_with_what_they_can_do(asker: Asker) -> None:
    report = asker.get("/v1/models").json
    assert report["object"] == "list"
    by_name = {item["id"]: item for item in report["data"]}
    assert list(by_name) == ["minilm", "ranker", "classes"]
    minilm = by_name["minilm"]
    own = {"object": "model", "owned_by": "bertree", "kind": "model", "dimension": 384}
    assert own.items() <= minilm.items()
    assert {"embed", "layers"} <= set(minilm["does"])
    assert {"predict", "rerank"} <= set(by_name["ranker"]["does"])
    assert "rerank" not in by_name["classes"]["does"], "three classes are no relevance"


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_rerank_has_the_fields_of_cohere_and_jina(asker: Asker, path: str) -> None:
    body = {"model": "ranker", "query": "which boat", "documents": [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]}
    report = asker.post(path, body | {"return_documents": True}).json
    assert sorted(report) == ["id", "meta", "model", "results", "usage"]
    check_documented(asker, path, report)
    scores = [item["relevance_score"] for item in report["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
    assert {item["document"]["text"] for item in report["results"]} == set(TEXTS)
    assert sorted(item["index"] for item in report["results"]) == [0, 1, 2]
    top = asker.post(path, body | {"top_n": 1}).json["results"]
    assert [sorted(item) for item in top] == [["index", "relevance_score"]]
    assert top[0]["index"] == report["results"][0]["index"]
    assert asker.post(path, body | {"top_n": 0}).message.startswith("top_n")
    cut = asker.post(path, {"query": "a", "documents": [TEXTS[0], "the the the"], "max_tokens_per_doc": 1}).json
    whole = asker.post(path, {"query": "a", "documents": ["the"]}).json
    expected = pytest.approx(whole["results"][0]["relevance_score"], abs=1e-6)
    assert [item["relevance_score"] for item in cut["results"]] == [expected, expected]


def test_scores_are_those_of_the_model(asker: Asker) -> None:
    served = asker.service.registry.model("ranker")
    report = asker.post(
        "/rerank", {"query": "which boat", "texts": TEXTS, "raw_scores": True, "return_text": True}
    ).json
    check_documented(asker, "/rerank", report)
    network = served.model.network
    batch = served.model.batch([("which boat", text) for text in TEXTS])
    expected = network.class_logits("sequence", network(batch), batch, None).detach().numpy()[:, 0]
    scores = {item["index"]: item["score"] for item in report}
    assert np.abs(np.array([scores[n] for n in range(3)]) - expected).max() < 1e-5
    assert all(item["text"] == TEXTS[item["index"]] for item in report)
    plain = asker.post("/rerank", {"query": "which boat", "texts": TEXTS}).json
    assert [sorted(item) for item in plain] == [["index", "score"]] * 3
    assert plain[0]["score"] == pytest.approx(1 / (1 + np.exp(-report[0]["score"])))


def test_predict_takes_texts_pairs_and_lists_of_them(asker: Asker) -> None:
    answer = asker.post("/predict", {"inputs": TEXTS[0], "model": "classes"}).json
    check_documented(asker, "/predict", answer)
    assert sum(entry["score"] for entry in answer) == pytest.approx(1)
    assert [sorted(entry) for entry in answer] == [["label", "score"]] * 3
    assert [entry["score"] for entry in answer] == sorted((e["score"] for e in answer), reverse=True)
    pair = asker.post("/predict", {"inputs": TEXTS[:2], "model": "classes"}).json
    several = asker.post("/predict", {"inputs": [[TEXTS[0]], TEXTS[:2]], "model": "classes"}).json
    check_documented(asker, "/predict", several)
    for entry, expected in zip([*several[0], *several[1]], [*answer, *pair], strict=True):
        assert (entry["label"], entry["score"]) == (expected["label"], pytest.approx(expected["score"], abs=1e-6))
    raw = asker.post("/predict", {"inputs": TEXTS[0], "model": "classes", "raw_scores": True}).json
    assert sum(entry["score"] for entry in raw) != pytest.approx(1)
    for wrong in (TEXTS, [["a", "b", "c"]], [[]], ["a", ["b"]]):
        refused = asker.post("/predict", {"inputs": wrong, "model": "classes"})
        assert refused.status == 422
        assert refused.message.startswith("inputs")


def test_the_end_of_a_classified_text_that_is_cut_can_be_chosen(asker: Asker) -> None:
    long, first, last = "boat " * 300 + "river " * 300, "boat " * 300, "river " * 300
    for path, name, asked in (
        ("/predict", "classes", lambda text: {"inputs": text}),
        ("/predict", "classes", lambda text: {"inputs": [[text, text]]}),
        ("/rerank", "ranker", lambda text: {"query": "which boat", "texts": [text]}),
    ):
        for direction, kept in (("right", first), ("left", last)):
            body = {"model": name, "truncation_direction": direction}
            answers = [asker.post(path, asked(text) | body) for text in (long, kept)]
            assert answers[0].headers["x-truncated-texts"] == "1"
            assert answers[0].json == answers[1].json
        assert asker.post(path, asked(first) | body).json != answers[0].json


def test_similarity_is_the_cosine(asker: Asker) -> None:
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}}
    report = asker.post("/similarity", body).json
    check_documented(asker, "/similarity", report)
    rows = np.array(asker.post("/embed", {"inputs": TEXTS}).json)
    assert np.abs(np.array(report) - rows @ rows[0]).max() < 1e-6


def test_tokenize_and_decode(asker: Asker) -> None:
    text = "Hello, wörld 🐋 unbelievably"
    (report,) = asker.post("/tokenize", {"inputs": text}).json
    check_documented(asker, "/tokenize", [report])
    assert [token["special"] for token in report] == [True, *[False] * (len(report) - 2), True]
    assert all(text[t["start"] : t["stop"]] == t["text"] for t in report if not t["special"])
    (plain,) = asker.post("/tokenize", {"inputs": [text], "add_special_tokens": False}).json
    assert plain == report[1:-1]
    ids = [token["id"] for token in report]
    assert asker.post("/decode", {"ids": ids}).json == asker.post("/decode", {"ids": [ids]}).json
    assert "hello" in asker.post("/decode", {"ids": ids}).json[0]
    for wrong in ([10**9], [-1], [1, [2]]):
        assert asker.post("/decode", {"ids": wrong}).message.startswith("ids")


def test_info_has_the_fields_of_text_embeddings_inference(asker: Asker) -> None:
    report = asker.get("/info").json
    assert {"model_id", "model_dtype", "max_input_length", "max_batch_tokens", "max_client_batch_size"} <= set(report)
    assert report["model_id"] == "minilm"
    assert report["model_type"] == {"embedding": {"pooling": "mean"}}
    assert report["version"] == bertree.__version__
    assert report["max_concurrent_requests"] > 1
    assert asker.get("/health").status == asker.get("/ready").status == 200


def test_errors_have_the_form_of_each_interface(asker: Asker) -> None:
    openai = asker.post("/v1/embeddings", {"input": 5}).json
    assert sorted(openai["error"]) == ["code", "message", "param", "type"]
    assert (openai["error"]["param"], openai["error"]["type"]) == ("input", "invalid_request_error")
    tei = asker.post("/embed", {"inputs": []})
    assert (tei.status, tei.json["error_type"]) == (400, "Empty")
    assert asker.post("/embed", {"inputs": 5}).json["error_type"] == "Validation"
    assert sorted(asker.post("/v2/rerank", {"query": 5}).json) == ["message"]
    wrong = asker.post("/rerank", {"query": "a", "texts": ["b"], "model": "minilm"})
    assert wrong.status == 422
    assert "these can: ranker" in wrong.message
    method = asker.get("/v1/embeddings")
    assert (method.status, method.headers["allow"]) == (405, "POST")


def test_the_openapi_document_describes_every_route(asker: Asker) -> None:
    document = asker.get("/openapi.json").json
    assert document["openapi"].startswith("3.1")
    assert {
        *("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/embed", "/rerank", "/predict", "/similarity", "/tokenize")
    } <= (set(document["paths"]))
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for operation in operations:
        assert operation["summary"], operation["operationId"]
        assert "200" in operation["responses"]
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    references = [part.split('"')[0] for part in json.dumps(document).split('"#/components/schemas/')[1:]]
    assert set(references) <= set(document["components"]["schemas"])


def test_metrics_count_requests_batches_and_waiting(asker: Asker) -> None:
    asker.post("/embed", {"inputs": TEXTS})
    lines = asker.get("/metrics").body.decode().splitlines()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    assert values['bertree_requests_total{route="/embed",status="200"}'] >= 1
    assert values['bertree_batch_tokens_count{lane="minilm: embed"}'] >= 1
    assert values['bertree_compute_seconds_count{lane="minilm: embed"}'] >= 1
    assert values['bertree_queue_seconds_count{lane="minilm: embed"}'] >= 1
    assert values["bertree_queue_tokens"] == 0
