"""Texts -> unit vectors: by a model in this process, or by the workers of an engine that each have a copy of it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from bertree.engines.engine import HERE, Caller, Engine, Workers
from bertree.errors import UserError
from bertree.inference.embedding import TextEncoder
from bertree.inference.embedding_workers import EmbeddedBlock, TextBlock, start_embedding, warn_of_cuts
from bertree.inference.inputs import check_finite
from bertree.inference.model import Model
from bertree.search.vector_files import Vectors


def embed_texts(encoder: TextEncoder, texts: Sequence[str], prompt: str) -> Vectors:
    """Embed texts with one of the model's prompts; "": without."""
    if not prompt:
        return encoder.embed(texts)
    prompted: Any = encoder  # only a model with prompts is called this way
    return np.asarray(prompted.embed(texts, prompt=prompt))


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
            found = result()
            warn_of_cuts(found)
            check_finite(found.vectors, self.name)
            return found.vectors

        return wait


@contextmanager
def start_embedders(engine: Engine, encoder: TextEncoder, prompt: str) -> Iterator[Workers[Sequence[str], Vectors]]:
    """Start what embeds blocks of passages with one of the model's prompts; "": without."""
    if engine is HERE:
        yield Caller(lambda texts: embed_texts(encoder, texts, prompt))
        return
    if not isinstance(encoder, Model):
        raise UserError(f"engine ray: needs a model that bertree has loaded, not {type(encoder).__name__}")
    device = encoder.device.type
    with start_embedding(engine, encoder, device, encoder.precision, prompt=prompt or None) as workers:
        yield _ModelCopies(workers, encoder.name)


def unit_vectors(vectors: Vectors, dimension: int, names: Sequence[str]) -> Vectors:
    """Check the shape of vectors and normalize them; `names`: what they are vectors of, for messages."""
    found = np.asarray(vectors, np.float32)
    if found.shape != (len(names), dimension):
        shape, wanted = " x ".join(map(str, found.shape)), f"{len(names)} x {dimension}"
        raise UserError(f"{names[0]}: the model gave vectors of {shape}, but this index needs {wanted}")
    length = np.sqrt(np.einsum("nd,nd->n", found, found, dtype=np.float64))
    if not (finite := np.isfinite(length)).all():
        name = names[int(finite.argmin())]
        raise UserError(f"{name}: the model gave a vector with NaN or infinity in it; are its weights damaged?")
    unit: Vectors = (found / np.where(length > 0, length, 1.0)[:, None]).astype(np.float32)
    return unit
