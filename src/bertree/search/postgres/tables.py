"""The two tables of an index, and passages as rows in the binary format of COPY.

One table has the passages with their vectors, the other has one row that describes the index.

    SELECT document, text FROM bertree WHERE labels @> '{"book": ["Emma"]}' ORDER BY embedding <=> $1 LIMIT 10

`metadata` is the metadata of the document. `labels` are its values as filters compare them: texts in lists. `words` is
what PostgreSQL's own text search reads.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, NamedTuple

from bertree.config.settings import AtLeast, AtMost, read
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.search.passage_store import StoredDocument
from bertree.search.passages import filter_values
from bertree.search.postgres.connection import Connection, sql
from bertree.search.postgres.location import STATE, TableLocation
from bertree.search.vector_files import Vectors
from bertree.version import __version__

FORMAT = 2  # 1: without words
MOST_STORED, MOST_IN_GRAPH = 16_000, 2_000  # numbers of a vector that pgvector can store, and build a graph of
MOST_IN_ROW = 1_536  # numbers of a vector that fit into a page of 8 kB together with the start of a text
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
    embedding vector({dimension}) NOT NULL,
    words tsvector NOT NULL GENERATED ALWAYS AS (to_tsvector({configuration}::regconfig, text)) STORED
)"""
CREATE_STATE = "CREATE TABLE {state} (one boolean PRIMARY KEY DEFAULT true CHECK (one), value jsonb NOT NULL)"
COLUMNS = ("document", "source", "digest", "start_at", "end_at", "text", "metadata", "labels", "embedding")
HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)
JSONB = b"\x01"  # the version of its binary format


@dataclass(frozen=True, kw_only=True)
class ExportedState:
    """The description of an index in the database: its model and its contents."""

    model: str  # path of the model where it was exported
    digest: str  # of its weights
    dimension: Annotated[int, AtLeast(1), AtMost(MOST_STORED)]
    prompts: tuple[str, str]  # names of the model's prompts for passages and queries; "": none
    chunking: Json
    keys: tuple[str, ...]  # of metadata
    origin: str  # the folder it was exported from
    documents: int = 0
    passages: int = 0
    text_search: str = ""  # PostgreSQL's configuration of the column words; "": the table has no such column
    version: str = field(default=__version__)

    @classmethod
    def from_json(cls, value: Any, location: TableLocation) -> "ExportedState":
        """Parse and check a state."""
        version = value.get("format") if isinstance(value, dict) else None
        if type(version) is int and version > FORMAT:
            raise UserError(
                f"{location}: has format {version}, newer than this bertree reads ({FORMAT}); upgrade bertree"
            )
        try:
            values = dict(value)
            del values["format"]
            state: ExportedState = read(cls, values, "state")
            if type(state.chunking["language"]) is not str:
                raise TypeError("chunking.language")
        except (KeyError, TypeError, ValueError, UserError) as error:
            raise UserError(
                f"{location}: has no valid state ({error}); export the index again with `replace=True`"
            ) from None
        return state

    def to_json(self) -> str:
        """Return the state as JSON."""
        return json.dumps({"format": FORMAT} | asdict(self))


def table_name(location: TableLocation) -> sql.Identifier:
    """Return the quoted name of the passages' table."""
    return sql.Identifier(location.schema, location.table)


def state_name(location: TableLocation) -> sql.Identifier:
    """Return the quoted name of the state's table."""
    return sql.Identifier(location.schema, location.table + STATE)


def table_exists(connection: Connection, name: sql.Identifier) -> bool:
    """Whether there is a table, a view or anything else of this name."""
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (name.as_string(connection),)).fetchone()
    return row is not None and bool(row[0])


def read_state(connection: Connection, location: TableLocation) -> ExportedState:
    """Return the state of the index."""
    row = connection.execute(sql.SQL("SELECT value FROM {}").format(state_name(location))).fetchone()
    if row is None:
        raise UserError(f"{location}: has no state; export the index again with `replace=True`")
    return ExportedState.from_json(row[0], location)


