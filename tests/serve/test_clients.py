"""Clients of other people, unchanged, against a server on a socket."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import bertree
from tests.support.asking import Asker, listening

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
os.environ["ANONYMIZED_TELEMETRY"] = "False"
TEXTS = ["A whale.", "The captain looked at the sea and said nothing.", "an apple and a pear"]
DOCUMENTS = ["the boat is fine", "a gloomy river", "the lamp of the garden"]


@pytest.fixture(scope="module")
def address(asker: Asker) -> Iterator[str]:
    with listening(asker) as url:
        yield url


@pytest.fixture(scope="module")
def own_address(own: Asker) -> Iterator[str]:
    with listening(own) as url:
        yield url


@pytest.fixture(scope="module")
def vectors(minilm: Path) -> np.ndarray:
    return bertree.load(minilm).embed(TEXTS)


def same(actual: object, vectors: np.ndarray) -> bool:
    rows = np.asarray(actual, np.float64).reshape(-1, vectors.shape[1])
    return len(rows) in (1, len(vectors)) and bool(np.abs(rows - vectors[: len(rows)]).max() < 1e-6)


def test_the_client_of_openai_gets_vectors_and_errors(address: str, vectors: np.ndarray) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["minilm", "ranker", "classes"]
        reply = client.embeddings.create(input=TEXTS, model="minilm")  # asks for base64
        assert same([item.embedding for item in reply.data], vectors)
        assert reply.usage.prompt_tokens == reply.usage.total_tokens > len(TEXTS)
        reply = client.embeddings.create(input=TEXTS[0], model="minilm", encoding_format="float", dimensions=8)
        assert len(reply.data[0].embedding) == 8
        with pytest.raises(openai.NotFoundError, match="not served here"):
            client.embeddings.create(input="a", model="text-embedding-3-small")
        assert client.models.retrieve("ranker").id == "ranker"
        with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length") as error:
            client.embeddings.create(input=[[1, 2, 99_999]], model="minilm")
        assert error.value.param == "input"


def test_the_client_of_openai_gets_texts_and_streams(own_address: str) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{own_address}/v1", api_key="none", max_retries=0) as client:
        asked = {"model": "gpt", "prompt": "the boat", "max_tokens": 9, "seed": 4}
        reply = client.completions.create(**asked, n=2, stop=["zzz"], logprobs=2)
        assert len(reply.choices) == 2
        assert len(reply.choices[0].logprobs.tokens) == reply.usage.completion_tokens // 2 == 9
        stream = list(client.completions.create(**asked, stream=True))
        assert "".join(event.choices[0].text for event in stream) == reply.choices[0].text
        assert stream[-1].choices[0].finish_reason == "length"


def test_the_client_of_hugging_face_asks_for_every_task(own_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # this machine is asked
    client = hub.InferenceClient(f"{own_address}/fill")
    assert len(client.fill_mask("the [MASK] is fine", top_k=2)) == 2
    loaded = hub.InferenceClient(f"{own_address}/entities").token_classification("Ada in Turin")[0]
    assert "Ada in Turin"[loaded.start : loaded.end] == loaded.word
    answer = hub.InferenceClient(f"{own_address}/answer").question_answering(
        question="who is in the river", context="Ada is in the river."
    )
    assert isinstance(answer.answer, str)
    text = hub.InferenceClient(f"{own_address}/generate").text_generation("the boat", max_new_tokens=5, seed=1)
    assert text
    assert hub.InferenceClient(own_address).fill_mask("the [MASK] is fine")


def test_the_client_of_cohere_gets_vectors(address: str, vectors: np.ndarray) -> None:
    cohere = pytest.importorskip("cohere")
    client = cohere.ClientV2("key", base_url=address)
    reply = client.embed(model="minilm", texts=TEXTS, input_type="search_query", embedding_types=["float", "base64"])
    assert same(reply.embeddings.float_, vectors)
    assert reply.meta.billed_units.input_tokens > len(TEXTS)


def test_the_client_of_cohere_gets_a_ranking(address: str) -> None:
    cohere = pytest.importorskip("cohere")
    client = cohere.ClientV2("key", base_url=address)
    reply = client.rerank(model="ranker", query="which boat", documents=DOCUMENTS, top_n=2)
    scores = [result.relevance_score for result in reply.results]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    with pytest.raises(cohere.UnprocessableEntityError, match="documents"):
        client.rerank(model="ranker", query="which boat", documents=[])


def test_the_client_of_hugging_face_gets_vectors_and_similarities(
    address: str, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # this machine is asked
    client = hub.InferenceClient(f"{address}/embed")
    assert same(client.feature_extraction(TEXTS[0]), vectors)
    loaded = hub.InferenceClient(f"{address}/similarity").sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])
    assert np.abs(np.array(loaded) - vectors[1:] @ vectors[0]).max() < 1e-6


def test_haystack_gets_vectors(address: str, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    haystack = pytest.importorskip("haystack.components.embedders")
    embedder = haystack.OpenAITextEmbedder(model="minilm", api_base_url=f"{address}/v1")
    assert same(embedder.run(TEXTS[0])["embedding"], vectors)


def test_langchain_without_its_context_check_gets_vectors(address: str, vectors: np.ndarray) -> None:
    langchain = pytest.importorskip("langchain_openai")
    options = {"model": "minilm", "base_url": f"{address}/v1", "api_key": "none"}
    embedder = langchain.OpenAIEmbeddings(check_embedding_ctx_length=False, **options)
    assert same(embedder.embed_documents(TEXTS), vectors)
    assert same(embedder.embed_query(TEXTS[0]), vectors)


def test_llama_index_gets_vectors(address: str, vectors: np.ndarray) -> None:
    like = pytest.importorskip("llama_index.embeddings.openai_like")
    client = like.OpenAILikeEmbedding(model_name="minilm", api_base=f"{address}/v1", api_key="none")
    assert same(client.get_text_embedding_batch(TEXTS), vectors)
    tei = pytest.importorskip("llama_index.embeddings.text_embeddings_inference")
    client = tei.TextEmbeddingsInference(model_name="minilm", base_url=address)
    assert same(client.get_text_embedding_batch(TEXTS), vectors)
