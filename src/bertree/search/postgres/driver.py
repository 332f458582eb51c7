"""psycopg, or how to install it."""

from bertree.errors import UserError

try:
    import psycopg
    from psycopg import IsolationLevel, errors, sql
    from psycopg.conninfo import conninfo_to_dict
except ImportError:
    raise UserError("an index in PostgreSQL needs psycopg; pip install 'bertree[postgres]'") from None

__all__ = ["IsolationLevel", "conninfo_to_dict", "errors", "psycopg", "sql"]
