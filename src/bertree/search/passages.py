"""Passages, passages as search results, and filters by their metadata."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.result_table import ResultTable
from bertree.search.documents import value_text
from bertree.search.vector_files import Vectors

LABEL = 1000  # characters of a metadata value that can be filtered
Where = Mapping[str, Any]


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
        rows = [("score", f"{self.score:.4f}"), ("text", self.text)]
        rows += [(key, str(value)) for key, value in self.metadata.items()]
        return ResultTable(self.document, rows).html()

    def json(self) -> Json:
        """Return the fields as a JSON object."""
        return asdict(self)


# Filters


def label_rows(metadata: Where) -> set[tuple[str, str]]:
    """Return the labels of a document: keys with the texts by which a filter finds them."""
    return {(key, text) for key, value in metadata.items() for text in filter_values(value)}


def filter_values(value: Any) -> set[str]:
    """Return the texts by which a filter finds a metadata value: of a list, any item. Very long texts are left out."""
    texts = {value_text(item) for item in value} if isinstance(value, list) else {value_text(value)}
    return {text for text in texts if len(text) <= LABEL}


def check_where(where: Where | None) -> None:
    """Raise an error for a filter that is no mapping."""
    if where is not None and not isinstance(where, Mapping):
        raise UserError(f"where: must be a mapping of keys to values, not {where!r}"[:200])


def wanted_values(value: Any) -> list[str]:
    """Return the texts that a filter accepts for a key: one, or those of a list."""
    return [value_text(item) for item in (value if isinstance(value, list | tuple | set) else [value])]
