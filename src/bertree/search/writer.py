"""Changes to an index, each applied completely or not at all.

Vectors are written to a new file first; then one transaction of the database names the file and adds the passages. A
process that dies leaves at most a file that nothing names, which the next writer removes. Committed work stays, so the
same command resumes: unchanged documents are skipped.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import numpy as np

from bertree.engines.engine import Workers
from bertree.errors import UserError, install_hint
from bertree.files.atomic import exclusive_lock, new_folder, sync
from bertree.search.chunks import split_passages
from bertree.search.database import DATABASE
from bertree.search.documents import Document, ReadSummary
from bertree.search.faiss_index import FaissIndex, Watch, check_kind, choose_kind, no_progress
from bertree.search.index_state import IndexState
from bertree.search.passage_store import PassageStore
from bertree.search.passage_vectors import PendingBatch, unit_vectors
from bertree.search.passages import Where
from bertree.search.vector_files import IndexFile, MappedVectors, Vectors, merge_start, missing_file, write_vectors
from bertree.search.words.bm25 import compact_words, count_words, extend_words
from bertree.search.words.terms import VERSION
from bertree.text.tokenizer import Tokenizer

EMBED_BATCH = 1024  # passages per call of the encoder
COMMIT_ROWS, COMMIT_SECONDS = 1 << 16, 30.0  # commit after this many passages or seconds: a kill loses at most these
MERGE = 8  # files of about one size that are merged into one
TAIL = 1 << 22  # numbers of vectors outside the graph, which are compared one by one
FILES = ("vectors-", "words-", "graph-")


@dataclass
class AddSummary:
    """Counts of what an add did."""

    new: int = 0
    replaced: int = 0
    unchanged: int = 0
    passages: int = 0
    gone: int = 0  # no longer in the file they came from


def create_index(folder: Path, state: IndexState) -> None:
    """Create an empty index."""
    with new_folder(folder, ()) as work:
        PassageStore.create(work, state)


@contextmanager
def open_writer(
    folder: Path, embedders: Workers[Sequence[str], Vectors] | None = None, watch: Watch = no_progress
) -> Iterator["IndexWriter"]:
    """Open an index for its only writer; adding needs `embedders`."""
    if not (folder / DATABASE).is_file():
        PassageStore(folder)  # raises the error
    with exclusive_lock(folder), closing(PassageStore(folder, write=True)) as store:
        writer = IndexWriter(folder, store, embedders, watch)
        writer.remove_unused_files()
        yield writer


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    """Report errors on the index's own files in one line; errors on documents are not caught here."""
    try:
        yield
    except FileNotFoundError as error:
        raise missing_file(error.filename) from None
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror or error})") from None


