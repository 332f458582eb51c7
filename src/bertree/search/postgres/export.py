"""Write an index from a folder into a database: only what has changed, in one transaction.

Readers of the database see the old index or the new one. A killed export leaves the old one.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from bertree.errors import UserError
from bertree.search.faiss_index import Watch, no_progress
from bertree.search.index_state import IndexState
from bertree.search.passage_store import PassageStore, StoredDocument
from bertree.search.postgres import tables
from bertree.search.postgres.connection import Connection, connect, database_errors, sql, use_pgvector
from bertree.search.postgres.location import TableLocation
from bertree.search.postgres.queries import configuration_for
from bertree.search.postgres.tables import (
    COLUMNS,
    HEADER,
    TRAILER,
    DocumentFields,
    ExportedState,
    PassageFields,
    encode_document,
    encode_passages,
    plain,
)
from bertree.search.vector_files import MappedVectors

BLOCK = 1000  # passages that are read and sent at once


@dataclass(kw_only=True)
class ExportSummary:
    """Counts of what an export did, in documents."""

    new: int = 0
    replaced: int = 0
    removed: int = 0
    unchanged: int = 0
    passages: int = 0  # that were written
    documents: int = 0  # of the index now
    graph: bool = True  # False: vectors have too many numbers for an HNSW index, so all are compared


@dataclass(frozen=True)
class LocalIndex:
    """One state of an index on disk, within its transaction."""

    folder: Path
    store: PassageStore
    state: IndexState
    vectors: MappedVectors

    def exported_state(self) -> ExportedState:
        """Return the description of the index for the database, without its counts."""
        return ExportedState(
            model=self.state.model,
            digest=self.state.digest,
            dimension=self.state.dimension,
            prompts=self.state.prompts,
            chunking=asdict(self.state.chunking),
            keys=tuple(plain(key) for key in self.store.metadata_keys()),
            origin=str(self.folder.absolute()),
            text_search=configuration_for(self.state.chunking.language),
        )

    def passages(self, document: StoredDocument) -> Iterator[tuple[int, PassageFields]]:
        """Yield the passages of a document with their numbers."""
        common: DocumentFields | None = None
        for number, passage in self.store.numbered_passages(document.number):
            common = common or encode_document(document, dict(passage.metadata))
            yield number, PassageFields(common, passage.start, passage.end, passage.text)

    def rows(self, passages: Sequence[tuple[int, PassageFields]]) -> Iterator[bytes]:
        """Return passages with their vectors as rows."""
        wanted = np.array([number for number, _ in passages], np.int64)
        positions = self.vectors.positions(wanted)  # sorted, as the numbers of passages are not
        if len(positions) != len(wanted):
            raise UserError(f"{self.folder}: a passage has no vector, so a file is damaged; build the index again")
        vectors = np.empty((len(wanted), self.state.dimension), np.float32)
        vectors[np.argsort(wanted)] = self.vectors[positions]
        return encode_passages([fields for _, fields in passages], vectors)


def export_index(
    folder: Path, location: TableLocation, *, fresh: bool = False, watch: Watch = no_progress
) -> ExportSummary:
    """Make the tables at `location` equal to the index in `folder`. `fresh`: write all of it into new tables."""
    with (
        _open_local(folder) as local,
        closing(connect(location)) as connection,
        database_errors(location),
        connection.transaction(),
    ):
        export = _Export(connection, location, local, watch)
        export.lock()
        use_pgvector(connection, location, create=True)
        if local.state.dimension > tables.MOST_STORED:
            wide = f"{local.state.dimension:,} numbers; pgvector stores at most {tables.MOST_STORED:,}"
            raise UserError(f"{folder}: its vectors have {wide}")
        new, old = local.exported_state(), export.old_state()
        return export.write_all(new, old) if old is None or fresh else export.write_changes(new, old)


@contextmanager
def _open_local(folder: Path) -> Iterator[LocalIndex]:
    """Open an index in one transaction, so that what is exported is one state of it."""
    with (
        closing(PassageStore(folder)) as store,
        store.with_files(lambda state: MappedVectors(folder, state.parts, state.dimension)) as (state, vectors),
    ):
        yield LocalIndex(folder, store, state, vectors)


@dataclass(frozen=True)
class _Export:
    """One export, within the transactions of the index and of the database."""

    connection: Connection
    location: TableLocation
    local: LocalIndex
    watch: Watch

    def lock(self) -> None:
        """Take the lock of the table for this transaction: one export at a time."""
        name = hashlib.blake2b(f"bertree {self.location.schema} {self.location.table}".encode(), digest_size=8)
        key = int.from_bytes(name.digest(), "big", signed=True)
        row = self.connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (key,)).fetchone()
        if row is None or not row[0]:
            raise UserError(f"{self.location}: another export is writing here; wait for it, or give another `table`")

    def old_state(self) -> ExportedState | None:
        """Return the state of the existing index; None: there is none."""
        names = (tables.table_name(self.location), tables.state_name(self.location))
        existing = [tables.table_exists(self.connection, name) for name in names]
        if not any(existing):
            return None
        if not all(existing):
            raise UserError(f"{self.location}: there is a table that bertree did not make; give another `table`")
        return tables.read_state(self.connection, self.location)

    def write_all(self, new: ExportedState, old: ExportedState | None) -> ExportSummary:
        """Fill a new table, then replace the old one by it: readers wait only for the replacement."""
        if old is None:
            tables.create_schema(self.connection, self.location)
            tables.create_state(self.connection, self.location)
        name = tables.table_name(self.location)
        hashed = hashlib.blake2b(self.location.table.encode()).hexdigest()[:40]
        filled = sql.Identifier(self.location.schema, f"bertree_{hashed}")
        tables.create_passages(self.connection, filled if old else name, new.dimension, new.text_search)
        documents = self.local.store.documents()
        passages = self._send(filled if old else name, documents)
        self.watch("building the indexes", 0, None)
        tables.create_indexes(self.connection, filled if old else name, new.dimension)
        if old is not None:
            self.connection.execute(sql.SQL("DROP TABLE {}").format(name))
            rename = sql.SQL("ALTER TABLE {} RENAME TO {}").format(filled, sql.Identifier(self.location.table))
            self.connection.execute(rename)
        tables.write_state(self.connection, self.location, replace(new, documents=len(documents), passages=passages))
        return ExportSummary(
            new=len(documents), passages=passages, documents=len(documents), graph=new.dimension <= tables.MOST_IN_GRAPH
        )

    def write_changes(self, new: ExportedState, old: ExportedState) -> ExportSummary:
        """Delete what is gone or changed, and write what is new or changed."""
        for what in ("digest", "dimension", "prompts", "chunking"):
            if getattr(old, what) != getattr(new, what):
                differs = {"digest": "model", "dimension": "model"}.get(what, what)
                model = old.model or "given in Python"
                raise UserError(
                    f"{self.location}: holds an index with another {differs} (its model: {model}); give another "
                    "`table`, or `replace=True` to write all of it anew"
                )
        self.watch("comparing", 0, None)
        documents, remote = self.local.store.documents(), self._remote_documents()
        write = [d for d in documents if remote.get(plain(d.id)) != (d.digest, plain(d.source))]
        ids = {plain(document.id) for document in documents}
        gone = [id for id in remote if id not in ids]
        if remote and len(gone) == len(remote) and old.origin != new.origin:
            raise UserError(
                f"{self.location}: holds another index, exported from {old.origin}, without a document of this one; "
                "give another `table`, or `replace=True` to remove it"
            )
        changed = [id for document in write if (id := plain(document.id)) in remote]
        name, before = tables.table_name(self.location), old.passages
        deleted = self._delete(name, [*gone, *changed])
        passages = self._send(name, write)
        state = replace(
            new, documents=len(documents), passages=before - deleted + passages, text_search=old.text_search
        )
        if state != old or write or gone:
            tables.write_state(self.connection, self.location, state)
        if len(write) > len(documents) // 10:
            self.connection.execute(sql.SQL("ANALYZE {}").format(name))
        return ExportSummary(
            new=len(write) - len(changed),
            replaced=len(changed),
            removed=len(gone),
            unchanged=len(documents) - len(write),
            passages=passages,
            documents=len(documents),
            graph=new.dimension <= tables.MOST_IN_GRAPH,
        )

    def _remote_documents(self) -> dict[str, tuple[bytes, str]]:
        """Return digest and source of every document of the database, by id."""
        query = sql.SQL("SELECT DISTINCT document, digest, source FROM {}").format(tables.table_name(self.location))
        with self.connection.cursor("documents") as cursor:
            cursor.itersize = 10_000
            return {id: (digest, source) for id, digest, source in cursor.execute(query)}

    def _delete(self, name: sql.Identifier, ids: Sequence[str]) -> int:
        """Delete documents; return how many passages they had."""
        query = "DELETE FROM {} t USING unnest(%s::text[]) AS gone (id) WHERE t.document = gone.id"
        delete, blocks = sql.SQL(query).format(name), (list(ids[at : at + 1000]) for at in range(0, len(ids), 1000))
        return sum(self.connection.execute(delete, (block,)).rowcount for block in blocks)

    def _send(self, name: sql.Identifier, documents: Sequence[StoredDocument]) -> int:
        """Copy the passages of documents into the table; return how many."""
        if not documents:
            return 0
        columns = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
        query = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(name, columns)
        passages, done = 0, 0

        def waiting() -> Iterator[tuple[int, PassageFields]]:
            nonlocal done
            for document in documents:
                yield from self.local.passages(document)
                done += 1

        rest = waiting()
        with self.connection.cursor().copy(query) as copy:
            copy.write(HEADER)
            while block := list(islice(rest, BLOCK)):
                copy.write(b"".join(self.local.rows(block)))
                passages += len(block)
                self.watch("writing documents", done, len(documents))
            copy.write(TRAILER)
        return passages
