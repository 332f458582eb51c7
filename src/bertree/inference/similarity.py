"""Similarity of vectors."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from bertree.errors import UserError
from bertree.inference.embedding import Vectors

# Higher is more similar: distances are negative.
SIMILARITIES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cosine": lambda a, b: torch.nn.functional.normalize(a, dim=-1) @ torch.nn.functional.normalize(b, dim=-1).T,
    "dot": lambda a, b: a @ b.T,
    "euclidean": lambda a, b: -torch.cdist(a, b),
    "manhattan": lambda a, b: -torch.cdist(a, b, p=1.0),
}


def check_vectors(vectors: Vectors) -> torch.Tensor:
    """Return vectors as float32 rows; UserError if they are not rows of finite numbers."""
    found = np.asarray(vectors, np.float32)
    if found.ndim == 1:
        found = found[None]
    if found.ndim != 2:
        raise UserError(f"vectors must be rows of numbers, not {found.ndim}-dimensional")
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found).all(1))[0])
        raise UserError(f"vector {row} holds a number that is not finite")
    return torch.from_numpy(np.ascontiguousarray(found))


def similarity_matrix(a: Vectors, b: Vectors, by: str = "cosine") -> Vectors:
    """Return the similarity of each of `a` to each of `b`: a row for each of `a`."""
    one, other = check_vectors(a), check_vectors(b)
    if one.shape[1] != other.shape[1]:
        raise UserError(f"vectors of {one.shape[1]} and of {other.shape[1]} numbers cannot be compared")
    found: Vectors = SIMILARITIES[by](one, other).numpy()
    return found


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
