"""Sentence vectors of any number of texts, in the order given; their similarity, and how to read one.

    texts -> blocks of 1,024 -> tokenized -> batches of similar length -> `BatchEmbedder` -> rows of a block

While one block is computed, the next is tokenized, and on a GPU the one before is copied to the host. So memory is that
of three blocks, however many texts there are. The server forms batches from requests instead and calls `BatchEmbedder`
directly: every vector is computed and scaled there.

Models differ in scale: two unrelated sentences have a cosine of 0.1 in one model and of 0.7 in another. So a similarity
can be compared with those of all pairs of 128 sentences from English books, one of each document: which share of them
is less similar.

Shape letters: s sequences, d width of a vector.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertree.console import bar
from bertree.errors import UserError, WrongArgument
from bertree.inference.inputs import batch_by_length, check_finite, check_inputs, map_jobs, note_cuts, tokenize_inputs
from bertree.inference.loaded import LoadedModel
from bertree.text.tokenizer import Encoded

BLOCK = 1024  # texts: with larger blocks a GPU waits longer until the first is tokenized
FIRST_BLOCK = 256  # texts, where blocks grow
Vectors = NDArray[np.float32]


class TextEncoder(Protocol):
    """What embedding and search need of a model."""

    @property
    def dimension(self) -> int:
        """Width of its vectors."""

    @property
    def digest(self) -> str:
        """Hash that identifies its vectors."""

    def embed(self, texts: Iterable[str]) -> Vectors:
        """Return one row per text."""


class BatchEmbedder:
    """Computes the vectors of tokenized texts as one batch.

    Several threads may call it at once. It holds the weights as they are when it is made: later changes are not seen.
    """

    def __init__(self, model: LoadedModel, dimensions: int | None = None) -> None:
        self.device, self.dimensions = model.device, dimensions
        self._pack, self._encode, self._pooling = model.pack, model.inference_encoder(), model.pooling
        self.width = dimensions or self._pooling.width

    def __call__(self, encoded: Sequence[Encoded], normalize: bool | None = None) -> Vectors:
        """Return one row per text, in the order given. `normalize`: scale to length 1; None: as the model does."""
        order = sorted(range(len(encoded)), key=lambda row: len(encoded[row].ids))
        vectors = np.empty((len(encoded), self.width), np.float32)
        vectors[order] = self.compute([encoded[row] for row in order], normalize).cpu().numpy()
        return vectors

    @torch.no_grad()
    def compute(self, encoded: Sequence[Encoded], normalize: bool | None = None) -> Tensor:
        """As a call, on the model's device. Texts in ascending order of length are computed fastest."""
        batch = self._pack(encoded).to(self.device)
        vectors_sd = self._pooling.unscaled(self._encode(batch), batch)
        scale = self._pooling.config.normalize if normalize is None else normalize
        if scale:
            vectors_sd = F.normalize(vectors_sd, dim=-1)
        return vectors_sd if self.dimensions is None else shorten(vectors_sd, self.dimensions, scale)


def shorten(vectors_sd: Tensor, dimensions: int | None, normalize: bool) -> Tensor:
    """Keep the first numbers of each vector (Matryoshka) and scale it to length 1 if that is wanted."""
    shortened_sd = vectors_sd[:, :dimensions]
    return F.normalize(shortened_sd, dim=-1) if normalize else shortened_sd


def embed_all(
    model: LoadedModel, texts: Iterable[str] | str, dimensions: int | None = None, **settings: Any
) -> Vectors:
    """Return the vectors of all texts, with a progress bar; `settings` are those of `embed_blocks`."""
    total = 1 if isinstance(texts, str) else len(texts) if isinstance(texts, Sized) else None
    with bar("embedding", total, speed="texts") as shown:
        blocks = [*embed_blocks(model, texts, dimensions=dimensions, advance=shown.advance, **settings)]
    vectors = np.concatenate([np.empty((0, dimensions or model.dimension), np.float32), *blocks])
    check_finite(vectors, model.name)
    return vectors


