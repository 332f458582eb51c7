"""Passages, and passages as search results."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from bertree.files.formats import Json
from bertree.search.vector_files import Vectors


@dataclass(frozen=True, kw_only=True)
class Passage:
    """One passage of an index."""

    text: str
    document: str  # id of its document
    source: str  # the file, or what a record names
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


class PassageScore(NamedTuple):
    """Why a passage was found: the fields of `Hit` that do not come from the passage."""

    score: float
    cosine: float | None = None
    word_score: float | None = None
    vector_rank: int | None = None
    word_rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One passage of a search result."""

    score: float  # hybrid: the weighted sum; else that of its only part; re-ranked: the re-ranker's
    text: str
    document: str  # id of its document
    source: str
    start: int  # of the passage in its document, in characters
    end: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    cosine: float | None = None  # None: vectors were not compared
    word_score: float | None = None  # BM25; in PostgreSQL, its own score; None: words were not compared
    vector_rank: int | None = None  # among the best by cosine, from 1; None: not among them
    word_rank: int | None = None  # among the best by words
    highlights: list[tuple[int, int]] = field(default_factory=list)  # words of the query in the text, in characters

    @classmethod
    def of_passage(cls, passage: Passage, score: "PassageScore") -> "Hit":
        """Return a passage as a search result."""
        return cls(**vars(passage), **score._asdict())

    def _repr_html_(self) -> str:
        from bertree.report.html import notebook_table

        rows = [("score", f"{self.score:.4f}"), ("text", self.text)]
        return notebook_table(self.document, [*rows, *((key, str(value)) for key, value in self.metadata.items())])

    def json(self) -> Json:
        """Return the fields as a JSON object."""
        return asdict(self)
