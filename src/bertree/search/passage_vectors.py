"""Passages -> unit vectors: by a model in this process, or by the workers of an engine that each have a copy of it.

`PendingBatch` holds the documents of the next commit while their passages are embedded.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertree.engines.engine import HERE, Caller, Engine, Workers
from bertree.errors import UserError
from bertree.inference.embedding import TextEncoder
from bertree.inference.embedding_workers import EmbeddedBlock, TextBlock, start_embedding, warn_of_cuts
from bertree.inference.inputs import check_finite
from bertree.inference.load import load
from bertree.inference.model import Model
from bertree.search.chunks import CharSpan
from bertree.search.documents import Document
from bertree.search.vector_files import BLOCK, Numbers, Vectors


def as_encoder(model: TextEncoder | str | Path) -> TextEncoder:
    """Return a model that embeds texts; one that is given by its path or name is loaded."""
    return load(model) if isinstance(model, str | Path) else model


def embed_texts(encoder: TextEncoder, texts: Sequence[str], prompt: str) -> Vectors:
    """Embed texts with one of the model's prompts; "": without."""
    if not prompt:
        return encoder.embed(texts)
    prompted: Any = encoder  # only a model with prompts is called this way
    return np.asarray(prompted.embed(texts, prompt=prompt))


def prompts_of(model: TextEncoder) -> dict[str, str]:
    """Return the prompts of a model by their names."""
    return dict(getattr(getattr(model, "vector", None), "prompts", ()))


def choose_prompt(model: TextEncoder, *names: str) -> str:
    """Return the first of these prompts that the model has; "" if it has none."""
    prompts = prompts_of(model)
    return next((name for name in names if name in prompts), "")


def longest_text(model: TextEncoder, prompt: str) -> int | None:
    """Return how many tokens of text the model reads at once; None if unknown."""
    longest, tokenizer, vector = (getattr(model, name, None) for name in ("max_length", "tokenizer", "vector"))
    if longest is None or tokenizer is None:
        return None
    prefix = vector.prompt_text(prompt or None) if vector is not None else ""
    return int(longest) - len(tokenizer.backend.encode(prefix).ids)  # including special tokens


class _ModelCopies:
    """Workers with copies of a model."""

    def __init__(self, workers: Workers[TextBlock, EmbeddedBlock], name: str) -> None:
        self.workers, self.name = workers, name

    @property
    def ahead(self) -> int:
        return self.workers.ahead

    def submit(self, block: Sequence[str]) -> Callable[[], Vectors]:
        result = self.workers.submit(TextBlock(list(block)))

        def wait() -> Vectors:
            embedded = result()
            warn_of_cuts(embedded)
            check_finite(embedded.vectors, self.name)
            return embedded.vectors

        return wait


@contextmanager
def start_embedders(engine: Engine, encoder: TextEncoder, prompt: str) -> Iterator[Workers[Sequence[str], Vectors]]:
    """Start the workers that embed blocks of passages with one of the model's prompts; "": without."""
    if engine is HERE:
        yield Caller(lambda texts: embed_texts(encoder, texts, prompt))
        return
    if not isinstance(encoder, Model):
        raise UserError(f"engine ray: needs a model that bertree has loaded, not {type(encoder).__name__}")
    device = encoder.device.type
    with start_embedding(engine, encoder, device, encoder.precision, prompt=prompt or None) as workers:
        yield _ModelCopies(workers, encoder.name)


def unit_vectors(vectors: Vectors, dimension: int, names: Sequence[str]) -> Vectors:
    """Check the shape of vectors and normalize them; `names`: of their texts, for messages."""
    vectors = np.asarray(vectors, np.float32)
    if vectors.shape != (len(names), dimension):
        shape, expected = " x ".join(map(str, vectors.shape)), f"{len(names)} x {dimension}"
        raise UserError(f"{names[0]}: the model gave vectors of {shape}, but this index needs {expected}")
    length = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    if not (finite := np.isfinite(length)).all():
        name = names[int(finite.argmin())]
        raise UserError(f"{name}: the model gave a vector with NaN or infinity in it; are its weights damaged?")
    unit: Vectors = (vectors / np.where(length > 0, length, 1.0)[:, None]).astype(np.float32)
    return unit


@dataclass
class PendingDocument:
    """A document with its passages, and the vectors of those embedded so far."""

    document: Document
    digest: bytes
    spans: list[CharSpan]
    vectors: list[Vectors] = field(default_factory=list)
    replaced: bool = False  # by a later one: its passages need no vectors


class PendingBatch:
    """Documents of the next commit, one per id: a later one replaces an earlier one."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.entries: dict[str, PendingDocument] = {}
        self.moved: list[tuple[str, str]] = []  # (source, id) of documents that were moved but not changed
        self.rows = 0
        self.waiting: deque[tuple[PendingDocument, CharSpan]] = deque()  # passages without a vector yet
        # Passages that are being embedded, and the function that waits for their vectors.
        self.embedding: deque[tuple[list[tuple[PendingDocument, CharSpan]], Callable[[], Vectors]]] = deque()

    def digest(self, id: str) -> bytes | None:
        """Return the digest of the document with this id, if it is in the batch."""
        entry = self.entries.get(id)
        return entry.digest if entry else None

    def add(self, document: Document, digest: bytes, spans: list[CharSpan]) -> None:
        """Add a document, or replace the one with its id."""
        if old := self.entries.pop(document.id, None):
            old.replaced = True
            self.rows -= len(old.spans)
        entry = self.entries[document.id] = PendingDocument(document, digest, spans)
        self.rows += len(spans)
        self.waiting.extend((entry, span) for span in spans)

    def pop_waiting(self, most: int) -> list[tuple[PendingDocument, CharSpan]]:
        """Return passages to embed, in order; possibly none, if those waiting were replaced."""
        passages = [self.waiting.popleft() for _ in range(min(most, len(self.waiting)))]
        return [(entry, span) for entry, span in passages if not entry.replaced]

    def texts(self) -> Iterator[str]:
        """Yield the texts of the passages, document by document."""
        for entry in self.entries.values():
            yield from (entry.document.text[span.start : span.end] for span in entry.spans)

    def blocks(self, first: int) -> Iterator[tuple[Numbers, Vectors]]:
        """Yield the vectors with their numbers, document by document."""
        rows = [vector for entry in self.entries.values() for vector in entry.vectors]
        for at in range(0, len(rows), BLOCK):
            block = np.stack(rows[at : at + BLOCK])
            yield np.arange(first + at, first + at + len(block)), block
