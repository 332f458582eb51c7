"""The forms of other interfaces: each answer has the form of one recorded from the original service."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bertree.search.rerank import NO_BOUNDS, relevance_of
from bertree.serve.loading import ServedSource, load_sources
from bertree.serve.routes.scores import class_names
from bertree.tasks.glue import glue_task
from tests.support.asking import Asker
from tests.support.learnable import Trained

QUESTION = {"question": "who is in the river", "context": "Ada is in the river."}
CLASSES = [{"label": "LABEL_0", "score": 0.9}]
VECTOR = [-0.0069, 0.0053]
USAGE = {"prompt_tokens": 5, "total_tokens": 5}
# Path, body, and an answer of the service whose form it is (shortened).
RECORDED: list[tuple[str, dict[str, Any], Any]] = [
    (
        "/v1/embeddings",
        {"input": "a", "user": "u", "encoding_format": "float"},
        {
            "object": "list",
            "data": [{"object": "embedding", "embedding": VECTOR, "index": 0}],
            "model": "text-embedding-ada-002",
            "usage": USAGE,
        },
    ),
    (
        "/v1/completions",
        {"model": "gpt", "prompt": "the boat", "max_tokens": 7, "temperature": 0, "logprobs": 2},
        {
            "id": "cmpl-uqkvlQyYK7bGYrRHQ0eXlWi7",
            "object": "text_completion",
            "created": 1589478378,
            "model": "gpt-3.5-turbo-instruct",
            "choices": [
                {
                    "text": "\n\nThis is indeed a test",
                    "index": 0,
                    "logprobs": {
                        "tokens": ["\n"],
                        "token_logprobs": [-0.1],
                        "top_logprobs": [{"\n": -0.1, "a": -2.0}],
                        "text_offset": [16],
                    },
                    "finish_reason": "length",
                }
            ],
            "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
        },
    ),
    (
        "/v2/embed",
        {"texts": ["hello", "goodbye"], "input_type": "search_query", "embedding_types": ["float"]},
        {
            "id": "da6e531f-54c5-4a73-bf92-f60566d8d753",
            "embeddings": {"float": [VECTOR]},
            "texts": ["hello", "goodbye"],
            "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 2}},
            "response_type": "embeddings_by_type",
        },
    ),
    (
        "/v2/rerank",
        {"model": "ranker", "query": "which boat", "documents": ["the boat", "a lamp"], "top_n": 1},
        {
            "id": "07734bd2-2473-4f07-94e1-0d9f0e6843cf",
            "results": [{"index": 3, "relevance_score": 0.999071}],
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        },
    ),
    ("/embed", {"inputs": "a", "normalize": True, "truncate": False}, [VECTOR]),
    ("/embed_all", {"inputs": ["a", "the boat"]}, [[VECTOR]]),
    ("/rerank", {"model": "ranker", "query": "which boat", "texts": ["the boat"]}, [{"index": 0, "score": 0.99}]),
    ("/predict", {"model": "ranker", "inputs": "the boat", "parameters": {"top_k": 1}}, CLASSES),
    ("/predict", {"model": "ranker", "inputs": [["the boat"], ["a lamp"]]}, [CLASSES]),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, [0.5]),
    (
        "/fill",
        {"inputs": "the [MASK] is fine", "parameters": {"top_k": 2}},
        [{"score": 0.1, "token": 7592, "token_str": "boat", "sequence": "the boat is fine"}],
    ),
    (
        "/entities",
        {"model": "ner", "inputs": "Ada in Turin", "parameters": {"aggregation_strategy": "simple"}},
        [{"entity_group": "PER", "score": 0.99, "word": "Ada", "start": 0, "end": 3}],
    ),
    ("/answer", {"inputs": QUESTION}, {"answer": "Ada", "score": 0.9, "start": 0, "end": 3}),
    (
        "/generate",
        {"model": "gpt", "inputs": "the boat", "parameters": {"max_new_tokens": 4, "return_full_text": True}},
        [{"generated_text": "the boat is"}],
    ),
]


def check_form(recorded: Any, answer: Any, place: str = "answer") -> None:
    """The fields and types of a recorded answer are in this one."""
    if isinstance(recorded, dict) and place.rpartition(".")[2] != "top_logprobs[]":
        assert isinstance(answer, dict), place
        assert set(recorded) <= set(answer), place
        for name, value in recorded.items():
            check_form(value, answer[name], f"{place}.{name}")
    elif isinstance(recorded, list):
        assert isinstance(answer, list), place
        assert answer, place
        for value in answer:
            check_form(recorded[0], value, f"{place}[]")
    else:
        assert type(answer) is type(recorded), place


@pytest.mark.parametrize(("path", "body", "recorded"), RECORDED)
def test_answers_have_the_form_of_recorded_ones(own: Asker, path: str, body: dict[str, Any], recorded: Any) -> None:
    answer = own.post(path, body)
    assert answer.status == 200, answer.body
    check_form(recorded, answer.json)


def test_a_field_that_does_not_exist_is_refused_by_its_name(own: Asker) -> None:
    for path, body, _ in RECORDED:
        refused = own.post(path, {**body, "promt_name": 1})
        assert refused.status == (400 if path.startswith("/v1/") else 422), path
        assert refused.message.startswith("promt_name: unknown field"), path
    assert "did you mean 'prompt_name'" in own.post("/v1/embeddings", {"input": "a", "promt_name": "q"}).message
    refused = own.post("/fill", {"inputs": "the [MASK]", "parameters": {"topk": 2}})
    assert refused.message == "topk: unknown field; did you mean 'top_k'?"
    assert own.post("/answer", {"inputs": {"question": "a"}}).message == "inputs: context is missing"


def test_forms_of_other_interfaces_give_the_answers_of_the_own_form(own: Asker) -> None:
    own_form = own.post("/fill", {"text": "the [MASK] of [MASK]", "k": 3}).json["masks"]
    other = own.post("/fill", {"inputs": "the [MASK] of [MASK]", "parameters": {"top_k": 3}}).json
    assert [[candidate["token_str"] for candidate in mask] for mask in other] == [
        [candidate["text"] for candidate in mask["candidates"]] for mask in own_form
    ]
    assert other[0][0]["sequence"] == f"the {other[0][0]['token_str']} of [MASK]"
    settings = {"temperature": 0.7, "seed": 3}
    text = own.post("/generate", {"model": "gpt", "prompt": "the boat", "tokens": 9, **settings}).json["text"]
    inputs = {"inputs": "the boat", "model": "gpt", "parameters": {"max_new_tokens": 9, **settings}}
    assert own.post("/generate", inputs).json == [{"generated_text": text}]


def test_the_task_of_a_model_needs_no_path(own: Asker) -> None:
    for name, inputs, path in (
        ("words", "the [MASK]", "/fill"),
        ("words", ["the boat", "a"], "/embed"),
        ("ner", "Ada in Turin", "/entities"),
        ("pair", [["the boat", "a lamp"]], "/predict"),
        ("squad2", QUESTION, "/answer"),
        ("gpt", "the boat", "/generate"),
    ):
        body = {"model": name, "inputs": inputs}
        answer, expected = own.post("/", body), own.post(path, body)
        assert (answer.status, answer.json) == (200, expected.json), path
    assert own.post("/", {"text": "a"}).message == "inputs: is missing"


def test_token_ids_are_embedded_as_their_text_is(asker: Asker) -> None:
    texts = ["the boat is fine", "a"]
    expected = np.array(asker.post("/embed", {"inputs": texts}).json)
    for special in (True, False):
        tokens = asker.post("/tokenize", {"inputs": texts, "add_special_tokens": special}).json
        ids = [[token["id"] for token in row] for row in tokens]
        assert np.abs(np.array(asker.post("/embed", {"inputs": ids}).json) - expected).max() < 1e-6
        reply = asker.post("/v1/embeddings", {"input": ids[0]}).json
        assert len(reply["data"]) == 1
        assert np.abs(np.array(reply["data"][0]["embedding"]) - expected[0]).max() < 1e-6
    cut = asker.post("/embed", {"inputs": [[2000] * 300]})
    assert cut.headers["x-truncated-tokens"] == "46"
    assert asker.post("/embed", {"inputs": [[2000] * 300], "truncate": False}).status == 422
    for wrong in ([[10**6]], [[-1]], [["a"]], ["a", 5], [[]]):
        assert asker.post("/embed", {"inputs": wrong}).message.startswith("inputs"), wrong


def test_the_vectors_of_tokens_are_the_last_hidden_states(asker: Asker) -> None:
    model = asker.service.registry.model("minilm").model
    report = asker.post("/embed_all", {"inputs": ["the boat is fine", "a"]}).json
    for rows, state in zip(report, model.hidden(["the boat is fine", "a"], -1), strict=True):
        assert np.abs(np.array(rows) - state.numpy()).max() < 1e-5


def test_one_model_is_described_by_its_name(own: Asker) -> None:
    listed = {item["id"]: item for item in own.get("/v1/models").json["data"]}
    assert all(own.get(f"/v1/models/{name}").json == item for name, item in listed.items())
    assert own.get("/v1/models/nobody").status == 404


def complete(own: Asker, **body: Any) -> Any:
    answer = own.post("/v1/completions", {"model": "gpt", "prompt": "the boat", **body})
    assert answer.status == 200, answer.body
    return answer.json


def test_completions_are_the_texts_of_generate(own: Asker) -> None:
    model = own.service.registry.model("gpt").model
    body = {"prompt": ["the boat", "a river"], "n": 2, "max_tokens": 12, "seed": 5, "temperature": 0.8}
    completion = complete(own, **body)
    texts = model.generate(["the boat", "a river"], count=2, tokens=12, seed=5, temperature=0.8)
    assert [choice["text"] for choice in completion["choices"]] == [text.text for text in texts]
    assert [choice["index"] for choice in completion["choices"]] == [0, 1, 2, 3]
    assert completion["usage"]["completion_tokens"] == sum(len(text.ids) for text in texts)
    ids = model.required_tokenizer.encode("the boat")
    assert completion["usage"]["prompt_tokens"] > 0
    assert complete(own, prompt=ids, max_tokens=3, temperature=0)["choices"][0]["finish_reason"] in ("length", "stop")


def test_a_completion_ends_before_its_stop_sequence(own: Asker) -> None:
    whole = complete(own, max_tokens=12, seed=5)["choices"][0]["text"]
    stop = whole[6:9]
    for stops in (stop, ["never", stop], [stop, whole[7:9]]):
        (choice,) = complete(own, max_tokens=12, seed=5, stop=stops)["choices"]
        assert choice["text"] == whole[: whole.index(stop)]
        assert choice["finish_reason"] == "stop"


def test_log_probabilities_are_those_of_the_model(own: Asker) -> None:
    model = own.service.registry.model("gpt").model
    (choice,) = complete(own, max_tokens=8, temperature=0, logprobs=3)["choices"]
    logs = choice["logprobs"]
    (text,) = model.generate("the boat", tokens=8, temperature=0)
    assert len(logs["tokens"]) == len(text.ids)
    for own_log, best in zip(logs["token_logprobs"], logs["top_logprobs"], strict=True):
        assert own_log == pytest.approx(max(best.values()), abs=1e-5), "greedy: the likeliest token"
        assert len(best) <= 3
    assert logs["text_offset"][0] == 0
    assert logs["text_offset"] == sorted(logs["text_offset"])


def test_a_streamed_completion_is_the_whole_one(own: Asker) -> None:
    body = {"max_tokens": 12, "seed": 5, "n": 2, "logprobs": 1}
    whole = complete(own, **body)
    stream = own.post(
        "/v1/completions",
        {"model": "gpt", "prompt": "the boat", **body, "stream": True, "stream_options": {"include_usage": True}},
    )
    lines = stream.body.decode().strip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert events[-1]["usage"] == whole["usage"]
    for choice in whole["choices"]:
        parts = [part for event in events for part in event["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts][-1] == choice["finish_reason"]
        assert [t for part in parts for t in part["logprobs"]["tokens"]] == choice["logprobs"]["tokens"]


def test_wrong_completions_are_refused_by_field(own: Asker) -> None:
    for field, value in (
        ("n", 0),
        ("max_tokens", 0),
        ("max_tokens", 4000),
        ("frequency_penalty", 1),
        ("best_of", 3),
        ("stop", ""),
        ("temperature", -1),
        ("logprobs", 99),
        ("prompt", []),
        ("prompt", [10**6]),
        ("suffix", "a"),
    ):
        refused = own.post("/v1/completions", {"model": "gpt", "prompt": "the boat", field: value})
        assert refused.status == 400, (field, refused.body)
        assert refused.message.startswith(field), (field, refused.message)
    assert "continue texts" in own.post("/v1/completions", {"model": "words", "prompt": "a"}).message


def test_scores_of_rerankers_are_from_0_to_1_everywhere(own: Asker) -> None:
    query, texts = "the boat on a river", ["the boat on a river with Ada", "stone and tree and cloud"]
    for name in ("ranker", "pair"):
        ranked = own.post("/rerank", {"model": name, "query": query, "texts": texts}).json
        jina = own.post("/v1/rerank", {"model": name, "query": query, "documents": texts}).json["results"]
        hits = own.post("/search", {"query": query, "rerank": name}).json["hits"]
        by_text = {hit["text"]: hit["score"] for hit in hits}
        for left, right in zip(ranked, jina, strict=True):
            assert 0 <= left["score"] <= 1
            assert left["score"] == pytest.approx(right["relevance_score"], abs=1e-6)
            assert left["score"] == pytest.approx(by_text[texts[left["index"]]], abs=1e-5)


def test_a_run_is_served_by_the_name_of_its_folder(trained: Trained) -> None:
    run = trained("ner")
    registry = load_sources([ServedSource(path=str(run), device="cpu")])
    assert list(registry.models) == [run.name]
    assert "entities" in registry.model(run.name).abilities


def test_classes_that_are_numbers_in_files_have_names() -> None:
    named = {name: class_names(SimpleNamespace(task=glue_task(name))) for name in ("sst-2", "mrpc", "mnli")}
    assert named == {
        "sst-2": ["negative", "positive"],
        "mrpc": ["not_equivalent", "equivalent"],
        "mnli": ["entailment", "neutral", "contradiction"],
    }


def test_scores_of_a_regression_are_scaled_by_the_bounds_of_its_task() -> None:
    assert relevance_of(np.array([-1.0, 0.0, 2.5, 6.0]), (0.0, 5.0)).tolist() == [0, 0, 0.5, 1]
    assert relevance_of(np.array([0.0]), NO_BOUNDS).tolist() == [0.5]
