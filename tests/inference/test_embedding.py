"""Vectors as they are served: the same whatever else is in the batch, in their order, of any number of texts."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import bertree
from bertree.errors import UserError
from bertree.inference import embedding
from bertree.inference.cpu_linear import linear_class
from bertree.inference.inputs import batch_by_length
from tests.support.shared import suite_has

WORDS = [
    "the",
    "a",
    "old",
    "new",
    "ship",
    "captain",
    "sea",
    "storm",
    "letter",
    "bread",
    "night",
    "runs",
    "falls",
    "reads",
    "under",
    "over",
    "quietly",
    "1851",
    "naïve",
]
# What is promised (docs/results.md says what is measured): cosine of a text alone with the same text among others.
ALONE = {"float32": 0.9999999, "bfloat16": 0.9995, "int8": 0.998}
# And of a text's vector with the one in float32.
EXACT = {"float32": 0.9999999, "bfloat16": 0.9995, "int8": 0.98}


def texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.choice((1, 3, 8, 20, 60)))) + "." for _ in range(count)]


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a.astype(np.float64), b.astype(np.float64)
    values: np.ndarray = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return values


@pytest.mark.parametrize("dtype", suite_has(("float32", "int8"), ALONE))
def test_a_vector_does_not_depend_on_its_neighbours(minilm: Path, loaded_minilm: bertree.Model, dtype: str) -> None:
    if dtype == "int8" and linear_class(torch.int8) is None:
        pytest.skip("needs VNNI or AMX")
    model, sentences = bertree.load(minilm, precision=dtype), texts(16, 0)
    alone = np.concatenate([model.embed(text) for text in sentences])
    draw = random.Random(1)
    for tokens in (50, 200, 1024):
        order = draw.sample(range(16), 16)
        among = model.embed([sentences[i] for i in order] + texts(12, tokens), batch_tokens=tokens)[:16]
        assert cosine(among, alone[order]).min() >= ALONE[dtype]
    assert cosine(alone, loaded_minilm.embed(sentences)).min() >= EXACT[dtype]


def test_any_number_of_texts_comes_block_by_block(
    loaded_minilm: bertree.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "BLOCK", 16)
    model, sentences = loaded_minilm, texts(50, 2)
    taken = 0

    def source() -> Iterator[str]:
        nonlocal taken
        for text in sentences:
            taken += 1
            yield text

    coming = embedding.embed_blocks(model, source())
    first = next(coming)
    assert taken <= 3 * 16
    rest = list(coming)
    assert [len(rows) for rows in (first, *rest)] == [16, 16, 16, 2]
    values = np.concatenate([first, *rest])
    assert values.dtype == np.float32
    assert cosine(values, np.concatenate([model.embed(text) for text in sentences])).min() >= ALONE["float32"]


@pytest.mark.parametrize("tokens", [100, 1 << 63])
def test_batches_hold_at_most_so_many_tokens(tokens: int) -> None:
    lengths = [random.Random(row).randrange(1, 60) for row in range(50)]
    batches = list(batch_by_length(lengths, torch.device("cpu"), tokens))
    assert sorted(row for batch in batches for row in batch) == list(range(50))
    assert max(sum(lengths[row] for row in batch) for batch in batches) <= tokens
    assert len(batches) < sum(lengths) / 40 if tokens == 100 else len(batches) == 1


def test_a_negative_size_of_batches_is_refused(loaded_minilm: bertree.Model) -> None:
    with pytest.raises(UserError, match="batch_tokens: must not be negative, not -1"):
        loaded_minilm.embed(["one", "two"], batch_tokens=-1)


def test_threads_are_as_they_were(minilm: Path) -> None:
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert bertree.load(minilm).embed(texts(40, 3), batch_tokens=100).shape == (40, 384)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_a_trained_weight_is_seen(minilm: Path) -> None:
    model = bertree.load(minilm)
    before = model.embed("A ship.")
    with torch.no_grad():
        model.network.encoder.stack.ffn[0].part.up.weight.mul_(1.5)
    assert cosine(before, model.embed("A ship.")).max() < 0.999


@pytest.mark.skipif(linear_class(torch.int8) is None, reason="needs VNNI or AMX")
def test_int8_is_for_vectors_alone(minilm: Path, loaded_minilm: bertree.Model) -> None:
    model = bertree.load(minilm, precision="int8")
    assert {p.dtype for p in model.network.parameters()} == {torch.float32}
    whole = model.embed("A ship at sea.")
    assert not np.array_equal(whole, model.to(precision="float32").embed("A ship at sea."))
    np.testing.assert_array_equal(model.to(precision="int8").embed("A ship at sea."), whole)
    assert model.digest == loaded_minilm.digest
    with pytest.raises(UserError, match="int8: is for transformers"):
        bertree.load("bilstm", precision="int8")
