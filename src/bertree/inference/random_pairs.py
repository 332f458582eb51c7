"""How to read a similarity: which share of random pairs of sentences is less similar.

Models differ in scale: two sentences that have nothing to do with each other have a cosine of 0.1 in one model and of
0.7 in another. So a similarity is compared with those of all pairs of 128 sentences from English books, each from
another place (`benchmarks/random_sentences.py`).
"""

from pathlib import Path

import numpy as np

from bertree.inference.embedding import Vectors
from bertree.inference.similarity import similarity_matrix

SENTENCES = Path(__file__).with_name("random_sentences.txt")


def random_sentences() -> list[str]:
    """Return the sentences."""
    return SENTENCES.read_text(encoding="utf-8").splitlines()


def pair_similarities(vectors: Vectors, by: str = "cosine") -> Vectors:
    """Return the similarities of all pairs of rows, in ascending order."""
    found: Vectors = np.sort(similarity_matrix(vectors, vectors, by)[np.triu_indices(len(vectors), 1)])
    return found


def percentiles(similarities: Vectors | float, random_pairs: Vectors) -> Vectors:
    """Return the percentage of random pairs that are less similar; `random_pairs` in ascending order."""
    given = np.asarray(similarities, np.float32)
    return np.asarray(100 * np.searchsorted(random_pairs, given) / len(random_pairs), np.float32)
