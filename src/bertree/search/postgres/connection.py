"""Connections to PostgreSQL, and its errors as one line without credentials. Imports psycopg for the package."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bertree.errors import UserError, install_hint
from bertree.search.postgres.location import TableLocation

try:
    import psycopg
    from psycopg import IsolationLevel, errors, sql
    from psycopg.conninfo import conninfo_to_dict
except ImportError:
    raise UserError(f"an index in PostgreSQL needs psycopg; {install_hint('postgres')}") from None

__all__ = ["IsolationLevel", "conninfo_to_dict", "errors", "psycopg", "sql"]
TIMEOUT = 10  # seconds to connect
# A server that has gone away is noticed within a minute: seconds, and milliseconds of the last.
ALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
INSTALL = "install it there (Debian, PostgreSQL 18: apt install postgresql-18-pgvector; or the image pgvector/pgvector)"
OLDEST = (0, 8)  # of pgvector: it searches on until enough passages match a filter
Connection = psycopg.Connection[tuple[Any, ...]]


def connect(location: TableLocation) -> Connection:
    """Connect to the server; environment variables and password files of PostgreSQL's own tools count too."""
    try:
        options: dict[str, Any] = dict(conninfo_to_dict(location.address))
    except psycopg.ProgrammingError:  # whose text may quote the password
        raise UserError("the postgresql:// address cannot be read; write % signs in a password as %25") from None
    if "PGCONNECT_TIMEOUT" not in os.environ:
        options.setdefault("connect_timeout", TIMEOUT)
    options = {"application_name": "bertree", **ALIVE, **options, "client_encoding": "utf8"}
    try:
        return psycopg.connect(**options, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        reason = _without_secrets(error, options)
        raise UserError(f"{location.server}: cannot be reached ({reason}); check address and credentials") from None


def _without_secrets(error: Exception, options: dict[str, Any]) -> str:
    message = " ".join(str(error).split()).removesuffix(".")
    for name in ("password", "sslpassword"):
        if options.get(name):
            message = message.replace(str(options[name]), "***")
    return message[:300]


@contextmanager
def database_errors(location: TableLocation) -> Iterator[None]:
    """Report errors of the database in one line."""
    try:
        yield
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        raise UserError(f"{location}: there is no index here; write one with `bertree index export`") from None
    except errors.InsufficientPrivilege as error:
        advice = "connect as its owner, ask for the right, or give another `schema` or `table`"
        raise UserError(f"{location}: {_primary(error)}; {advice}") from None
    except psycopg.OperationalError as error:
        raise UserError(f"{location}: the server ended the work ({_primary(error)}); try again") from None
    except psycopg.Error as error:
        raise UserError(f"{location}: PostgreSQL refused ({_primary(error)})") from None


def _primary(error: psycopg.Error) -> str:
    return " ".join((error.diag.message_primary or str(error)).split()).removesuffix(".")[:300]


def use_pgvector(connection: Connection, location: TableLocation, create: bool = False) -> None:
    """Make only the names of pgvector visible in this transaction. `create`: create the extension if needed."""
    extension = _pgvector(connection)
    if extension is None and create:
        _create_pgvector(connection, location)
        extension = _pgvector(connection)
    if extension is None:
        raise UserError(f"{location.server}: the extension vector is not in this database, so it holds no index")
    schema, version = extension
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise UserError(
            f"{location.server}: has pgvector {version}, but {needed} or later is needed; install it on the server, "
            "then run ALTER EXTENSION vector UPDATE"
        )
    path = sql.SQL("SET LOCAL search_path TO pg_catalog, {}").format(sql.Identifier(schema))
    connection.execute(path)


def _pgvector(connection: Connection) -> tuple[str, str] | None:
    """Return the schema and the version of the extension, if this database has it."""
    query = (
        "SELECT n.nspname::text, e.extversion FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
        "WHERE e.extname = 'vector'"
    )
    row = connection.execute(query).fetchone()
    return None if row is None else (row[0], row[1])


def _create_pgvector(connection: Connection, location: TableLocation) -> None:
    available = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
    if connection.execute(available).fetchone() is None:
        raise UserError(f"{location.server}: the server has no pgvector; {INSTALL}")
    try:
        with connection.transaction():
            connection.execute("CREATE EXTENSION vector")
    except errors.InsufficientPrivilege:
        raise UserError(
            f"{location.server}: you may not create the extension vector; ask an administrator to run CREATE EXTENSION "
            "vector in this database"
        ) from None
