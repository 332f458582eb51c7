"""A table of a PostgreSQL database as the place of an index. Needs no database driver."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from bertree.errors import UserError

SCHEMES = ("postgresql://", "postgres://")
SCHEMA, TABLE = "public", "bertree"
STATE = "_state"  # the table beside the passages is named after theirs
LONGEST_NAME = 63  # bytes; PostgreSQL cuts longer names without an error


def is_address(given: str | Path) -> bool:
    """Whether this is the address of a database, not a folder."""
    return str(given).lower().startswith(SCHEMES)


@dataclass(frozen=True)
class Place:
    """A table of a database. As a text it has neither user nor password."""

    address: str = field(repr=False)
    schema: str = SCHEMA
    table: str = TABLE

    def __post_init__(self) -> None:
        if not is_address(self.address):
            raise UserError(
                "the address of a database begins with postgresql://, as in postgresql://user@host/database"
            )
        for what, name, most in (
            ("schema", self.schema, LONGEST_NAME),
            ("table", self.table, LONGEST_NAME - len(STATE)),
        ):
            # psycopg would take a % sign for the place of a value
            if not name or {"\0", "%"} & set(name) or len(name.encode()) > most:
                raise UserError(f"{what} {name[:80]!r}: must be a name of 1 to {most} bytes without a % sign")

    @property
    def server(self) -> str:
        """The address without user, password and options."""
        try:
            parts = urlsplit(self.address)
        except ValueError:
            return "postgresql://"
        return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def __str__(self) -> str:
        return f"{self.server} {self.schema}.{self.table}"
