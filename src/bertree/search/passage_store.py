"""Documents, passages and metadata of an index, and which files belong together.

All of it is one SQLite file, so that a change is applied completely or not at all, whenever a process dies. The vector
files of a state are named in the same transaction (`IndexState`), after they are on the disk: a reader sees one
consistent state within a transaction, while another process writes the next.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.search.chunks import CharSpan
from bertree.search.database import BROKEN, DATABASE, SCHEMA, Database, RowTotals, row_checksum
from bertree.search.documents import Document, SourceFile, value_text
from bertree.search.index_state import IndexState
from bertree.search.passages import Passage
from bertree.search.vector_files import WHICH, MappedVectors, Numbers
from bertree.text.records import json_object

# The columns that a checksum covers, in order.
DOCUMENT, DOCUMENT_TYPES = (
    "number, id, source, digest, metadata, characters, chunks",
    (int, str, str, bytes, str, int, int),
)
CHUNK, CHUNK_TYPES = "number, document, first, last, text", (int, int, int, int, str)
LABEL = 1000  # characters of a metadata value that can be filtered
SOME = 500  # values per SQL query
Where = Mapping[str, Any]


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


class PassageStore(Database):
    """The contents of an index's database."""

    _parsed: tuple[str, IndexState] | None = None  # the state that was read last
    _rows = RowTotals()  # of the transaction

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

    def _select(self, query: str, values: Sequence[Any], *types: type) -> list[tuple[Any, ...]]:
        """Return rows whose columns have these types: SQLite stores any type in any column."""
        rows = self._base.execute(query, values).fetchall()
        if any(type(value) is not kind for row in rows for value, kind in zip(row, types, strict=True)):
            raise UserError(f"{self.path}: {BROKEN.format('a value has the wrong type')}")
        return rows

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

    def dead(self) -> Numbers:
        """Return the numbers of the vectors of deleted passages."""
        return self._numbers("SELECT number FROM dead")

    def clear_dead(self) -> None:
        """Forget the dead vectors, which are no longer in the files."""
        self._base.execute("DELETE FROM dead")

    def _numbers(self, query: str, values: Sequence[Any] = ()) -> Numbers:
        rows = self._base.execute(query, values).fetchall()  # a primary key is always an integer
        return np.fromiter((row[0] for row in rows), np.int64, len(rows))

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
        among = "IN (SELECT value FROM json_each(?))"
        labelled = f"{column} IN (SELECT document FROM labels WHERE key = ? AND value {among})"
        clauses, values = [], []
        for key, value in where.items():
            wanted = wanted_values(value)
            if key in ("id", "source"):  # the document's own, or a metadata key
                own = wanted + [os.path.abspath(path) for path in wanted if key == "source"]  # relative or absolute
                clauses.append(f"({labelled} OR {column} IN (SELECT number FROM documents WHERE {key} {among}))")
                values += [key, json.dumps(wanted), json.dumps(own)]
            elif self._base.execute("SELECT 1 FROM labels WHERE key = ? LIMIT 1", (key,)).fetchone():
                clauses.append(labelled)
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
        wanted = sorted(set(numbers))
        passages: dict[int, Passage] = {}
        for at in range(0, len(wanted), SOME):
            block = wanted[at : at + SOME]
            passages |= self._passages(f"WHERE c.number IN ({', '.join('?' * len(block))})", block)
        if len(passages) < len(wanted):
            raise UserError(f"{self.path}: a vector has no passage, so a file is damaged; {WHICH}")
        return passages

    def texts(self, numbers: Sequence[int]) -> list[str]:
        """Return the texts of passages; "" for one that was removed."""
        texts: dict[int, str] = {}
        for at in range(0, len(numbers), SOME):
            block = numbers[at : at + SOME]
            query = f"SELECT number, text FROM chunks WHERE number IN ({', '.join('?' * len(block))})"
            texts |= dict(self._select(query, block, int, str))
        return [texts.get(number, "") for number in numbers]

    def passages_after(self, number: int) -> dict[int, Passage]:
        """Return the next passages after a number, in order; none at the end."""
        return self._passages(f"WHERE c.number > ? ORDER BY c.number LIMIT {SOME}", [number])

    def _passages(self, condition: str, values: Sequence[int]) -> dict[int, Passage]:
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

    def _select_checked(
        self, query: str, values: Sequence[Any], types: Sequence[tuple[type, ...]], checksums: str
    ) -> list[tuple[Any, ...]]:
        """Return rows of one or more tables after comparing each with its checksum, if there are checksums.

        `query` has a place for the columns of the checksums; `types`: of the other columns of each table.
        """
        all_types = [kind for columns in types for kind in columns]
        if not self.has_checksums:
            return self._select(query.format(""), values, *all_types)
        rows = self._select(query.format(checksums), values, *all_types, *(int for _ in types))
        for row in rows:
            start = 0
            for columns, checksum in zip(types, row[len(all_types) :], strict=True):
                if row_checksum(*row[start : start + len(columns)]) != checksum:
                    raise UserError(f"{self.path}: {BROKEN.format('the checksum of a row differs')}")
                start += len(columns)
        return rows

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

    def _parse_metadata(self, text: str) -> Json:
        try:
            return json_object(text, "metadata")
        except UserError as error:
            raise UserError(f"{self.path}: {BROKEN.format(error)}") from None

    def count(self) -> tuple[int, int, dict[str, int]]:
        """Return the number of documents, of passages, and of documents by source, largest first."""
        totals = "SELECT count(*), coalesce(sum(chunks), 0) FROM documents"
        ((documents, chunks),) = self._select(totals, (), int, int)
        by_source = "SELECT source, count(*) n FROM documents GROUP BY source ORDER BY n DESC, source"
        return documents, chunks, dict(self._select(by_source, (), str, int))

    def check_counts(self, state: IndexState) -> None:
        """Raise an error unless the tables have as many rows as the state says. Within a transaction."""
        expected = {"chunks": state.vectors - state.dead, "dead": state.dead}
        if self.has_checksums:
            expected |= {"documents": state.rows.documents, "labels": state.rows.labels}
        for table, count in expected.items():
            (rows,) = self._base.execute(f"SELECT count(*) FROM {table}").fetchone()
            if rows != count:
                raise UserError(f"{self.path}: {BROKEN.format(f'{table} has {rows:,} rows where {count:,} belong')}")

    def check(self, state: IndexState, vectors: MappedVectors) -> None:
        """Read the whole database and report damage: rows, their checksums, and that they belong to the vectors.

        Within a transaction.
        """
        result = self._base.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if result != "ok":
            raise UserError(f"{self.path}: {BROKEN.format(result)}")
        self.check_counts(state)
        numbers = np.sort(np.concatenate([self._numbers("SELECT number FROM chunks"), self.dead()]))
        if not np.array_equal(numbers, vectors.numbers):
            raise UserError(f"{self.path}: {BROKEN.format('passages and vectors do not belong together')}")
        totals, passages = self._count_rows()
        if self.has_checksums and totals != state.rows:
            raise UserError(f"{self.path}: {BROKEN.format('the checksum of all rows differs')}")
        if passages:
            raise UserError(
                f"{self.path}: {BROKEN.format(f'document {min(passages)} has other passages than it should')}"
            )

    def _count_rows(self) -> tuple[RowTotals, dict[int, int]]:
        """Compare every row with its checksum; return the totals, and documents with too many or too few passages."""
        totals = RowTotals()
        passages: dict[int, int] = {}
        for row in self._all_rows("documents", DOCUMENT, DOCUMENT_TYPES):
            labels = label_rows(self._parse_metadata(row[4]))
            stored = self._select("SELECT key, value FROM labels WHERE document = ?", row[:1], str, str)
            if set(stored) != labels:
                raise UserError(
                    f"{self.path}: {BROKEN.format(f'the labels of document {row[0]} differ from its metadata')}"
                )
            totals.documents, totals.labels = totals.documents + 1, totals.labels + len(labels)
            totals.change([row_checksum(*row)])
            passages[row[0]] = row[6]
        for row in self._all_rows("chunks", CHUNK, CHUNK_TYPES):
            passages[row[1]] = passages.get(row[1], 0) - 1
            totals.change([row_checksum(*row)])
        return totals, {number: count for number, count in passages.items() if count}

    def _all_rows(self, table: str, columns: str, types: tuple[type, ...]) -> Iterator[tuple[Any, ...]]:
        """Yield all rows in the order of their numbers, checked."""
        last = -(1 << 63)
        query = f"SELECT {columns}{{}} FROM {table} WHERE number > ? ORDER BY number LIMIT {SOME}"
        while rows := self._select_checked(query, (last,), (types,), ", checksum"):
            yield from (row[: len(types)] for row in rows)
            last = rows[-1][0]

    def add_checksums(self, state: IndexState, vectors: MappedVectors) -> None:
        """Give the rows of an index of an earlier version their checksums. Within a transaction that may write."""
        self.check(state, vectors)
        self._rows = self._count_rows()[0]
        for table, columns, types in (("documents", DOCUMENT, DOCUMENT_TYPES), ("chunks", CHUNK, CHUNK_TYPES)):
            self._base.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER")
            for row in self._all_rows(table, columns, types):
                self._base.execute(f"UPDATE {table} SET checksum = ? WHERE number = ?", (row_checksum(*row), row[0]))
        self.has_checksums = True


def label_rows(metadata: Where) -> set[tuple[str, str]]:
    """Return the labels of a document: keys with the texts by which a filter finds them."""
    return {(key, text) for key, value in metadata.items() for text in filter_values(value)}


def filter_values(value: Any) -> set[str]:
    """Return the texts by which a filter finds a metadata value: of a list, any item. Very long texts are left out."""
    texts = {value_text(item) for item in value} if isinstance(value, list) else {value_text(value)}
    return {text for text in texts if len(text) <= LABEL}


def check_where(where: Where | None) -> None:
    """Raise an error for a filter that is no mapping."""
    if where is not None and not isinstance(where, Mapping):
        raise UserError(f"where: must be a mapping of keys to values, not {where!r}"[:200])


def wanted_values(value: Any) -> list[str]:
    """Return the texts that a filter accepts for a key: one, or those of a list."""
    return [value_text(one) for one in (value if isinstance(value, list | tuple | set) else [value])]
