"""Embed any number of texts: tokenized ahead, batched by length, returned in the order given.

Texts are taken in windows. Within a window they are sorted by length, so that a batch holds similar ones. While one
window is computed the next is tokenized, and on a GPU the one before is copied to the host. So memory is that of three
windows, however long the input is.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference.batching import batch_by_length, map_jobs
from bertree.text.tokenizer import Encoded

WINDOW = 1024  # texts: with larger ones a GPU waits for the first to be tokenized
FIRST_WINDOW = 256  # where windows grow
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


def finish_vectors(vectors: Vectors, dimensions: int | None, normalize: bool) -> Vectors:
    """Keep the first so many numbers of each vector, and scale it to length 1 if that is wanted."""
    vectors = vectors[:, :dimensions]
    if normalize:
        squares = np.matmul(vectors[:, None, :], vectors[:, :, None])[:, 0]  # faster than np.linalg.norm for a few rows
        vectors = vectors / np.maximum(np.sqrt(squares), 1e-12)
    return np.ascontiguousarray(vectors)


@dataclass(frozen=True)
class WindowSteps:
    """The steps of a window, and their settings."""

    tokenize: Callable[[Sequence[str]], Sequence[Encoded]]
    pack: Callable[[Sequence[Encoded]], Batch]
    vectors: Callable[[Batch], torch.Tensor]  # one row per sequence
    device: torch.device
    width: int
    tokens: int = 0  # per batch; 0: what suits the device
    advance: Callable[[int], None] = lambda count: None  # called with the number of texts that are done


def window_end(row: int) -> int:
    """Return where the window of a row ends, if windows grow: from a small one, each twice as large, up to WINDOW.

    So the first results come soon, and the windows depend on nothing but the row.
    """
    end = size = min(FIRST_WINDOW, WINDOW)
    while end <= row and size < WINDOW:
        size = min(2 * size, WINDOW)
        end += size
    return end if row < end else end + ((row - end) // WINDOW + 1) * WINDOW


def embed_windows(steps: WindowSteps, texts: Iterable[str], first: int | None = None) -> Iterator[Vectors]:
    """Yield the vectors of each window of texts, in their order; `first`: windows grow, and this is the first row."""
    source, row = iter(texts), first

    def ahead() -> Sequence[Encoded]:
        nonlocal row
        size = WINDOW if row is None else window_end(row) - row
        row = None if row is None else row + size
        some = list(islice(source, size))
        return steps.tokenize(some) if some else []

    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(ahead)
        waiting: deque[Callable[[], Vectors]] = deque()
        ahead_by = 1 if steps.device.type == "cuda" else 0
        try:
            while encoded := coming.result():
                coming = reader.submit(ahead)
                waiting.append(_start_window(steps, encoded))
                if len(waiting) > ahead_by:
                    yield waiting.popleft()()
        except UserError:  # in a later text: what came before it is complete
            yield from (fetch() for fetch in waiting)
            raise
        yield from (fetch() for fetch in waiting)


def _start_window(steps: WindowSteps, encoded: Sequence[Encoded]) -> Callable[[], Vectors]:
    """Start a window and return the function that fetches its vectors.

    A GPU gets all of it at once, and its results are fetched after the next window was started.
    """

    def work(rows: list[int]) -> tuple[list[int], torch.Tensor]:
        return rows, steps.vectors(steps.pack([encoded[row] for row in rows]))

    given = map_jobs(work, batch_by_length([len(e.ids) for e in encoded], steps.device, steps.tokens), steps.device)
    if steps.device.type == "cuda":
        given = iter(list(given))

    def fetch() -> Vectors:
        found = np.empty((len(encoded), steps.width), np.float32)
        for rows, vectors in given:
            found[rows] = vectors.float().cpu().numpy()
            steps.advance(len(rows))
        return found

    return fetch
