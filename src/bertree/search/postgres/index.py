"""Search an index in PostgreSQL.

    index = PostgresIndex("postgresql://user@host/database", model)
    index.search("Who is the captain?", k=5, where={"book": "Moby Dick"})

Every search is one read-only transaction, so it sees one state of the index while an export writes the next.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.inference.embedding import TextEncoder
from bertree.search.passage_store import Where, check_where, wanted_values
from bertree.search.passage_vectors import unit_vectors
from bertree.search.passages import Hit, Passage, PassageSample
from bertree.search.postgres.connection import (
    Connection,
    IsolationLevel,
    connect,
    database_errors,
    psycopg,
    sql,
    use_pgvector,
)
from bertree.search.postgres.location import SCHEMA, TABLE, TableLocation
from bertree.search.postgres.tables import (
    FORMAT,
    ExportedState,
    plain,
    read_generation,
    read_state,
    table_name,
    without_nul,
)
from bertree.search.searcher import Searcher
from bertree.search.vector_files import Vectors

BEAM, MOST_BEAM = 400, 1000  # candidates of a search in the graph, and how many pgvector allows
EXACT = 10_000  # passages up to which all are compared: of the index, or of those that match a filter
FIELDS = sql.SQL("text, document, source, start_at, end_at, metadata")
NEAREST = (
    "SELECT {fields}, number, embedding <=> %s::vector AS distance FROM {table} WHERE {condition} "
    "ORDER BY distance LIMIT %s"
)
# Of the ordinals 0, 1, 2 ... those that are spread evenly: ordinal = floor(n * total / most) for n = 0, 1, 2 ...
SPREAD = (
    "SELECT number FROM (SELECT number, row_number() OVER (ORDER BY number) - 1 AS ordinal FROM {table}) AS counted "
    "WHERE (%(total)s - ordinal * %(most)s %% %(total)s) %% %(total)s < %(most)s"
)
SAMPLE = "SELECT {fields}, vector_send(embedding) FROM {table} WHERE number = ANY(%s) ORDER BY number"
HEAD = 4  # bytes before the numbers of a vector


def condition(where: Where | None, keys: Sequence[str], empty: bool) -> tuple[sql.Composable, list[Any]]:
    """Return the filter of a search as an SQL condition on the passages, and its values.

    It means the same as in an index on disk. `keys`: those of all metadata; `empty`: there are no passages."""
    check_where(where)
    clauses: list[sql.Composable] = []
    values: list[Any] = []
    for name, value in (where or {}).items():
        key = plain(str(name))
        wanted = wanted_values(without_nul(value))
        if key not in (*keys, "id", "source") and not empty:
            raise UserError(f"where '{key}': no document has this key; {suggest(key, {*keys, 'id', 'source'})}")
        choices = ["labels @> %s::jsonb"] * len(wanted)
        values += [json.dumps({key: [text]}, ensure_ascii=False) for text in wanted]
        if key in ("id", "source"):  # the document's own, or a metadata key
            choices.append("document = ANY(%s)" if key == "id" else "source = ANY(%s)")
            values.append(wanted + [os.path.abspath(path) for path in wanted if key == "source"])
        clauses.append(sql.SQL("(" + (" OR ".join(choices) or "false") + ")"))
    return sql.SQL(" AND ").join(clauses) if clauses else sql.SQL("true"), values


class PostgresIndex(Searcher):
    """An index in a database, with the model that embeds queries. `Index.export` writes it."""

    def __init__(
        self, address: str, model: TextEncoder | None = None, *, schema: str = SCHEMA, table: str = TABLE
    ) -> None:
        self.location = TableLocation(address, schema, table)
        super().__init__(str(self.location), model)
        self._lock = RLock()
        self._connection: Connection | None = None
        try:
            with self._reading() as (_, state):
                self._check_model(state)
        except BaseException:
            self.close()
            raise

    @property
    def state(self) -> ExportedState:
        """The newest state: the model the index belongs to and what is in it."""
        with self._reading() as (_, state):
            return state

    def nearest(
        self, vectors: Vectors, k: int = 5, *, where: Where | None = None, names: Sequence[str] = ()
    ) -> list[list[Hit]]:
        """Return the k passages nearest to each vector."""
        if not len(vectors):
            return []
        with self._reading() as (connection, state):
            self._check_model(state)
            queries = unit_vectors(vectors, state.dimension, names or ["a query"] * len(vectors))
            clause, values = condition(where, state.keys, not state.passages)
            query = sql.SQL(NEAREST).format(fields=FIELDS, table=table_name(self.location), condition=clause)

            def ask(vector: Vectors) -> list[tuple[Any, ...]]:
                return connection.execute(query, [_literal(vector), *values, k]).fetchall()

            few = state.passages <= EXACT or (bool(where) and self._matches_few(connection, clause, values))
            exact = few or 2 * k > MOST_BEAM
            _tune(connection, exact, beam=max(BEAM, 2 * k))
            rows = [ask(vector) for vector in queries]
            if not exact and any(len(result) < k for result in rows):  # pgvector ends a search that takes too long
                _tune(connection, True)
                rows = [
                    result if len(result) == k else ask(vector) for result, vector in zip(rows, queries, strict=True)
                ]
        return [_hits(result) for result in rows]

    def sample(self, most: int) -> PassageSample:
        """Return passages with their vectors: all of them, or `most` that are spread evenly over the index."""
        if most < 1:
            raise UserError(f"most: must be at least 1, not {most}")
        table = table_name(self.location)
        with self._reading() as (connection, state):
            chosen = {"total": state.passages, "most": min(most, state.passages)}
            numbers = (
                [number for (number,) in connection.execute(sql.SQL(SPREAD).format(table=table), chosen)]
                if state.passages
                else []
            )
            rows = connection.execute(sql.SQL(SAMPLE).format(fields=FIELDS, table=table), (numbers,)).fetchall()
            generation = read_generation(connection, self.location)
        vectors = np.frombuffer(b"".join(row[-1][HEAD:] for row in rows), ">f4").astype(np.float32)
        passages = [_passage(fields) for *fields, _ in rows]
        return PassageSample(passages, vectors.reshape(len(rows), state.dimension), state.passages, generation)

    @property
    def generation(self) -> int:
        """Number of the transaction that changed the index last."""
        with self._reading() as (connection, _):
            return read_generation(connection, self.location)

    def _matches_few(self, connection: Connection, clause: sql.Composable, values: Sequence[Any]) -> bool:
        """Whether few enough passages match a filter to compare all of them."""
        query = "SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {condition} LIMIT {most}) AS matching"
        parts = {"table": table_name(self.location), "condition": clause, "most": sql.Literal(EXACT + 1)}
        row = connection.execute(sql.SQL(query).format(**parts), values).fetchone()
        return row is not None and row[0] <= EXACT

    def document(self, id: str) -> list[Passage]:
        """Return the passages of a document, in order; none if there is no such document."""
        query = sql.SQL("SELECT {} FROM {} WHERE document = %s ORDER BY number")
        with self._reading() as (connection, _):
            rows = connection.execute(query.format(FIELDS, table_name(self.location)), (id.replace("\0", "\ufffd"),))
            return [_passage(row) for row in rows.fetchall()]

    def __len__(self) -> int:
        """Number of passages."""
        return self.state.passages

    def __repr__(self) -> str:
        return f"PostgresIndex({self.name!r})"

    @property
    def info(self) -> Json:
        """Description of the index: its contents, size, model and settings."""
        with self._reading() as (connection, state):
            query = sql.SQL("SELECT pg_total_relation_size({}::regclass), current_setting('server_version')").format(
                sql.Literal(table_name(self.location).as_string(connection))
            )
            size, server = connection.execute(query).fetchone() or (0, "")
        return {
            "server": self.location.server,
            "schema": self.location.schema,
            "table": self.location.table,
            "format": FORMAT,
            "documents": state.documents,
            "passages": state.passages,
            "dimension": state.dimension,
            "model": {"path": state.model, "digest": state.digest},
            "prompts": list(state.prompts),
            "chunking": state.chunking,
            "metadata": list(state.keys),
            "origin": state.origin,
            "bytes": {"all": size},
            "versions": {"bertree": state.version, "PostgreSQL": server},
        }

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def _reading(self) -> Iterator[tuple[Connection, ExportedState]]:
        """Run a transaction on one state of the index. The lock on the table comes before the first look at the data:
        an export with --replace puts another table in its place."""
        with self._lock, database_errors(self.location):
            connection = self._connected()
            with connection.transaction():
                lock = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(table_name(self.location))
                connection.execute(lock)
                use_pgvector(connection, self.location)
                yield connection, read_state(connection, self.location)

    def _connected(self) -> Connection:
        """Return a connection that works: the server may have ended the last one."""
        if self._connection is not None and not self._connection.closed:
            try:
                self._connection.execute("")
            except psycopg.OperationalError:
                self._connection.close()
        if self._connection is None or self._connection.closed:
            self._connection = connect(self.location)
            self._connection.isolation_level = IsolationLevel.REPEATABLE_READ
            self._connection.read_only = True
        return self._connection


def _tune(connection: Connection, exact: bool, beam: int = BEAM) -> None:
    """Set for this transaction whether the graph is used, and how many candidates it gives."""
    if exact:
        connection.execute("SET LOCAL enable_seqscan = on")
        connection.execute("SET LOCAL enable_indexscan = off")  # a scan of the graph; others are bitmap scans
        return
    connection.execute("SET LOCAL hnsw.iterative_scan = strict_order")
    connection.execute(sql.SQL("SET LOCAL hnsw.ef_search = {}").format(sql.Literal(min(beam, MOST_BEAM))))


def _literal(vector: Vectors) -> str:
    return f"[{','.join(map(repr, vector.tolist()))}]"


def _passage(fields: Sequence[Any]) -> Passage:
    text, document, source, start, end, metadata = fields
    return Passage(text=text, document=document, source=source, start=start, end=end, metadata=metadata)


def _hits(rows: Sequence[tuple[Any, ...]]) -> list[Hit]:
    """Return rows as hits: best first, and of equals the one that was added first."""
    scored = [(_cosine(distance), number, _passage(fields)) for *fields, number, distance in rows]
    return [Hit.of_passage(passage, score) for score, _, passage in sorted(scored, key=lambda one: (-one[0], one[1]))]


def _cosine(distance: float) -> float:
    """The cosine; 0 for a vector of zeros, which has none."""
    return 1.0 - distance if distance == distance else 0.0
