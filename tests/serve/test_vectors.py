"""Vectors over HTTP are those of the model."""

import base64
from pathlib import Path

import numpy as np
import pytest

import bertree
from tests.support.asking import Asker

TEXTS = ["A whale.", "The captain looked at the sea for a long time and said nothing.", "Yes", "an apple and a pear"]


@pytest.fixture(scope="module")
def model(minilm: Path) -> bertree.Model:
    return bertree.load(minilm)


def test_vectors_are_those_of_the_model_in_either_form(asker: Asker, model: bertree.Model) -> None:
    response = asker.post("/v1/embeddings", {"input": TEXTS, "model": "minilm"})
    rows = np.array([item["embedding"] for item in response.json["data"]], np.float32)
    assert np.abs(rows - model.embed(TEXTS)).max() < 1e-6
    packed = asker.post("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"})
    bits = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in packed.json["data"]]
    assert (np.stack(bits) == rows).all(), "the same bits"
    assert response.json["usage"]["prompt_tokens"] == sum(len(e.ids) for e in model.tokenize(TEXTS))


def test_a_vector_does_not_depend_on_what_else_is_computed(asker: Asker, model: bertree.Model) -> None:
    requests = [("/embed", {"inputs": text}) for text in TEXTS * 10]
    requests += [("/embed", {"inputs": [f"{text} {n}" for n in range(30) for text in TEXTS]})] * 3
    alone = model.embed(TEXTS)
    for number, answer in enumerate(asker.post_all(requests)[: 4 * 10]):
        assert np.abs(np.array(answer.json[0]) - alone[number % 4]).max() < 1e-6


def test_fewer_dimensions_are_scaled_to_length_one_again(asker: Asker, model: bertree.Model) -> None:
    response = asker.post("/v1/embeddings", {"input": TEXTS, "dimensions": 8})
    rows = np.array([item["embedding"] for item in response.json["data"]], np.float32)
    assert np.abs(rows - model.embed(TEXTS, dimensions=8)).max() < 1e-6
    for wrong in (0, -1, 385, 10**30, 1.5, "8"):
        refused = asker.post("/v1/embeddings", {"input": TEXTS, "dimensions": wrong})
        assert refused.status == 400
        assert refused.message.startswith("dimensions")


def test_without_scaling_vectors_have_their_own_length(asker: Asker) -> None:
    raw = np.array(asker.post("/embed", {"inputs": TEXTS, "normalize": False}).json)
    scaled = np.array(asker.post("/embed", {"inputs": TEXTS}).json)
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.1
    assert np.abs(raw / np.linalg.norm(raw, axis=1, keepdims=True) - scaled).max() < 1e-6


def test_texts_that_are_cut_are_reported(asker: Asker, model: bertree.Model) -> None:
    long = "word " * 1000
    most = model.max_length
    response = asker.post("/v1/embeddings", {"input": ["short", long]})
    assert response.json["truncated"] == [1]
    assert (response.headers["x-truncated-texts"], response.headers["x-truncated-tokens"]) == ("1", str(1002 - most))
    assert "truncated" not in asker.post("/v1/embeddings", {"input": "short"}).json
    assert asker.post("/embed", {"inputs": long}).headers["x-truncated-texts"] == "1"
    for path, body in (("/v1/embeddings", {"input": ["short", long]}), ("/embed", {"inputs": ["short", long]})):
        refused = asker.post(path, body | {"truncate": False})
        assert refused.status in (400, 422)
        assert "the text at index 1 has 1,002 tokens" in refused.message
        assert f"reads {most}" in refused.message


def test_the_end_that_is_cut_can_be_chosen(asker: Asker) -> None:
    text = " ".join(["first"] * 600 + ["last"] * 600)
    right, left, first, last = (
        np.array(asker.post("/embed", body).json[0])
        for body in (
            {"inputs": text},
            {"inputs": text, "truncation_direction": "left"},
            {"inputs": "first " * 600},
            {"inputs": "last " * 600},
        )
    )
    assert np.abs(right - first).max() < 1e-6
    assert np.abs(left - last).max() < 1e-6
