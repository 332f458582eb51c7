"""Changes to an index, each of them whole or not at all.

Vectors go into a new file first; then one transaction of the database names the file and holds the passages. A
process that dies leaves at worst a file that nothing names, which the next writer removes. What a run has committed
stays, so the same command, given again, goes on: documents that are there unchanged are passed over.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bertree.errors import UserError
from bertree.files import exclusive_lock, new_folder, sync
from bertree.inference.embedding import Encoder
from bertree.search.chunks import split_passages
from bertree.search.database import DATABASE
from bertree.search.documents import Document, ReadSummary
from bertree.search.faiss_index import FaissIndex, Watch, check_kind, choose_kind, no_progress
from bertree.search.passage_store import PassageStore, Where
from bertree.search.pending import PendingBatch
from bertree.search.state import IndexState
from bertree.search.vector_files import IndexFile, MappedVectors, Vectors, merge_start, write_vectors
from bertree.text.tokenizer import Tokenizer

EMBEDDED = 1024  # passages given to the encoder at once
ROWS, SECONDS = 1 << 16, 30.0  # a run commits after so many passages or so much time: what a kill can cost
PARTS = 8  # so many files of about one size become one
TAIL = 1 << 22  # numbers of vectors beside the graph, which are compared one by one
FILES = ("vectors-", "graph-")


@dataclass
class AddSummary:
    """What an add did."""

    new: int = 0
    replaced: int = 0
    unchanged: int = 0
    passages: int = 0
    gone: int = 0  # no longer in the file they came from


def create_index(folder: Path, state: IndexState) -> None:
    """An index with nothing in it."""
    with new_folder(folder, ()) as work:
        PassageStore.create(work, state)


@contextmanager
def open_writer(folder: Path, encoder: Encoder | None = None, watch: Watch = no_progress) -> Iterator["IndexWriter"]:
    """The one writer of an index."""
    if not (folder / DATABASE).is_file():
        PassageStore(folder)  # says what is wrong
    with exclusive_lock(folder):
        store = PassageStore(folder, write=True)
        try:
            writer = IndexWriter(folder, store, encoder, watch)
            writer.remove_unused_files()
            yield writer
        finally:
            store.close()


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    """What the system says of our own files, in one line; what it says of the documents is not caught here."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{error.filename}: is missing; build the index again, or restore this file") from None
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror or error})") from None


