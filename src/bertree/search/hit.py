"""Passages, and passages as search results."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bertree.files.formats import Json
from bertree.search.vector_files import Vectors


@dataclass(frozen=True)
class Passage:
    """One passage of an index."""

    text: str
    document: str  # id of its document
    source: str
    start: int  # of the passage in its document, in characters
    end: int
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PassageSample:
    """Passages of one state of an index, with their vectors."""

    passages: list[Passage]
    vectors: Vectors  # a row each, of length 1
    total: int  # passages in the index
    generation: int  # changes whenever the index does


@dataclass(frozen=True)
class Hit:
    """One passage of a search result."""

    score: float  # the cosine, or the re-ranker's score
    text: str
    document: str  # id of its document
    source: str
    start: int  # of the passage in its document, in characters
    end: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    cosine: float = 0.0

    @classmethod
    def of_passage(cls, passage: Passage, cosine: float) -> "Hit":
        """Return a passage as a search result."""
        return cls(cosine, **vars(passage), cosine=cosine)

    def json(self) -> Json:
        """Return the fields as a JSON object."""
        return asdict(self)
