"""Texts -> vectors, any number of them: tokenised ahead, packed by length, in the order they came.

Texts are taken in windows. Within one they are sorted by length, so that a batch holds similar ones; while one is
computed the next is tokenised, and on a GPU the one before is fetched. So memory is that of three windows, however long
the input is.
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

WINDOW = 4096  # texts
Vectors = NDArray[np.float32]


class TextEncoder(Protocol):
    """What everything here needs of a model."""

    @property
    def dimension(self) -> int:
        """Width of its vectors."""

    @property
    def digest(self) -> str:
        """What tells its vectors from those of another model."""

    def embed(self, texts: Iterable[str]) -> Vectors:
        """A row a text."""


@dataclass(frozen=True)
class WindowSteps:
    """What a window goes through."""

    tokenise: Callable[[Sequence[str]], Sequence[Encoded]]
    pack: Callable[[Sequence[Encoded]], Batch]
    vectors: Callable[[Batch], torch.Tensor]  # one row a sequence
    device: torch.device
    width: int
    tokens: int = 0  # computed at once; 0: what suits the device
    advance: Callable[[int], None] = lambda count: None  # hears how many more texts are done


def embed_windows(parts: WindowSteps, texts: Iterable[str]) -> Iterator[Vectors]:
    """The vectors of each window of texts, in their order."""
    source = iter(texts)

    def ahead() -> Sequence[Encoded]:
        some = list(islice(source, WINDOW))
        return parts.tokenise(some) if some else []

    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(ahead)
        waiting: deque[Callable[[], Vectors]] = deque()
        ahead_by = 1 if parts.device.type == "cuda" else 0
        try:
            while encoded := coming.result():
                coming = reader.submit(ahead)
                waiting.append(_begun(parts, encoded))
                if len(waiting) > ahead_by:
                    yield waiting.popleft()()
        except UserError:  # in a text that is yet to come: what came before it is whole
            yield from (fetched() for fetched in waiting)
            raise
        yield from (fetched() for fetched in waiting)


def _begun(parts: WindowSteps, encoded: Sequence[Encoded]) -> Callable[[], Vectors]:
    """A window on its way: a GPU gets all of it at once and is asked for the results when the next one is there."""

    def work(rows: list[int]) -> tuple[list[int], torch.Tensor]:
        return rows, parts.vectors(parts.pack([encoded[row] for row in rows]))

    given = map_jobs(work, batch_by_length([len(e.ids) for e in encoded], parts.device, parts.tokens), parts.device)
    if parts.device.type == "cuda":
        given = iter(list(given))

    def fetched() -> Vectors:
        found = np.empty((len(encoded), parts.width), np.float32)
        for rows, vectors in given:
            found[rows] = vectors.float().cpu().numpy()
            parts.advance(len(rows))
        return found

    return fetched