def embed_blocks(
    model: LoadedModel,
    texts: Iterable[str] | str,
    *,
    prompt: str | None = None,
    max_length: int | None = None,
    batch_tokens: int = 0,
    dimensions: int | None = None,
    advance: Callable[[int], None] = lambda count: None,
    first: int | None = None,
) -> Iterator[Vectors]:
    """Yield the vectors of each block of texts; see `Model.embed`.

    `advance` is called with the number of texts that are done. `first`: number of the first text, for a stream that is
    continued; then the first blocks are small, and each ends where `block_end` says.
    """
    prefix = model.vector.prompt_text(prompt, model.name)
    source = iter([texts] if isinstance(texts, str) else check_inputs(texts))
    if dimensions is not None and (type(dimensions) is not int or not 1 <= dimensions <= model.dimension):
        raise UserError(
            f"dimensions: must be a whole number from 1 to {model.dimension}, the width of this model's vectors, "
            f"not {dimensions!r}"
        )
    embedder = BatchEmbedder(model, dimensions)
    limit = model.max_length if max_length is None else max_length
    row = first

    def tokenize_next() -> Sequence[Encoded]:
        nonlocal row
        size = BLOCK if row is None else block_end(row) - row
        row = None if row is None else row + size
        block = [_with_prompt(text, prefix) for text in islice(source, size)]
        return tokenize_inputs(block, model.tokenizer, model.architecture, limit, model.name) if block else []

    with model.evaluating(), ThreadPoolExecutor(1) as reader:
        coming = reader.submit(tokenize_next)
        started: deque[tuple[int, Iterator[tuple[list[int], Tensor]]]] = deque()
        most_started = 1 if embedder.device.type == "cuda" else 0
        try:
            while encoded := coming.result():
                coming = reader.submit(tokenize_next)
                note_cuts(encoded, limit)
                started.append((len(encoded), _start_block(embedder, encoded, batch_tokens)))
                if len(started) > most_started:
                    yield _collect_block(embedder.width, *started.popleft(), advance)
        except UserError:  # in a later text: the blocks before it are complete
            yield from (_collect_block(embedder.width, *block, advance) for block in started)
            raise
        yield from (_collect_block(embedder.width, *block, advance) for block in started)


def _with_prompt(text: object, prompt: str) -> str:
    if not isinstance(text, str):
        raise UserError(f"a text to embed must be a string, not {str(text)[:60]!r}")
    return prompt + text


def _start_block(
    embedder: BatchEmbedder, encoded: Sequence[Encoded], batch_tokens: int
) -> Iterator[tuple[list[int], Tensor]]:
    """Return the rows and vectors of each batch. A GPU gets all batches now and computes while the caller continues."""

    def compute(rows: list[int]) -> tuple[list[int], Tensor]:
        return rows, embedder.compute([encoded[row] for row in rows])

    batches = batch_by_length([len(e.ids) for e in encoded], embedder.device, batch_tokens)
    computed = map_jobs(compute, batches, embedder.device)
    return iter(list(computed)) if embedder.device.type == "cuda" else computed


def _collect_block(
    width: int, count: int, computed: Iterator[tuple[list[int], Tensor]], advance: Callable[[int], None]
) -> Vectors:
    vectors = np.empty((count, width), np.float32)
    for rows, vectors_sd in computed:
        vectors[rows] = vectors_sd.cpu().numpy()
        advance(len(rows))
    return vectors


def block_end(row: int) -> int:
    """Return the row after the block of a row, if blocks grow: from a small one, each twice as large, up to BLOCK.

    So the first results come soon, and the blocks depend on nothing but the row.
    """
    end = size = min(FIRST_BLOCK, BLOCK)
    while end <= row and size < BLOCK:
        size = min(2 * size, BLOCK)
        end += size
    return end if row < end else end + ((row - end) // BLOCK + 1) * BLOCK


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
