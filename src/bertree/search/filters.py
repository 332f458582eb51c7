"""Filters of documents by their metadata: the texts that are stored for them, and those that a filter accepts."""

from collections.abc import Mapping
from typing import Any

from bertree.errors import UserError
from bertree.search.documents import value_text

LABEL = 1000  # characters of a metadata value that can be filtered
Where = Mapping[str, Any]


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
