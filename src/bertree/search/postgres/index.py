"""Search an index in PostgreSQL.

    index = PostgresIndex("postgresql://user@host/database", model)
    index.search("Who is the captain?", k=5, where={"book": "Moby Dick"})

Every search is one read-only transaction, so it sees one state of the index while an export writes the next.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock

import numpy as np

from bertree.errors import UserError
from bertree.errors.arguments import methods_check_arguments
from bertree.files.formats import Json
from bertree.inference.embedding import TextEncoder
from bertree.search.index_state import WORD_WEIGHT
from bertree.search.open_files import SAMPLE
from bertree.search.passages import Hit, Passage, PassageSample, Where
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
from bertree.search.postgres.queries import FIELDS, TableSearch, make_hits, passage_of, text_query
from bertree.search.postgres.tables import (
    FORMAT,
    ExportedState,
    read_generation,
    read_state,
    table_name,
)
from bertree.search.ranking import POOL, POOL_PER_RESULT, choose_mode, query_terms
from bertree.search.searcher import Searcher, unit_rows
from bertree.search.vector_files import Vectors

# Of the ordinals 0, 1, 2 ... those that are spread evenly: ordinal = floor(n * total / most) for n = 0, 1, 2 ...
SPREAD = (
    "SELECT number FROM (SELECT number, row_number() OVER (ORDER BY number) - 1 AS ordinal FROM {table}) AS counted "
    "WHERE (%(total)s - ordinal * %(most)s %% %(total)s) %% %(total)s < %(most)s"
)
SELECT_SAMPLE = "SELECT {fields}, vector_send(embedding) FROM {table} WHERE number = ANY(%s) ORDER BY number"
HEAD = 4  # bytes before the numbers of a vector


@methods_check_arguments
class PostgresIndex(Searcher):
    """An index in a database, with the model that embeds queries. `Index.export` writes it."""

    def __init__(
        self, address: str, model: TextEncoder | None = None, *, schema: str = SCHEMA, table: str = TABLE
    ) -> None:
        self.location = TableLocation(address, schema, table)
        super().__init__(str(self.location), model)
        self._lock = RLock()
        self._connection: Connection | None = None
        self._sampled: tuple[int, Vectors] | None = None  # generation, and vectors of it
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

    def _find(
        self, questions: Sequence[str], vectors: Vectors | None, k: int, mode: str, where: Where, weight: float | None
    ) -> list[list[Hit]]:
        sample = self._sample_vectors() if mode == "hybrid" else None
        with self._reading() as (connection, state):
            self._check_model(state)
            choose_mode(mode, bool(state.text_search), self.name)
            for question in questions:
                query_terms(question, state.chunking["language"], mode)
            rows = unit_rows(vectors, state.dimension, questions, mode)
            search = TableSearch(connection, state, table_name(self.location), where)
            most = k if mode != "hybrid" else max(POOL, POOL_PER_RESULT * k)
            results = []
            for question, vector in zip(questions, rows, strict=True):
                text = "" if mode == "vectors" else text_query(connection, state.text_search, question)
                near = [] if vector is None else search.by_vector(vector, text, most)
                by_words = search.by_words(vector, text, most) if text else []
                cosines = None if sample is None or vector is None else sample @ vector
                results.append(make_hits(near, by_words, cosines, WORD_WEIGHT if weight is None else weight)[:k])
        return results

    @property
    def has_words(self) -> bool:
        """Whether the table has a column for text search; one that an earlier version wrote has none."""
        return bool(self.state.text_search)

    @property
    def language(self) -> str:
        """Code of the language of the documents."""
        return str(self.state.chunking["language"])

    def _sample_vectors(self) -> Vectors:
        """Return some vectors of the index; they are kept until it changes."""
        generation = self.generation
        if self._sampled is None or self._sampled[0] != generation:
            self._sampled = generation, self.sample(SAMPLE).vectors
        return self._sampled[1]

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
            rows = connection.execute(sql.SQL(SELECT_SAMPLE).format(fields=FIELDS, table=table), (numbers,)).fetchall()
            generation = read_generation(connection, self.location)
        vectors = np.frombuffer(b"".join(row[-1][HEAD:] for row in rows), ">f4").astype(np.float32)
        passages = [passage_of(fields) for *fields, _ in rows]
        return PassageSample(passages, vectors.reshape(len(rows), state.dimension), state.passages, generation)

    @property
    def generation(self) -> int:
        """Number of the transaction that changed the index last."""
        with self._reading() as (connection, _):
            return read_generation(connection, self.location)

    def document(self, id: str) -> list[Passage]:
        """Return the passages of a document, in order; none if there is no such document."""
        query = sql.SQL("SELECT {} FROM {} WHERE document = %s ORDER BY number")
        with self._reading() as (connection, _):
            rows = connection.execute(query.format(FIELDS, table_name(self.location)), (id.replace("\0", "\ufffd"),))
            return [passage_of(row) for row in rows.fetchall()]

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
            "words": bool(state.text_search),
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