def read_generation(connection: Connection, location: TableLocation) -> int:
    """Return the number of the transaction that wrote the state last; every export that changes something writes it."""
    row = connection.execute(sql.SQL("SELECT xmin::text::bigint FROM {}").format(state_name(location))).fetchone()
    return int(row[0]) if row else 0


def write_state(connection: Connection, location: TableLocation, state: ExportedState) -> None:
    """Write the state of the index into its table, which must exist."""
    query = "INSERT INTO {} (value) VALUES (%s) ON CONFLICT (one) DO UPDATE SET value = excluded.value"
    connection.execute(sql.SQL(query).format(state_name(location)), (state.to_json(),))


def create_schema(connection: Connection, location: TableLocation) -> None:
    """Create the schema if there is none."""
    exists = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (location.schema,)).fetchone()
    if exists is None:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(location.schema)))


def create_passages(connection: Connection, name: sql.Identifier, dimension: int, configuration: str) -> None:
    """Create an empty table of passages. Vectors stay in their rows where a page has room for them: a scan of all
    vectors would read each from another table otherwise."""
    values = {"dimension": sql.Literal(dimension), "configuration": sql.Literal(configuration)}
    connection.execute(sql.SQL(CREATE).format(table=name, **values))
    if dimension <= MOST_IN_ROW:
        connection.execute(sql.SQL("ALTER TABLE {} ALTER embedding SET STORAGE PLAIN").format(name))


def create_state(connection: Connection, location: TableLocation) -> None:
    """Create an empty table of the state."""
    connection.execute(sql.SQL(CREATE_STATE).format(state=state_name(location)))


def create_indexes(connection: Connection, name: sql.Identifier, dimension: int) -> None:
    """Create the indexes of a filled table, which is faster than filling a table that has them."""
    lines = [
        "CREATE INDEX ON {table} USING hash (document)",  # takes ids of any length
        "CREATE INDEX ON {table} USING gin (labels jsonb_path_ops)",
        "CREATE INDEX ON {table} USING gin (words)",
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


class DocumentFields(NamedTuple):
    """The columns that all passages of a document share, encoded."""

    document: bytes
    source: bytes
    digest: bytes
    metadata: bytes
    labels: bytes


class PassageFields(NamedTuple):
    """A passage without its vector."""

    document: DocumentFields
    start: int
    end: int
    text: str


def encode_document(document: StoredDocument, metadata: Json) -> DocumentFields:
    """Encode a document."""
    metadata = without_nul(metadata)
    labels = {key: sorted(texts) for key, value in metadata.items() if (texts := filter_values(value))}
    id, source = plain(document.id).encode(), plain(document.source).encode()
    return DocumentFields(id, source, document.digest, _jsonb(metadata), _jsonb(labels))


def encode_passages(passages: Sequence[PassageFields], vectors: Vectors) -> Iterator[bytes]:
    """Yield a row for each passage with its vector: the values of `COLUMNS`."""
    count, head = struct.pack(">h", len(COLUMNS)), struct.pack(">hh", vectors.shape[1], 0)
    for (common, start, end, text), vector in zip(passages, vectors.astype(">f4"), strict=True):
        fields = (
            *(common.document, common.source, common.digest, struct.pack(">i", start), struct.pack(">i", end)),
            *(plain(text).encode(), common.metadata, common.labels, head + vector.tobytes()),
        )
        yield count + b"".join(_fields(fields))


def _fields(values: Sequence[bytes]) -> Iterator[bytes]:
    for value in values:
        yield struct.pack(">i", len(value))
        yield value


def _jsonb(value: Json) -> bytes:
    return JSONB + json.dumps(value, ensure_ascii=False).encode()


def plain(text: str) -> str:
    """Return a text as PostgreSQL can store it: without U+0000, at the same length."""
    return text.replace("\0", "\ufffd")


def without_nul(value: Any) -> Any:
    """Return a JSON value whose texts PostgreSQL can store."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [without_nul(item) for item in value]
    if isinstance(value, dict):
        return {plain(key): without_nul(item) for key, item in value.items()}
    return value
