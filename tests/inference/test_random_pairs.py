"""How a similarity is read: against random pairs of sentences."""

import random
import re
from pathlib import Path

import numpy as np
import pytest

import bertree
from bertree.inference.embedding import pair_similarities, percentiles, random_sentences
from bertree.text.sentence_splitter import split_sentences
from tests.support.shared import suite_has

BOOKS = Path(__file__).parents[2] / "corpus" / "books.txt"


def test_the_sentences_are_plain_ones_of_different_documents_chosen_by_a_fixed_seed() -> None:
    """So that no two are neighbours: of 6 to 14 words, without quotation marks."""
    documents = [document for document in BOOKS.read_text().split("\n\n") if document.strip()]
    plain, draw, chosen = re.compile(r"[A-Z][A-Za-z,;'’ -]+\."), random.Random(0), []
    for document in draw.sample(documents, len(documents)):
        sentences = [s for s in split_sentences(document) if plain.fullmatch(s) and 6 <= len(s.split()) <= 14]
        if sentences:
            chosen.append(draw.choice(sentences))
    assert random_sentences() == chosen[:128]
    assert len(set(random_sentences())) == 128


def test_a_percentile_counts_the_pairs_that_are_less_similar() -> None:
    vectors = np.array([[1, 0], [0, 1], [1, 1], [-1, 0]], np.float32)
    pairs = pair_similarities(vectors)
    half = 2**-0.5
    assert pairs == pytest.approx([-1, -half, 0, 0, half, half], abs=1e-6)
    assert percentiles([-1.5, -0.9, 0.5, 1], pairs) == pytest.approx([0, 100 / 6, 400 / 6, 100])
    assert percentiles(0.5, pair_similarities(vectors, "dot")) == pytest.approx(400 / 6)


@pytest.mark.parametrize("name", suite_has(["default"], ["default", "minilm"]))
def test_unrelated_sentences_are_in_the_middle_and_paraphrases_at_the_top(name: str, minilm: Path) -> None:
    model = bertree.load(minilm if name == "minilm" else name)
    texts = ["A vessel sank in bad weather.", "She bought a loaf of bread."]
    near, far = model.percentile(model.similarity("The ship went down in the storm.", texts)[0])
    assert near > 99
    assert 20 < far < 80


def test_the_models_own_measure_is_used(minilm: Path) -> None:
    model = bertree.load(minilm)
    expected = model.percentile(model.similarity("One day.", "Another day."))
    vector = model.vector
    model.vector = vector.__class__(**{**vars(vector), "similarity": "euclidean"})
    percentile = model.percentile(model.similarity("One day.", "Another day."))
    assert percentile == pytest.approx(expected, abs=0.1), "of vectors of length 1 the order is the same"
