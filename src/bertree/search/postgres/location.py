"""Which table of a PostgreSQL database holds an index. Needs no database driver."""

from dataclasses import dataclass, field
from pathlib import Path

from bertree.errors import UserError

SCHEMES = ("postgresql://", "postgres://")
BEGINNINGS = ("postgresql:", "postgres:")  # a mistyped address may have a password in it too, so it is no folder
SCHEMA, TABLE = "public", "bertree"
STATE = "_state"  # suffix of the table that describes the index
LONGEST_NAME = 63  # bytes; PostgreSQL cuts longer names without an error


def is_address(source: str | Path) -> bool:
    """Whether this is the address of a database, not a folder."""
    return str(source).lower().startswith(BEGINNINGS)


@dataclass(frozen=True)
class TableLocation:
    """A table of a database. Its string has neither user nor password."""

    address: str = field(repr=False)
    schema: str = SCHEMA
    table: str = TABLE

    def __post_init__(self) -> None:
        if not self.address.lower().startswith(SCHEMES):
            raise UserError(
                "the address of a database begins with postgresql://, as in postgresql://user@host/database"
            )
        if "@" in self.server:  # the rest of a password would be read as the name of the server
            raise UserError(
                "the postgresql:// address cannot be read; write @ and / in a name or a password as %40 and %2F"
            )
        for what, name, most in (
            ("schema", self.schema, LONGEST_NAME),
            ("table", self.table, LONGEST_NAME - len(STATE)),
        ):
            # psycopg would read a % sign as a parameter
            if not name or {"\0", "%"} & set(name) or len(name.encode()) > most:
                raise UserError(f"{what} {name[:80]!r}: must be a name of 1 to {most} bytes without a % sign")

    @property
    def server(self) -> str:
        """The address without user, password and options."""
        rest = self.address.partition("://")[2]
        if "@" in rest.partition("/")[0]:  # as PostgreSQL reads it: the first @ before the first /
            rest = rest.partition("@")[2]
        return f"postgresql://{rest.partition('?')[0]}"

    def __str__(self) -> str:
        return f"{self.server} {self.schema}.{self.table}"
