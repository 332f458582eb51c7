"""Documents, passages and metadata of an index, and which files belong together.

All of it is one SQLite file, so that a change is applied completely or not at all, whenever a process dies. The vector
files of a state are named in the same transaction (`IndexState`), after they are on the disk: a reader sees one
consistent state within a transaction, while another process writes the next.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bertree.errors import UserError, suggest
from bertree.search.chunks import CharSpan
from bertree.search.database import (
    CHUNK,
    CHUNK_TYPES,
    DATABASE,
    DOCUMENT,
    DOCUMENT_TYPES,
    SCHEMA,
    SOME,
    CheckedRows,
    row_checksum,
)
from bertree.search.documents import Document, SourceFile
from bertree.search.index_state import IndexState
from bertree.search.passages import Passage, Where, check_where, label_rows, wanted_values
from bertree.search.vector_files import WHICH, Numbers, missing_file

Files = TypeVar("Files")
AMONG = "IN (SELECT value FROM json_each(?))"  # a list of values as JSON
ATTEMPTS = 20  # to open files that a writer may have replaced


@dataclass(frozen=True)
class IndexedDocument:
    """A document of the index, found by its id."""

    digest: bytes
    source: str
    last: int  # number of its last passage, which shows whether this run added it; -1: it has none


class StoredDocument(NamedTuple):
    """A document by its number in the database."""

    number: int
    id: str
    source: str
    digest: bytes


class PassageStore(CheckedRows):
    """The contents of an index's database."""

    _parsed: tuple[str, IndexState] | None = None  # the state that was read last

    @classmethod
    def create(cls, folder: Path, state: IndexState) -> None:
        """Create a database that has only a state."""
        base = sqlite3.connect(folder / DATABASE, isolation_level=None)
        base.execute("PRAGMA journal_mode=WAL")
        base.executescript(SCHEMA)
        base.execute("INSERT INTO state VALUES (1, ?)", (state.to_json(),))
        base.close()

    @contextmanager
    def transaction(self, write: bool = False) -> Iterator[IndexState]:
        """Run a transaction on one consistent state; changes are committed if the block ends without an error."""
        with self._lock, self._report_errors():
            self._reopen_if_changed()
            self._base.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                state = self._state()
                self._rows = replace(state.rows)
                yield state
                self._base.execute("COMMIT")
            finally:
                if self._base.in_transaction:
                    self._base.execute("ROLLBACK")

    @contextmanager
    def with_files(self, open_files: Callable[[IndexState], Files]) -> Iterator[tuple[IndexState, Files]]:
        """Run a transaction on the newest state, with its files as `open_files` opens them."""
        for _ in range(ATTEMPTS):
            with self.transaction() as state:
                try:
                    files = open_files(state)
                except FileNotFoundError as error:
                    missing = missing_file(error.filename)
                    continue  # a writer has replaced it since: there is a newer state
                yield state, files
                return
        raise missing

    def _state(self) -> IndexState:
        row = self._base.execute("SELECT value FROM state").fetchone()
        if row is None or not isinstance(row[0], str):
            raise UserError(f"{self.path}: has no valid state; build the index again")
        if self._parsed is None or self._parsed[0] != row[0]:
            self._parsed = row[0], IndexState.from_json(row[0], self.path)
        return self._parsed[1]

    def save(self, state: IndexState) -> IndexState:
        """Save the state as the next generation, with the totals of the rows. Within a transaction that may write."""
        state = replace(state, generation=state.generation + 1, rows=replace(self._rows))
        self._base.execute("UPDATE state SET value = ?", (state.to_json(),))
        return state

    def find(self, id: str) -> IndexedDocument | None:
        """Return the document of this id, if there is one. Needs no transaction."""
        query = (
            "SELECT digest, source, (SELECT coalesce(max(number), -1) FROM chunks WHERE document = d.number) "
            "FROM documents d WHERE id = ?"
        )
        with self._lock, self._report_errors():
            rows = self._select(query, (id,), bytes, str, int)
        return IndexedDocument(*rows[0]) if rows else None

    # Documents. All of these need a transaction.

    def insert(self, document: Document, digest: bytes, spans: Sequence[CharSpan], first: int) -> None:
        """Insert a document; its passages are numbered from `first` on."""
        metadata = json.dumps(dict(document.metadata), ensure_ascii=False)
        (number,) = self._base.execute("SELECT coalesce(max(number), 0) + 1 FROM documents").fetchone()
        row = (number, document.id, document.source, digest, metadata, len(document.text), len(spans))
        chunks = [(first + n, number, s.start, s.end, document.text[s.start : s.end]) for n, s in enumerate(spans)]
        for table, rows in (("documents", [row]), ("chunks", chunks)):
            self._insert_rows(table, rows)
        labels = label_rows(document.metadata)
        self._base.executemany("INSERT INTO labels VALUES (?, ?, ?)", ((*label, number) for label in labels))
        self._rows.documents += 1
        self._rows.labels += len(labels)

    def _insert_rows(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows with their checksums."""
        checksums = [row_checksum(*row) for row in rows]
        self._rows.change(checksums)
        places = ", ".join("?" * (len(rows[0]) + 1)) if rows else ""
        complete = ((*row, checksum) for row, checksum in zip(rows, checksums, strict=True))
        self._base.executemany(f"INSERT INTO {table} VALUES ({places})", complete)

    def delete(self, ids: Iterable[str]) -> tuple[int, int]:
        """Delete documents; return how many there were, and their passages."""
        documents = chunks = 0
        for id in ids:
            rows = self._select("SELECT number, checksum FROM documents WHERE id = ?", (id,), int, int)
            if not rows:
                continue
            row, documents = rows[0][:1], documents + 1
            sums = self._select("SELECT checksum FROM chunks WHERE document = ?", row, int)
            self._rows.change([rows[0][1], *(checksum for (checksum,) in sums)], -1)
            self._rows.documents -= 1
            self._base.execute("INSERT INTO dead SELECT number FROM chunks WHERE document = ?", row)
            chunks += self._base.execute("DELETE FROM chunks WHERE document = ?", row).rowcount
            self._rows.labels -= self._base.execute("DELETE FROM labels WHERE document = ?", row).rowcount
            self._base.execute("DELETE FROM documents WHERE number = ?", row)
        return documents, chunks

    def update_sources(self, moved: Iterable[tuple[str, str]]) -> None:
        """Set new sources of otherwise unchanged documents, given as (source, id)."""
        for source, id in moved:
            query = f"SELECT {DOCUMENT}, checksum FROM documents WHERE id = ?"
            for number, _, _, *values, old in self._select(query, (id,), *DOCUMENT_TYPES, int):
                checksum = row_checksum(number, id, source, *values)
                change = "UPDATE documents SET source = ?, checksum = ? WHERE number = ?"
                self._base.execute(change, (source, checksum, number))
                self._rows.change([checksum - old])

    def clear_dead(self) -> None:
        """Forget the dead vectors, which are no longer in the files."""
        self._base.execute("DELETE FROM dead")

    # Filters.

    def matching_passages(self, where: Where) -> Numbers:
        """Return the numbers of the passages whose document has one of the values of every key."""
        clause, values = self._clause(where, "document")
        return np.sort(self._numbers(f"SELECT number FROM chunks WHERE {clause}", values))

    def matching_ids(self, where: Where) -> list[str]:
        """Return the ids of the documents that match."""
        clause, values = self._clause(where, "number")
        return [row[0] for row in self._select(f"SELECT id FROM documents WHERE {clause}", values, str)]

    def _clause(self, where: Where, column: str) -> tuple[str, list[str]]:
        """Return the SQL condition on a column of document numbers, and its values."""
        check_where(where)
        labeled = f"{column} IN (SELECT document FROM labels WHERE key = ? AND value {AMONG})"
        clauses, values = [], []
        for key, value in where.items():
            wanted = wanted_values(value)
            if key in ("id", "source"):  # the document's own, or a metadata key
                own = wanted + [os.path.abspath(path) for path in wanted if key == "source"]  # relative or absolute
                clauses.append(f"({labeled} OR {column} IN (SELECT number FROM documents WHERE {key} {AMONG}))")
                values += [key, json.dumps(wanted), json.dumps(own)]
            elif self._base.execute("SELECT 1 FROM labels WHERE key = ? LIMIT 1", (key,)).fetchone():
                clauses.append(labeled)
                values += [key, json.dumps(wanted)]
            elif self._base.execute("SELECT 1 FROM documents LIMIT 1").fetchone():
                raise UserError(
                    f"where '{key}': no document has this key; {suggest(key, {*self.metadata_keys(), 'id', 'source'})}"
                )
            else:
                clauses.append("0")
        return " AND ".join(clauses) or "1", values

    def missing_from(self, file: SourceFile) -> list[str]:
        """Return the documents that came from a file and are no longer in it."""
        query = "SELECT id, source FROM documents WHERE id = ? OR (id > ? AND id < ?)"
        bounds = (file.path, f"{file.path}#", f"{file.path}$")  # "$" is the character after "#"
        rows = self._select(query, bounds, str, str)
        return [id for id, source in rows if file.came_from(source) and not file.holds(id)]

    def metadata_keys(self) -> list[str]:
        """Return the keys of metadata, by skipping through the database index instead of reading it."""
        keys: list[str] = []
        query = "SELECT key FROM labels WHERE key > ? ORDER BY key LIMIT 1"
        rows = self._select("SELECT key FROM labels ORDER BY key LIMIT 1", (), str)
        while rows:
            keys.append(rows[0][0])
            rows = self._select(query, rows[0], str)
        return keys

    # Results.

    def passages(self, numbers: Iterable[int]) -> dict[int, Passage]:
        """Return passages by their numbers."""
        wanted = set(numbers)
        passages = self._passages(f"WHERE c.number {AMONG}", [json.dumps(list(wanted))])
        if len(passages) < len(wanted):
            raise UserError(f"{self.path}: a vector has no passage, so a file is damaged; {WHICH}")
        return passages

    def texts(self, numbers: Sequence[int]) -> list[str]:
        """Return the texts of passages; "" for one that was removed."""
        query = f"SELECT number, text FROM chunks WHERE number {AMONG}"
        texts = dict(self._select(query, (json.dumps(numbers),), int, str))
        return [texts.get(number, "") for number in numbers]

    def passages_after(self, number: int) -> dict[int, Passage]:
        """Return the next passages after a number, in order; none at the end."""
        return self._passages(f"WHERE c.number > ? ORDER BY c.number LIMIT {SOME}", [number])

    def _passages(self, condition: str, values: Sequence[Any]) -> dict[int, Passage]:
        columns = ", ".join(
            f"{table}.{name}" for table, names in (("c", CHUNK), ("d", DOCUMENT)) for name in names.split(", ")
        )
        query = f"SELECT {columns}{{}} FROM chunks c JOIN documents d ON d.number = c.document {condition}"
        rows = self._select_checked(query, values, (CHUNK_TYPES, DOCUMENT_TYPES), ", c.checksum, d.checksum")
        return {
            number: Passage(
                text=text, document=id, source=source, start=start, end=end, metadata=self._parse_metadata(metadata)
            )
            for number, _, start, end, text, _, id, source, _, metadata, *_ in rows
        }

    def documents(self) -> list["StoredDocument"]:
        """Return every document that has passages, in the order they were added."""
        query = "SELECT number, id, source, digest FROM documents WHERE chunks > 0 ORDER BY number"
        return [StoredDocument(*row) for row in self._select(query, (), int, str, str, bytes)]

    def numbered_passages(self, document: int) -> Iterator[tuple[int, Passage]]:
        """Yield the passages of a document with their numbers, in order."""
        last = -1
        while passages := self._passages(
            f"WHERE c.document = ? AND c.number > ? ORDER BY c.number LIMIT {SOME}", [document, last]
        ):
            yield from passages.items()
            last = max(passages)

    def passages_of(self, id: str) -> list[Passage]:
        """Return the passages of a document, in order."""
        rows = self._select("SELECT number FROM documents WHERE id = ?", (id,), int)
        return [passage for row in rows for _, passage in self.numbered_passages(row[0])]

    def count(self) -> tuple[int, int, dict[str, int]]:
        """Return the number of documents, of passages, and of documents by source, largest first."""
        totals = "SELECT count(*), coalesce(sum(chunks), 0) FROM documents"
        ((documents, chunks),) = self._select(totals, (), int, int)
        by_source = "SELECT source, count(*) n FROM documents GROUP BY source ORDER BY n DESC, source"
        return documents, chunks, dict(self._select(by_source, (), str, int))
