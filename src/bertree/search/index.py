"""A search index: documents as passages with vectors, in a folder.

    index = Index.build(model, ["books/"], "my-index")
    index.search("Who is the captain?", k=5, where={"book": "Moby Dick"})

Every search reads one state of the folder, the newest: other processes may add to it meanwhile.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from bertree.engines.local import choose_engine
from bertree.errors import UserError
from bertree.errors.arguments import methods_check_arguments
from bertree.files.formats import Json
from bertree.inference.embedding import TextEncoder
from bertree.result_table import ResultTable
from bertree.search.chunks import choose_chunking
from bertree.search.database import DATABASE
from bertree.search.documents import DocumentInput, ReadOptions, ReadSummary, read_documents
from bertree.search.faiss_index import Watch, check_kind, no_progress
from bertree.search.index_state import IndexState
from bertree.search.open_files import OpenFiles, describe_index, library_versions, verify_files
from bertree.search.passage_store import PassageStore
from bertree.search.passage_vectors import as_encoder, choose_prompt, longest_text, start_embedders
from bertree.search.passages import Hit, Passage, PassageSample, Where
from bertree.search.postgres.location import SCHEMA, TABLE, TableLocation, is_address
from bertree.search.ranking import Query, choose_mode, query_terms, rank
from bertree.search.searcher import Searcher, unit_rows
from bertree.search.vector_files import Vectors
from bertree.search.words.terms import VERSION, check_language
from bertree.search.writer import AddSummary, check_resumable, create_index, open_writer
from bertree.text.memory import Rows

if TYPE_CHECKING:
    from bertree.search.postgres.export import ExportSummary
    from bertree.search.postgres.index import PostgresIndex

AnyIndex: TypeAlias = "Index | PostgresIndex"


@methods_check_arguments
class Index(Searcher):
    """An index on disk, with the model that embeds its documents and queries."""

    def __init__(self, path: str | Path, model: TextEncoder | str | Path | None = None) -> None:
        self.path = Path(path)
        super().__init__(str(self.path), None if model is None else as_encoder(model))
        self.read = ReadSummary()  # what the last build or add read and left out
        self.added = AddSummary()  # what the last build or add changed
        self._store = PassageStore(self.path)
        self._files = OpenFiles(folder=self.path)
        try:
            with self._store.transaction() as state:
                self._check_model(state)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | Path, model: TextEncoder | str | Path | None = None) -> "Index":
        """Open an existing index with its model, or the model's path. Without, it can be inspected, searched by words,
        and documents can be removed, but not added."""
        return cls(path, model)

    @classmethod
    def build(
        cls,
        model: TextEncoder | str | Path,
        docs: DocumentInput | Iterable[DocumentInput] | Rows,
        path: str | Path,
        *,
        text: str = "text",
        id: str | None = None,
        blocks: bool = False,
        kind: str = "auto",
        chunk: int | None = None,
        overlap: int | None = None,
        language: str = "en",
        words: bool = True,
        prompts: tuple[str, str] | None = None,
        name: str = "",
        engine: str = "local",
        address: str | None = None,
        watch: Watch = no_progress,
    ) -> "Index":
        """Build an index of files and folders (strings, paths), records (mappings), a table (a frame of pandas or
        Polars, an Arrow table, a Dataset) or `Document`s.

        An interrupted build is resumed. `text`, `id`: columns of tables and records; the others are metadata. `blocks`:
        an empty line ends a document of a text file. `kind`: auto, flat, hnsw, ivfpq. `chunk`, `overlap`: tokens of a
        passage, and of these, tokens repeated from the passage before. `language`: code of the language, for sentences
        and words. `words`: keep a word index too. `prompts`: names of the model's prompts for
        passages and for queries, if not document and query. `name`: of the model, to be
        recorded in the index, if not the one it was loaded by. `engine="ray"` embeds on the Ray cluster at `address`.
        """
        folder, summary, model = Path(path), ReadSummary(), as_encoder(model)
        check_kind(kind)
        check_language(language)
        workers = choose_engine(engine, address)
        documents = read_documents(docs, ReadOptions(text, id, blocks), summary)
        prompts = prompts or (choose_prompt(model, "document", "passage"), choose_prompt(model, "query", "question"))
        state = IndexState(
            model=name or getattr(model, "origin", ""),
            digest=model.digest,
            dimension=model.dimension,
            chunking=choose_chunking(chunk, overlap, longest_text(model, prompts[0]), language),
            prompts=prompts,
            asked=kind,
            versions=library_versions(),
            word_version=VERSION if words else 0,
        )
        new = not (folder / DATABASE).is_file()
        if not new:
            check_resumable(folder, state)
        with start_embedders(workers, model, prompts[0]) as embedders:
            if new:
                create_index(folder, state)
            with open_writer(folder, embedders, watch) as writer:
                try:
                    added = writer.add(documents, summary, getattr(model, "tokenizer", None))
                    writer.settle(complete=True, asked=kind)
                except UserError:
                    if new and not writer.state.parts:  # after a user's mistake, leave nothing behind
                        shutil.rmtree(folder, ignore_errors=True)
                    raise
        index = cls(folder, model)
        index.read, index.added = summary, added
        return index

    def add(
        self,
        docs: DocumentInput | Iterable[DocumentInput] | Rows,
        *,
        text: str = "text",
        id: str | None = None,
        blocks: bool = False,
        engine: str = "local",
        address: str | None = None,
        watch: Watch = no_progress,
    ) -> AddSummary:
        """Add documents. One with an existing id replaces it; one that has not changed is skipped."""
        model = self._require_model()
        self.read = ReadSummary()
        documents = read_documents(docs, ReadOptions(text, id, blocks), self.read)
        workers, prompt = choose_engine(engine, address), self.state.prompts[0]
        with start_embedders(workers, model, prompt) as embedders, open_writer(self.path, embedders, watch) as writer:
            self._check_model(writer.state)
            self.added = writer.add(documents, self.read, getattr(model, "tokenizer", None))
            writer.settle()
        return self.added

    def remove(self, ids: str | Iterable[str] = (), where: Where | None = None, watch: Watch = no_progress) -> int:
        """Remove documents by id, or all that match a filter; return how many."""
        named = [ids] if isinstance(ids, str) else list(ids)
        with open_writer(self.path, None, watch) as writer:
            gone, _ = writer.remove(named, where)
            writer.settle()
        return gone

    def settle(self, kind: str, watch: Watch = no_progress) -> None:
        """Change the kind of the index: flat, hnsw, ivfpq, or auto."""
        with open_writer(self.path, None, watch) as writer:
            writer.settle(asked=kind)

    def _find(
        self, questions: Sequence[str], vectors: Vectors | None, k: int, mode: str, where: Where, weight: float | None
    ) -> list[list[Hit]]:
        with self._open_files() as (state, files):
            choose_mode(mode, files.words is not None, self.name)
            weight = state.word_weight if weight is None else weight
            rows = unit_rows(vectors, state.dimension, questions, mode)
            terms = [query_terms(question, state.chunking.language, mode) for question in questions]
            allowed = None if not where else files.vectors.positions(self._store.matching_passages(where))
            results = rank(files, list(map(Query, rows, terms)), k, weight, allowed)
            numbers = [files.vectors.numbers[[position for position, _ in result]].tolist() for result in results]
            passages = self._store.passages(number for row in numbers for number in row)
        return [
            [Hit.of_passage(passages[n], score) for n, (_, score) in zip(row, result, strict=True)]
            for row, result in zip(numbers, results, strict=True)
        ]

    @property
    def has_words(self) -> bool:
        """Whether the index has words; one made by an earlier version has none before `upgrade`."""
        return self.state.word_version == VERSION

    @property
    def language(self) -> str:
        """Code of the language of the documents."""
        return self.state.chunking.language

    def upgrade(self, watch: Watch = no_progress) -> None:
        """Rebuild the word index of all passages: for an index without one, or whose parts disagree."""
        with open_writer(self.path, None, watch) as writer:
            writer.upgrade()

    def sample(self, most: int) -> PassageSample:
        """Return passages with their vectors: all of them, or `most` that are spread evenly over the index."""
        if most < 1:
            raise UserError(f"most: must be at least 1, not {most}")
        with self._open_files() as (state, files):
            alive = np.setdiff1d(np.arange(len(files.vectors)), files.dead, assume_unique=True)
            chosen = alive if len(alive) <= most else alive[np.arange(most) * len(alive) // most]
            numbers = files.vectors.numbers[chosen].tolist()
            passages = self._store.passages(numbers)
            vectors = np.array(files.vectors[chosen])
        return PassageSample([passages[number] for number in numbers], vectors, len(alive), state.generation)

    def _open_files(self) -> AbstractContextManager[tuple[IndexState, OpenFiles]]:
        """Open the newest state and its files; the database does not change meanwhile."""

        def open_files(state: IndexState) -> OpenFiles:
            self._check_model(state)
            self._files = self._files.for_state(state, self._store)
            return self._files

        return self._store.with_files(open_files)

    def document(self, id: str) -> list[Passage]:
        """Return the passages of a document, in order; none if there is no such document."""
        with self._store.transaction():
            return self._store.passages_of(id)

    def export(
        self,
        address: str,
        *,
        schema: str = SCHEMA,
        table: str = TABLE,
        replace: bool = False,
        watch: Watch = no_progress,
    ) -> "ExportSummary":
        """Write the index into a PostgreSQL database with pgvector; of an index that is there, only what has changed.

        `replace`: write all of it anew, also over an index of another model. `PostgresIndex` searches it.
        """
        from bertree.search.postgres.export import export_index

        return export_index(self.path, TableLocation(address, schema, table), fresh=replace, watch=watch)

    def __len__(self) -> int:
        """Number of passages."""
        state = self.state
        return state.vectors - state.dead

    def __iter__(self) -> Iterator[Passage]:
        """Yield all passages, in the order they were added. Changes made meanwhile may or may not be seen."""
        last = -1
        while True:
            with self._store.transaction():
                passages = self._store.passages_after(last)
            if not passages:
                return
            yield from passages.values()
            last = max(passages)

    def __repr__(self) -> str:
        try:
            rest = ", ".join(f"{name}={value}" for name, value in self._summary())
        except UserError:
            rest = "closed or damaged"
        return f"Index({str(self.path)!r}, {rest})"

    def _repr_html_(self) -> str:
        try:
            rows = self._summary()
        except UserError as error:
            rows = [("error", str(error))]
        return ResultTable(str(self.path), rows).html()

    def _summary(self) -> list[tuple[str, str]]:
        info = self.info
        return [
            ("documents", f"{info['documents']:,}"),
            ("passages", f"{info['passages']:,}"),
            ("model", info["model"]["path"] or info["model"]["digest"][:12]),
            ("kind", info["kind"]),
            ("size", f"{info['bytes']['all'] / 1e6:,.1f} MB"),
        ]

    @property
    def state(self) -> IndexState:
        """The newest state: the model the index belongs to, its settings and its files."""
        with self._store.transaction() as state:
            return state

    @property
    def generation(self) -> int:
        """Number of the newest state."""
        return self.state.generation

    @property
    def info(self) -> Json:
        """Description of the index: its contents, size, model and settings."""
        return describe_index(self.path, self._store)

    def verify(self) -> None:
        """Read every byte and report the first file whose checksum differs."""
        verify_files(self.path, self._store)

    @property
    def has_checksums(self) -> bool:
        """Whether its rows have checksums; those of an earlier version get them with the next change."""
        return self._store.has_checksums

    def close(self) -> None:
        """Close the files."""
        self._store.close()
        self._files = OpenFiles(folder=self.path)


def open_index(
    source: str | Path, model: TextEncoder | None = None, schema: str = SCHEMA, table: str = TABLE
) -> AnyIndex:
    """Open the index in a folder, or at a postgresql:// address."""
    if is_address(source):
        from bertree.search.postgres.index import PostgresIndex

        return PostgresIndex(str(source), model, schema=schema, table=table)
    return Index(source, model)
