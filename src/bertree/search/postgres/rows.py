"""Passages as rows in the binary format of COPY: vectors go over as their bytes."""

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bertree.files.formats import Json
from bertree.search.passage_store import StoredDocument, filter_values
from bertree.search.vector_files import Vectors

COLUMNS = ("document", "source", "digest", "start_at", "end_at", "text", "metadata", "labels", "embedding")
HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)
JSONB = b"\x01"  # the version of its binary format


class DocumentFields(NamedTuple):
    """What the passages of a document have in common, encoded."""

    document: bytes
    source: bytes
    digest: bytes
    metadata: bytes
    labels: bytes


class PassageFields(NamedTuple):
    """A passage without its vector."""

    document: DocumentFields
    start: int
    end: int
    text: str


def encode_document(document: StoredDocument, metadata: Json) -> DocumentFields:
    """Encode a document."""
    metadata = without_nul(metadata)
    labels = {key: sorted(found) for key, value in metadata.items() if (found := filter_values(value))}
    id, source = plain(document.id).encode(), plain(document.source).encode()
    return DocumentFields(id, source, document.digest, _jsonb(metadata), _jsonb(labels))


def encode_passages(passages: Sequence[PassageFields], vectors: Vectors) -> Iterator[bytes]:
    """Yield a row for each passage with its vector: the values of `COLUMNS`."""
    count, head = struct.pack(">h", len(COLUMNS)), struct.pack(">hh", vectors.shape[1], 0)
    for (common, start, end, text), vector in zip(passages, vectors.astype(">f4"), strict=True):
        fields = (
            *(common.document, common.source, common.digest, struct.pack(">i", start), struct.pack(">i", end)),
            *(plain(text).encode(), common.metadata, common.labels, head + vector.tobytes()),
        )
        yield count + b"".join(_fields(fields))


def _fields(values: Sequence[bytes]) -> Iterator[bytes]:
    for value in values:
        yield struct.pack(">i", len(value))
        yield value


def _jsonb(value: Json) -> bytes:
    return JSONB + json.dumps(value, ensure_ascii=False).encode()


def plain(text: str) -> str:
    """Return a text as PostgreSQL can store it: without U+0000, at the same length."""
    return text.replace("\0", "\ufffd")


def without_nul(value: Any) -> Any:
    """Return a JSON value whose texts PostgreSQL can store."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [without_nul(item) for item in value]
    if isinstance(value, dict):
        return {plain(key): without_nul(item) for key, item in value.items()}
    return value
