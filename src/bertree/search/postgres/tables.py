"""The two tables of an index: its passages with their vectors, and one row that describes it.

    SELECT document, text FROM bertree WHERE labels @> '{"book": ["Emma"]}' ORDER BY embedding <=> $1 LIMIT 10

`metadata` is what a document came with. `labels` are its values as filters compare them: texts in lists.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.search.postgres.connection import Connection
from bertree.search.postgres.driver import sql
from bertree.search.postgres.place import STATE, Place
from bertree.version import __version__

FORMAT = 1
MOST_STORED, MOST_IN_GRAPH = 16_000, 2_000  # numbers of a vector that pgvector can store, and build a graph of
MOST_IN_ROW = 1_536  # numbers of a vector that a page of 8 kB holds beside the start of a text
LINKS, BUILD_BEAM = 16, 128  # of the graph: neighbours, and candidates while it is built
CREATE = """CREATE TABLE {table} (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    document text NOT NULL,
    source text NOT NULL,
    digest bytea NOT NULL,
    start_at integer NOT NULL,
    end_at integer NOT NULL,
    text text NOT NULL,
    metadata jsonb NOT NULL,
    labels jsonb NOT NULL,
    embedding vector({dimension}) NOT NULL
)"""
CREATE_STATE = "CREATE TABLE {state} (one boolean PRIMARY KEY DEFAULT true CHECK (one), value jsonb NOT NULL)"


@dataclass(frozen=True)
class ExportedState:
    """What the database knows of an index: the model it belongs to, and what is in it."""

    model: str  # path of the model where it was exported
    digest: str  # of its weights
    dimension: int
    prompts: tuple[str, str]  # names of the model's prompts for passages and queries; "": none
    chunking: Json
    keys: tuple[str, ...]  # of metadata
    origin: str  # the folder it was exported from
    documents: int = 0
    passages: int = 0
    version: str = field(default=__version__)

    @classmethod
    def from_json(cls, value: Any, place: Place) -> "ExportedState":
        """Parse and check a state."""
        try:
            given = dict(value)
            found = given.pop("format")
            if type(found) is int and found > FORMAT:
                raise UserError(
                    f"{place}: has format {found}, newer than this bertree reads ({FORMAT}); upgrade bertree"
                )
            state = cls(**given | {"prompts": tuple(given["prompts"]), "keys": tuple(given["keys"])})
            texts = (state.model, state.digest, state.origin, state.version, *state.prompts, *state.keys)
            numbers = (state.dimension, state.documents, state.passages)
            if any(type(text) is not str for text in texts) or any(type(number) is not int for number in numbers):
                raise TypeError("a value has the wrong type")
            if len(state.prompts) != 2 or not 1 <= state.dimension <= MOST_STORED:
                raise ValueError("prompts or dimension")
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{place}: has no valid state ({error}); export the index again with --replace") from None
        return state

    def to_json(self) -> str:
        """Return the state as JSON."""
        return json.dumps({"format": FORMAT} | asdict(self))


def table_name(place: Place) -> sql.Identifier:
    """Return the quoted name of the passages' table."""
    return sql.Identifier(place.schema, place.table)


def state_name(place: Place) -> sql.Identifier:
    """Return the quoted name of the state's table."""
    return sql.Identifier(place.schema, place.table + STATE)


def exists(connection: Connection, name: sql.Identifier) -> bool:
    """Whether there is a table, a view or anything else of this name."""
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (name.as_string(connection),)).fetchone()
    return row is not None and bool(row[0])


def read_state(connection: Connection, place: Place) -> ExportedState:
    """Return the state of the index."""
    row = connection.execute(sql.SQL("SELECT value FROM {}").format(state_name(place))).fetchone()
    if row is None:
        raise UserError(f"{place}: has no state; export the index again with --replace")
    return ExportedState.from_json(row[0], place)


def read_generation(connection: Connection, place: Place) -> int:
    """Return the number of the transaction that wrote the state last; every export that changes something writes it."""
    row = connection.execute(sql.SQL("SELECT xmin::text::bigint FROM {}").format(state_name(place))).fetchone()
    return int(row[0]) if row else 0


def write_state(connection: Connection, place: Place, state: ExportedState) -> None:
    """Write the state of the index; the table of it must be there."""
    query = "INSERT INTO {} (value) VALUES (%s) ON CONFLICT (one) DO UPDATE SET value = excluded.value"
    connection.execute(sql.SQL(query).format(state_name(place)), (state.to_json(),))


def create_schema(connection: Connection, place: Place) -> None:
    """Create the schema if there is none."""
    known = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (place.schema,)).fetchone()
    if known is None:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(place.schema)))


def create_passages(connection: Connection, name: sql.Identifier, dimension: int) -> None:
    """Create an empty table of passages. Vectors stay in their rows where a page has room for them: a scan of all
    vectors would read each from another table otherwise."""
    connection.execute(sql.SQL(CREATE).format(table=name, dimension=sql.Literal(dimension)))
    if dimension <= MOST_IN_ROW:
        connection.execute(sql.SQL("ALTER TABLE {} ALTER embedding SET STORAGE PLAIN").format(name))


def create_state(connection: Connection, place: Place) -> None:
    """Create an empty table of the state."""
    connection.execute(sql.SQL(CREATE_STATE).format(state=state_name(place)))


def create_indexes(connection: Connection, name: sql.Identifier, dimension: int) -> None:
    """Create the indexes of a filled table, which is faster than to fill a table that has them."""
    lines = [
        "CREATE INDEX ON {table} USING hash (document)",  # takes ids of any length
        "CREATE INDEX ON {table} USING gin (labels jsonb_path_ops)",
    ]
    if dimension <= MOST_IN_GRAPH:
        graph = (
            "CREATE INDEX ON {table} USING hnsw (embedding vector_cosine_ops) WITH (m = {m}, ef_construction = {beam})"
        )
        lines.append(graph)
    for line in lines:
        values = {"table": name, "m": sql.Literal(LINKS), "beam": sql.Literal(BUILD_BEAM)}
        connection.execute(sql.SQL(line).format(**values))
    connection.execute(sql.SQL("ANALYZE {}").format(name))
