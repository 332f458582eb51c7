"""Embed blocks of texts by the workers of an engine, each with a copy of the model.

The model travels as the files of its folder, so other machines need not have it.
"""

import platform
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertree.engines.engine import Engine, Workers, map_in_order
from bertree.errors import TextsCut, UserError
from bertree.inference.embedding import Vectors, window_end
from bertree.inference.load import make_model
from bertree.inference.loaded import weights_dtype
from bertree.inference.model import Model
from bertree.interop import folder


class TextBlock(NamedTuple):
    """Texts to embed."""

    texts: list[str]
    first: int | None = None  # see `Model.embed_windows`


class EmbeddedBlock(NamedTuple):
    """The vectors of a block, and how many of its texts were cut: the numbers of a `TextsCut`."""

    vectors: Vectors
    cuts: list[tuple[int, int, int, int]]


class EmbeddingSetup(NamedTuple):
    """Everything a worker needs to embed as the model at hand does."""

    files: dict[str, NDArray[np.uint8]]  # of the model's folder
    name: str  # of the model, for messages
    device: str
    precision: str
    prompt: str | None
    max_length: int | None
    batch_tokens: int


class EmbeddingWorker:
    """A model in a worker."""

    def __init__(self, setup: EmbeddingSetup) -> None:
        self.setup = setup
        with tempfile.TemporaryDirectory(prefix="bertree-") as name:
            place = Path(name)
            for file, content in setup.files.items():
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                (place / file).write_bytes(content.data)
            contents = folder.read(place, weights_dtype(setup.precision, setup.device), None)
        self.model = make_model(contents, source=Path(setup.name)).to(setup.device, setup.precision)
        if self.model.precision != setup.precision:
            raise UserError(
                f"precision {setup.precision}: the machine {platform.node()} computes in {self.model.precision} "
                "instead, which would give other vectors; choose `precision=float32`"
            )

    def __call__(self, block: TextBlock) -> EmbeddedBlock:
        """Embed a block as `Model.embed_windows` does."""
        setup = self.setup
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", TextsCut)
            vectors = [
                *self.model.embed_windows(
                    block.texts,
                    prompt=setup.prompt,
                    max_length=setup.max_length,
                    batch_tokens=setup.batch_tokens,
                    first=block.first,
                )
            ]
        cuts = [warning.message for warning in caught if isinstance(warning.message, TextsCut)]
        return EmbeddedBlock(np.concatenate(vectors), [(c.texts, c.of, c.limit, c.tokens) for c in cuts])


@contextmanager
def start_embedding(
    engine: Engine,
    model: Model,
    device: str,
    precision: str,
    *,
    prompt: str | None = None,
    max_length: int | None = None,
    batch_tokens: int = 0,
) -> Iterator[Workers[TextBlock, EmbeddedBlock]]:
    """Start workers that embed with this model, each on a device of this kind and in this precision."""
    with tempfile.TemporaryDirectory(prefix="bertree-") as name:
        place = Path(name) / "model"
        model.save(place)
        files = {
            str(path.relative_to(place)): np.fromfile(path, np.uint8) for path in place.rglob("*") if path.is_file()
        }
    setup = EmbeddingSetup(files, model.name, device, precision, prompt, max_length, batch_tokens)
    with engine.start(EmbeddingWorker, setup, device) as workers:
        yield workers


def embed_in_order(
    workers: Workers[TextBlock, EmbeddedBlock], texts: Iterable[str], first: int, advance: Callable[[int], None]
) -> Iterator[Vectors]:
    """Yield the vectors of each window of texts, as `Model.embed_windows` does."""
    source = iter(texts)

    def blocks() -> Iterator[TextBlock]:
        row = first
        while some := list(islice(source, window_end(row) - row)):
            yield TextBlock(some, row)
            row += len(some)

    for _, found in map_in_order(workers, blocks(), lambda block: block):
        warn_of_cuts(found)
        advance(len(found.vectors))
        yield found.vectors


def warn_of_cuts(found: EmbeddedBlock) -> None:
    """Warn here of the texts that a worker has cut."""
    for cut in found.cuts:
        warnings.warn(TextsCut(*cut), stacklevel=2)