class IndexWriter:
    """Adds and removes documents, and maintains the files. Use it within `open_writer`."""

    def __init__(
        self, folder: Path, store: PassageStore, embedders: Workers[Sequence[str], Vectors] | None, watch: Watch
    ) -> None:
        """Begin with a commit: a transaction that a killed writer had almost committed may be invisible now and visible
        to the next process that opens the database, and its files must still exist then. After this commit it cannot
        reappear."""
        self.folder, self.store, self.embedders, self.watch = folder, store, embedders, watch
        with store.transaction(write=True) as state:
            with _write_errors(folder):
                vectors = MappedVectors(folder, state.parts, state.dimension)  # refuse to add to a damaged index
                if store.has_checksums:
                    store.check_counts(state)
                else:
                    store.add_checksums(state, vectors)
            self.state = store.save(state)

    def remove_unused_files(self) -> None:
        """Remove files that the current state does not name; processes that have one open can still read it."""
        with _write_errors(self.folder):
            for path in self.folder.iterdir():
                if path.name.startswith(FILES) and path.name not in self.state.files:
                    path.unlink(missing_ok=True)

    def add(
        self, documents: Iterable[Document], summary: ReadSummary, tokenizer: Tokenizer | None = None
    ) -> AddSummary:
        """Add documents; one with an existing id replaces it, unless they are equal."""
        added = AddSummary()
        batch, begun = PendingBatch(), self.state.next
        for document in documents:
            digest = document.digest
            waiting = batch.digest(document.id)
            indexed = self.store.find(document.id) if waiting is None else None
            if indexed is not None:
                _refuse_other_file(document, indexed.source)
            if waiting is not None or (indexed and indexed.last >= begun):
                summary.repeated, summary.example = summary.repeated + 1, summary.example or document.id
                same = digest == (waiting if indexed is None else indexed.digest)
            else:
                same = indexed is not None and indexed.digest == digest
                added.unchanged += same
            if same:
                if indexed is not None and indexed.source != document.source:
                    batch.moved.append((document.source, document.id))
                self.watch("reading", len(document.text), None)
                continue
            batch.add(document, digest, split_passages(document.text, self.state.chunking, tokenizer))
            self._embed(batch, EMBED_BATCH)
            if batch.rows >= COMMIT_ROWS or time.monotonic() - batch.started > COMMIT_SECONDS:
                batch = self._commit(batch, added)
                self._remove_vanished(summary, added)
        self._commit(batch, added)
        self._remove_vanished(summary, added)
        return added

    def _remove_vanished(self, summary: ReadSummary, added: AddSummary) -> None:
        """Remove documents that are no longer in the files they came from."""
        files, summary.files = summary.files, []
        with self.store.transaction():
            left = [id for file in files for id in self.store.missing_from(file)]
        if left:
            added.gone += self.remove(left)[0]

    def _embed(self, batch: PendingBatch, min_count: int) -> None:
        """Embed waiting passages, as long as there are at least `min_count`; a few blocks may stay with the workers."""
        assert self.embedders is not None, "adding needs embedders"
        while len(batch.waiting) >= min_count:
            passages = batch.pop_waiting(EMBED_BATCH)
            if not passages:
                continue
            texts = [entry.document.text[span.start : span.end] for entry, span in passages]
            batch.embedding.append((passages, self.embedders.submit(texts)))
            self._receive(batch, self.embedders.ahead)

    def _receive(self, batch: PendingBatch, left: int) -> None:
        """Receive the vectors of blocks that are being embedded, until only `left` blocks remain."""
        while len(batch.embedding) > left:
            passages, result = batch.embedding.popleft()
            vectors = unit_vectors(result(), self.state.dimension, [entry.document.id for entry, _ in passages])
            for (entry, _), vector in zip(passages, vectors, strict=True):
                entry.vectors.append(vector)
            self.watch("reading", sum(span.end - span.start for _, span in passages), None)

    def _commit(self, batch: PendingBatch, added: AddSummary) -> PendingBatch:
        """Commit the batch; return an empty one."""
        self._embed(batch, 1)
        self._receive(batch, 0)
        if not batch.entries and not batch.moved:
            return batch
        with _write_errors(self.folder):
            state, (parts, words) = self.state, self._write_batch(batch)
            with self.store.transaction(write=True):
                self.store.update_sources(batch.moved)
                gone = self.store.delete(batch.entries)
                first = state.next
                for entry in batch.entries.values():
                    self.store.insert(entry.document, entry.digest, entry.spans, first)
                    first += len(entry.spans)
                state = replace(state, next=first, parts=parts, words=words, dead=state.dead + gone[1])
                self.state = self.store.save(state)
        if len(parts) <= len(state.parts):
            self.remove_unused_files()
        added.replaced += gone[0]
        added.new += len(batch.entries) - gone[0]
        added.passages += batch.rows
        return PendingBatch()

    def _write_batch(self, batch: PendingBatch) -> tuple[tuple[IndexFile, ...], tuple[IndexFile, ...]]:
        """Write the vectors and the words of a batch into new files, possibly merged with the last old ones; return all
        files of both.

        Every open file costs a handle, so there are few, each much larger than the next; a vector is rewritten only
        when its file has grown several times as large. Positions do not change.
        """
        state, rows = self.state, batch.rows
        if not rows:
            return state.parts, state.words
        first = merge_start([part.bytes for part in state.parts], 4 * rows * state.dimension, MERGE)
        old = MappedVectors(self.folder, state.parts[first:], state.dimension)
        blocks = chain(old.copy(np.arange(len(old))), batch.blocks(state.next))
        name = self._name("vectors", ".bin")
        part = write_vectors(self.folder, name, blocks, len(old) + rows, state.dimension)
        words = extend_words(self.folder, self._name("words", ".bin"), state, first, batch.texts())
        return (*state.parts[:first], part), words

    def upgrade(self) -> None:
        """Rebuild the word index of all passages."""
        with _write_errors(self.folder):
            words = count_words(self.folder, self._name("words", ""), self.state, self.store, self.watch)
            with self.store.transaction(write=True):
                self.state = self.store.save(replace(self.state, words=words, word_version=VERSION))
            self.remove_unused_files()

    def set_word_weight(self, weight: float) -> None:
        """Set the weight of words in a hybrid search."""
        with self.store.transaction(write=True) as state:
            self.state = self.store.save(replace(state, word_weight=weight))

    def remove(self, ids: Iterable[str], where: Where | None = None) -> tuple[int, int]:
        """Remove documents by id or by a filter; return how many, and their passages."""
        with self.store.transaction(write=True) as state:
            named = list(ids) + (self.store.matching_ids(where) if where else [])
            gone = self.store.delete(named)
            if gone[0]:
                self.state = self.store.save(replace(state, dead=state.dead + gone[1]))
        return gone

    def settle(self, complete: bool | None = None, asked: str | None = None) -> None:
        """Put the files in order: remove dead vectors, and use the kind that suits their number."""
        with _write_errors(self.folder):
            state = self.state
            if asked is not None and asked != state.asked:
                check_kind(asked)
                state = replace(state, asked=asked)
            if state.dead > max(1000, state.vectors // 4) or (state.dead and state.dead == state.vectors):
                state = self._compact(state)
            state = self._update_faiss(state)
            if complete is not None:
                state = replace(state, complete=complete)
            if state != self.state:
                with self.store.transaction(write=True):
                    if not state.dead:
                        self.store.clear_dead()
                    self.state = self.store.save(state)
                self.remove_unused_files()

    def _compact(self, state: IndexState) -> IndexState:
        mapped = MappedVectors(self.folder, state.parts, state.dimension)
        with self.store.transaction():
            dead = mapped.positions(self.store.dead())
        alive = np.setdiff1d(np.arange(len(mapped)), dead, assume_unique=True)
        self.watch("removing dead vectors", 0, None)
        if not len(alive):
            return replace(state, parts=(), words=(), dead=0, graph=None)
        part = write_vectors(
            self.folder, self._name("vectors", ".bin"), mapped.copy(alive), len(alive), state.dimension
        )
        words = compact_words(self.folder, self._name("words", ".bin"), state, alive)
        return replace(state, parts=(part,), words=words, dead=0, graph=None)

    def _update_faiss(self, state: IndexState) -> IndexState:
        """Build or extend the FAISS index for the current number of vectors."""
        kind, why = choose_kind(state.vectors, state.dimension, state.asked)
        if kind != "flat" and state.asked == "auto" and find_spec("faiss") is None:
            kind = "flat"
            why += f"; but FAISS is not installed, so all are compared ({install_hint('search')})"
        if kind == "flat" or not state.vectors:
            return replace(state, kind="flat", why=why, graph=None, settings={})
        graph = None
        if (
            state.graph is not None
            and state.kind == kind
            and state.vectors <= 2 * state.settings.get("trained", 1 << 60)
        ):
            if (state.vectors - state.graph.count) * state.dimension <= TAIL:
                return replace(state, why=why)
            graph = FaissIndex.read(self.folder, state.graph, kind, dict(state.settings), state.dimension)
        mapped = MappedVectors(self.folder, state.parts, state.dimension)
        if graph is None:
            graph = FaissIndex.build(kind, mapped, self.watch)
        else:
            graph.extend(mapped, self.watch)
        part = graph.write(self.folder, self._name("graph", ".faiss"))
        sync(self.folder)
        return replace(state, kind=kind, why=why, graph=part, settings=graph.settings)

    def _name(self, what: str, suffix: str) -> str:
        """Return a new file name: the next generation's number, which is not used before the commit."""
        return f"{what}-{self.state.generation + 1:08d}{suffix}"


def check_resumable(folder: Path, wanted: IndexState) -> None:
    """Raise an error unless the existing index is this one, unfinished."""
    with closing(PassageStore(folder)) as store, store.transaction() as state:
        pass
    if state.complete:
        raise UserError(f"{folder}: is already an index; add to it with `bertree index add`, or give another folder")
    for what in ("digest", "dimension", "chunking", "prompts"):
        if getattr(state, what) != getattr(wanted, what):
            name = {"digest": "model", "dimension": "model"}.get(what, what)
            raise UserError(f"{folder}: was started with another {name}; use that one, or remove it and start again")


def _refuse_other_file(document: Document, source: str) -> None:
    """Raise an error if the same relative path meant another file that still exists."""
    if document.named_by_path and os.path.abspath(source) != document.source and os.path.isfile(source):
        what = f"is in the index from {os.path.abspath(source)}, and this is {document.source}"
        raise UserError(f"{document.id}: {what}; give the absolute path, or remove the other first")
