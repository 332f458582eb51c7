"""A search result."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bertree.files import Json


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

    def json(self) -> Json:
        """Return the fields as a JSON object."""
        return asdict(self)
