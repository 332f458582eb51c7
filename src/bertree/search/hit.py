"""TODO."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bertree.files import Json


@dataclass(frozen=True)
class Hit:
    """A passage that was found."""

    score: float  # the cosine, or what a second model said
    text: str
    document: str  # its id
    source: str
    start: int  # of the passage in the document, in characters
    end: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    cosine: float = 0.0

    def json(self) -> Json:
        """For machines."""
        return asdict(self)
