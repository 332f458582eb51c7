"""Documents on their way into an index, one per id: a later one replaces an earlier one."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from bertree.search.chunks import CharSpan
from bertree.search.documents import Document
from bertree.search.vector_files import BLOCK, Numbers, Vectors


@dataclass
class PendingDocument:
    """A document with its passages, and the vectors of those embedded so far."""

    document: Document
    digest: bytes
    spans: list[CharSpan]
    vectors: list[Vectors] = field(default_factory=list)
    replaced: bool = False  # by a later one: its passages need no vectors


class PendingBatch:
    """What the next commit will contain."""

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
        some = [self.waiting.popleft() for _ in range(min(most, len(self.waiting)))]
        return [(entry, span) for entry, span in some if not entry.replaced]

    def blocks(self, first: int) -> Iterator[tuple[Numbers, Vectors]]:
        """Yield the vectors with their numbers, document by document."""
        rows = [vector for entry in self.entries.values() for vector in entry.vectors]
        for at in range(0, len(rows), BLOCK):
            some = np.stack(rows[at : at + BLOCK])
            yield np.arange(first + at, first + at + len(some)), some
