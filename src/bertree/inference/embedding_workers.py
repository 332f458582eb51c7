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

from bertree.console import note
from bertree.engines.engine import Engine, Workers, map_in_order
from bertree.errors import TextsCut, UserError
from bertree.inference.cpu_linear import weights_dtype
from bertree.inference.embedding import Vectors, block_end, embed_blocks
from bertree.inference.load import make_model
from bertree.inference.model import Model
from bertree.interop import folder


class TextBlock(NamedTuple):
    """Texts to embed."""

    texts: list[str]
    first: int | None = None  # see `embed_blocks`


class EmbeddedBlock(NamedTuple):
    """The vectors of a block, and how many of its texts were cut: the numbers of a `TextsCut`."""

    vectors: Vectors
    cuts: list[tuple[int, int, int, int]]


class EmbeddingSetup(NamedTuple):
    """What a worker needs to compute the same vectors as this process."""

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
            path = Path(name)
            for file, content in setup.files.items():
                (path / file).parent.mkdir(parents=True, exist_ok=True)
                (path / file).write_bytes(content.data)
            contents = folder.read(path, weights_dtype(setup.precision, setup.device), None)
        self.model = make_model(contents, source=Path(setup.name)).to(setup.device, setup.precision)
        if self.model.precision != setup.precision:
            raise UserError(
                f"precision {setup.precision}: the machine {platform.node()} computes in {self.model.precision} "
                "instead, which would give other vectors; choose `precision=float32`"
            )

    def __call__(self, block: TextBlock) -> EmbeddedBlock:
        """Embed a block as `embed_blocks` does."""
        setup = self.setup
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", TextsCut)
            vectors = [
                *embed_blocks(
                    self.model,
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
        model_folder = Path(name) / "model"
        model.save(model_folder)
        files = {
            str(path.relative_to(model_folder)): np.fromfile(path, np.uint8)
            for path in model_folder.rglob("*")
            if path.is_file()
        }
    setup = EmbeddingSetup(files, model.name, device, precision, prompt, max_length, batch_tokens)
    with engine.start(EmbeddingWorker, setup, device) as workers:
        yield workers


def embed_in_order(
    workers: Workers[TextBlock, EmbeddedBlock], texts: Iterable[str], first: int, advance: Callable[[int], None]
) -> Iterator[Vectors]:
    """Yield the vectors of each block of texts, as `embed_blocks` does."""
    source = iter(texts)

    def blocks() -> Iterator[TextBlock]:
        row = first
        while block := list(islice(source, block_end(row) - row)):
            yield TextBlock(block, row)
            row += len(block)

    for _, embedded in map_in_order(workers, blocks(), lambda block: block):
        warn_of_cuts(embedded)
        advance(len(embedded.vectors))
        yield embedded.vectors


def warn_of_cuts(embedded: EmbeddedBlock) -> None:
    """Warn in this process of the texts that a worker has cut."""
    for cut in embedded.cuts:
        note(TextsCut(*cut))
