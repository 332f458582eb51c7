"""Similarity of vectors, and how to read one: which share of random pairs of sentences is less similar.

Models differ in scale: two unrelated sentences have a cosine of 0.1 in one model and of 0.7 in another. So a similarity
can be compared with those of all pairs of 128 sentences from English books, one of each document.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertree.errors import UserError, WrongArgument
from bertree.inference.embedding import Vectors

SENTENCES = Path(__file__).with_name("random_sentences.txt")
# Higher is more similar: distances are negative.
SIMILARITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": lambda a, b: F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T,
    "dot": lambda a, b: a @ b.T,
    "euclidean": lambda a, b: -torch.cdist(a, b),
    "manhattan": lambda a, b: -torch.cdist(a, b, p=1.0),
}
# The same measures, for rows in pairs.
PAIRWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": F.cosine_similarity,
    "dot": lambda a, b: (a * b).sum(1),
    "euclidean": lambda a, b: -(a - b).norm(dim=1),
    "manhattan": lambda a, b: -(a - b).abs().sum(1),
}


def check_vectors(vectors: Any) -> Tensor:
    """Return one vector or many, of numpy or torch, as float32 rows; UserError if a number is not finite."""
    if isinstance(vectors, Tensor):
        vectors = vectors.detach().float().cpu().numpy()
    try:
        rows = np.asarray(vectors, np.float32)
    except ValueError:
        raise WrongArgument("similarity: takes texts, or vectors of numbers") from None
    if rows.ndim == 1:
        rows = rows[None]
    if rows.ndim != 2:
        raise UserError(f"vectors must be rows of numbers, not {rows.ndim}-dimensional")
    if not np.isfinite(rows).all():
        row = int(np.flatnonzero(~np.isfinite(rows).all(1))[0])
        raise UserError(f"vector {row} holds a number that is not finite")
    return torch.from_numpy(np.ascontiguousarray(rows))


def similarity_matrix(a: Any, b: Any, by: str = "cosine") -> Vectors:
    """Return the similarity of each vector of `a` to each of `b`: a row for each of `a`."""
    left, right = check_vectors(a), check_vectors(b)
    if left.shape[1] != right.shape[1]:
        raise UserError(f"vectors of {left.shape[1]} and of {right.shape[1]} numbers cannot be compared")
    similarities: Vectors = SIMILARITIES[by](left, right).numpy()
    return similarities


def pairwise_similarity(a: Any, b: Any, by: str) -> Vectors:
    """Return the similarity of the first vector of `a` to the first of `b`, and so on."""
    left, right = check_vectors(a), check_vectors(b)
    if left.shape != right.shape:
        raise UserError(f"vectors of shapes {tuple(left.shape)} and {tuple(right.shape)} cannot be compared in pairs")
    similarities: Vectors = PAIRWISE[by](left, right).numpy()
    return similarities


def random_sentences() -> list[str]:
    """Return the sentences of random pairs."""
    return SENTENCES.read_text(encoding="utf-8").splitlines()


def pair_similarities(vectors: Vectors, by: str = "cosine") -> Vectors:
    """Return the similarities of all pairs of rows, in ascending order."""
    similarities: Vectors = np.sort(similarity_matrix(vectors, vectors, by)[np.triu_indices(len(vectors), 1)])
    return similarities


def percentiles(similarities: Vectors | float, random_pairs: Vectors) -> Vectors:
    """Return the percentage of random pairs that are less similar; `random_pairs` in ascending order."""
    try:
        values = np.asarray(similarities, np.float32)
    except ValueError:
        raise WrongArgument("similarities: must be numbers") from None
    return np.asarray(100 * np.searchsorted(random_pairs, values) / len(random_pairs), np.float32)