class IndexWriter:
    """Adds, removes, and keeps the files in order. Only within `writing`."""

    def __init__(self, folder: Path, store: PassageStore, encoder: Encoder | None, watch: Watch) -> None:
        """Begins with a commit of its own: a transaction that a killed writer had all but committed may be unseen now
        and be seen by whoever opens the database next, and its files must not be gone by then. After the commit it
        can no longer come back."""
        self.folder, self.store, self.encoder, self.watch = folder, store, encoder, watch
        with store.transaction(write=True) as state:
            with _write_errors(folder):
                MappedVectors(folder, state.parts, state.dimension)  # nothing is added to what is broken
            self.state = store.save(state)

    def remove_unused_files(self) -> None:
        """Remove files that the present state does not name; whoever has one open may read on."""
        with _write_errors(self.folder):
            for path in self.folder.iterdir():
                if path.name.startswith(FILES) and path.name not in self.state.files:
                    path.unlink(missing_ok=True)

    def add(self, documents: Iterable[Document], found: ReadSummary, tokenizer: Tokenizer | None = None) -> AddSummary:
        """Take in documents; one whose id is there replaces it, unless they are the same."""
        added = AddSummary()
        batch, begun = PendingBatch(), self.state.next
        for document in documents:
            digest = document.digest
            waits = batch.digest(document.id)
            known = self.store.find(document.id) if waits is None else None
            if known is not None:
                _refuse_other_file(document, known.source)
            if waits is not None or (known and known.last >= begun):
                found.repeated, found.example = found.repeated + 1, found.example or document.id
                same = digest == (waits if known is None else known.digest)
            else:
                same = known is not None and known.digest == digest
                added.unchanged += same
            if same:
                if known is not None and known.source != document.source:
                    batch.moved.append((document.source, document.id))
                self.watch("reading", len(document.text), None)
                continue
            batch.add(document, digest, split_passages(document.text, self.state.chunking, tokenizer))
            self._embed(batch, EMBEDDED)
            if batch.rows >= ROWS or time.monotonic() - batch.started > SECONDS:
                batch = self._commit(batch, added)
                self._remove_vanished(found, added)
        self._commit(batch, added)
        self._remove_vanished(found, added)
        return added

    def _remove_vanished(self, found: ReadSummary, added: AddSummary) -> None:
        """Take out what files that were read to their end no longer hold."""
        files, found.files = found.files, []
        with self.store.transaction():
            left = [id for file in files for id in self.store.missing_from(file)]
        if left:
            added.gone += self.remove(left)[0]

    def _embed(self, batch: PendingBatch, least: int) -> None:
        """Give the passages that wait to the encoder, as long as there are so many."""
        assert self.encoder is not None, "adding needs an encoder"
        while len(batch.waiting) >= least:
            some = batch.pop_waiting(EMBEDDED)
            if not some:
                continue
            texts = [entry.document.text[span.start : span.end] for entry, span in some]
            given = embed_texts(self.encoder, texts, self.state.prompts[0])
            vectors = unit_vectors(given, self.state.dimension, [entry.document.id for entry, _ in some])
            for (entry, _), vector in zip(some, vectors, strict=True):
                entry.vectors.append(vector)
            self.watch("reading", sum(span.end - span.start for _, span in some), None)

    def _commit(self, batch: PendingBatch, added: AddSummary) -> PendingBatch:
        """Make what has been read part of the index; an empty batch for what comes next."""
        self._embed(batch, 1)
        if not batch.entries and not batch.moved:
            return batch
        with _write_errors(self.folder):
            state, parts = self.state, self._write_batch(batch)
            with self.store.transaction(write=True):
                self.store.update_sources(batch.moved)
                gone = self.store.delete(batch.entries)
                first = state.next
                for entry in batch.entries.values():
                    self.store.insert(entry.document, entry.digest, entry.spans, first)
                    first += len(entry.spans)
                self.state = self.store.save(replace(state, next=first, parts=parts, dead=state.dead + gone[1]))
        if len(parts) <= len(state.parts):
            self.remove_unused_files()
        added.replaced += gone[0]
        added.new += len(batch.entries) - gone[0]
        added.passages += batch.rows
        return PendingBatch()

    def _write_batch(self, batch: PendingBatch) -> tuple[IndexFile, ...]:
        """The files with the vectors of a batch, in a new one, in which the last old ones may be too.

        Every file that is open costs a handle, so there are few of them, each much larger than the next; a vector is
        written again only when its file has become several times as large. Nothing changes its position.
        """
        state, rows = self.state, batch.rows
        if not rows:
            return state.parts
        first = merge_start([part.bytes for part in state.parts], 4 * rows * state.dimension, PARTS)
        old = MappedVectors(self.folder, state.parts[first:], state.dimension)
        blocks = chain(old.copy(np.arange(len(old))), batch.blocks(state.next))
        name = self._name("vectors", ".bin")
        return (*state.parts[:first], write_vectors(self.folder, name, blocks, len(old) + rows, state.dimension))

    def remove(self, ids: Iterable[str], where: Where | None = None) -> tuple[int, int]:
        """Take documents out, by id or by what fits a filter: how many, and their passages."""
        with self.store.transaction(write=True) as state:
            named = list(ids) + (self.store.matching_ids(where) if where else [])
            gone = self.store.delete(named)
            if gone[0]:
                self.state = self.store.save(replace(state, dead=state.dead + gone[1]))
        return gone

    def settle(self, complete: bool | None = None, asked: str | None = None) -> None:
        """Put the files in order: without the dead, with the kind that suits their number."""
        with _write_errors(self.folder):
            self._settle(complete, asked)

    def _settle(self, complete: bool | None, asked: str | None) -> None:
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
        self.watch("leaving out what was removed", 0, None)
        if not len(alive):
            return replace(state, parts=(), dead=0, graph=None)
        part = write_vectors(
            self.folder, self._name("vectors", ".bin"), mapped.copy(alive), len(alive), state.dimension
        )
        return replace(state, parts=(part,), dead=0, graph=None)

    def _update_faiss(self, state: IndexState) -> IndexState:
        """The kind for so many vectors, built or brought up to date where too much lies beside it."""
        kind, why = choose_kind(state.vectors, state.dimension, state.asked)
        if kind != "flat" and state.asked == "auto" and find_spec("faiss") is None:
            kind, why = (
                "flat",
                f"{why}; but FAISS is not installed (pip install 'bertree[search]'), so all are compared",
            )
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
        """A name that no generation has used: this one's number is not taken before it is committed."""
        return f"{what}-{self.state.generation + 1:08d}{suffix}"


def check_resumable(folder: Path, wanted: IndexState) -> None:
    """Whether an index that is there is this one, not finished; if not, it is not ours to touch."""
    store = PassageStore(folder)
    try:
        with store.transaction() as state:
            pass
    finally:
        store.close()
    if state.complete:
        raise UserError(f"{folder}: is an index already; add to it with `bertree index add`, or give another --out")
    for what in ("digest", "dimension", "chunking", "prompts"):
        if getattr(state, what) != getattr(wanted, what):
            name = {"digest": "model", "dimension": "model"}.get(what, what)
            raise UserError(f"{folder}: was begun with another {name}; give that one, or remove it and begin again")


def _refuse_other_file(document: Document, source: str) -> None:
    """The same path, typed in another folder, is another file; one that is gone was moved, or is on another machine."""
    if document.named_by_path and os.path.abspath(source) != document.source and os.path.isfile(source):
        there = os.path.abspath(source)
        what = f"is in the index from {there}, and this is {document.source}"
        raise UserError(f"{document.id}: {what}; give the whole path, or remove the other first")


def embed_texts(encoder: Encoder, texts: Sequence[str], prompt: str) -> Vectors:
    """Vectors of texts of a kind the model has a prompt for; "": of none."""
    if not prompt:
        return encoder.embed(texts)
    prompted: Any = encoder  # only a model that has prompts is asked this way
    return np.asarray(prompted.embed(texts, prompt=prompt))


def unit_vectors(vectors: Vectors, dimension: int, names: Sequence[str]) -> Vectors:
    """Vectors of length one, as many and as long as they should be; `names`: of what they are the vectors."""
    found = np.asarray(vectors, np.float32)
    if found.shape != (len(names), dimension):
        shape, wanted = " x ".join(map(str, found.shape)), f"{len(names)} x {dimension}"
        raise UserError(f"{names[0]}: the model gave vectors of {shape}, where {wanted} belong into this index")
    length = np.sqrt(np.einsum("nd,nd->n", found, found, dtype=np.float64))
    if not (whole := np.isfinite(length)).all():
        name = names[int(whole.argmin())]
        raise UserError(f"{name}: the model gave a vector with NaN or infinity in it; are its weights whole?")
    unit: Vectors = (found / np.where(length > 0, length, 1.0)[:, None]).astype(np.float32)
    return unit
