"""An index by what the user gives: a folder, or the address of a database."""

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from bertree.inference.embedding import TextEncoder
from bertree.search.index import Index
from bertree.search.postgres.place import SCHEMA, TABLE, is_address

if TYPE_CHECKING:
    from bertree.search.postgres.index import PostgresIndex

AnyIndex: TypeAlias = "Index | PostgresIndex"


def open_index(
    given: str | Path, model: TextEncoder | None = None, schema: str = SCHEMA, table: str = TABLE
) -> AnyIndex:
    """Open the index in a folder, or at a postgresql:// address."""
    if is_address(given):
        from bertree.search.postgres.index import PostgresIndex

        return PostgresIndex(str(given), model, schema=schema, table=table)
    return Index(given, model)
