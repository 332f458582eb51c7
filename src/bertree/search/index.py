"""An index: documents as passages with vectors, in a folder, to be asked.

    index = Index.build(model, ["books/"], "my-index")
    index.search("Who is the captain?", k=5, where={"book": "Moby Dick"})

Every search is answered from one state of the folder, the newest there is: other processes may add to it meanwhile.
"""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, overload

from bertree.errors import UserError
from bertree.files import Json
from bertree.inference.embedding import Encoder
from bertree.search import chunks
from bertree.search import rerank as index_rerank
from bertree.search.database import DATABASE
from bertree.search.documents import DocumentInput, ReadOptions, ReadSummary, read_documents
from bertree.search.faiss_index import Watch, check_kind, no_progress
from bertree.search.files import OpenFiles, describe_index, library_versions, verify_files
from bertree.search.hit import Hit
from bertree.search.nearest import find_nearest
from bertree.search.passage_store import PassageStore, Where
from bertree.search.rerank import Reranker
from bertree.search.state import IndexState
from bertree.search.vector_files import Vectors
from bertree.search.writer import AddSummary, check_resumable, create_index, embed_texts, open_writer, unit_vectors

ATTEMPTS = 20  # to open files that a writer may just have replaced
CANDIDATES = 50  # passages a second model reads


class Index:
    """An index on disk with the model that fills and asks it."""

    def __init__(self, path: str | Path, model: Encoder | None = None) -> None:
        self.path, self.model = Path(path), model
        self.found = ReadSummary()  # what the last add or build left out
        self.added = AddSummary()  # what it did
        self._store = PassageStore(self.path)
        self._files = OpenFiles(self.path)
        try:
            with self._store.transaction() as state:
                self._check_model(state)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | Path, model: Encoder | None = None) -> "Index":
        """An index that is there. Without its model it can be looked at and removed from, not asked or added to."""
        return cls(path, model)

    @classmethod
    def build(
        cls,
        model: Encoder,
        docs: DocumentInput | Iterable[DocumentInput],
        path: str | Path,
        *,
        text: str = "text",
        id: str | None = None,
        blocks: bool = False,
        kind: str = "auto",
        chunk: int | None = None,
        overlap: int | None = None,
        language: str = "en",
        prompts: tuple[str, str] | None = None,
        name: str = "",
        watch: Watch = no_progress,
    ) -> "Index":
        """A new index of files and folders (strings, paths), records (mappings) or `Document`s.

        One that was interrupted goes on. `text`, `id`: columns of tables and records; the others are metadata.
        `blocks`: an empty line ends a document of a text file. `kind`: auto, flat, hnsw, ivfpq. `chunk`, `overlap`:
        tokens of a passage, and of it repeated from the one before. `prompts`: names of the model's
        prompts for passages and for questions, where not document and query. `name`: where the model is found again.
        """
        folder, found = Path(path), ReadSummary()
        check_kind(kind)
        documents = read_documents(docs, ReadOptions(text, id, blocks), found)
        prompts = prompts or (_prompt(model, "document", "passage"), _prompt(model, "query", "question"))
        how = chunks.choose_chunking(chunk, overlap, _room(model, prompts[0]), language)
        state = IndexState(name, model.digest, model.dimension, how, prompts, asked=kind, versions=library_versions())
        new = not (folder / DATABASE).is_file()
        if new:
            create_index(folder, state)
        else:
            check_resumable(folder, state)
        with open_writer(folder, model, watch) as writer:
            try:
                added = writer.add(documents, found, getattr(model, "tokenizer", None))
                writer.settle(complete=True, asked=kind)
            except UserError:
                if new and not writer.state.parts:  # a mistake leaves nothing behind that would be in the way
                    shutil.rmtree(folder, ignore_errors=True)
                raise
        index = cls(folder, model)
        index.found, index.added = found, added
        return index

    def add(
        self,
        docs: DocumentInput | Iterable[DocumentInput],
        *,
        text: str = "text",
        id: str | None = None,
        blocks: bool = False,
        watch: Watch = no_progress,
    ) -> AddSummary:
        """Add documents; one whose id is there takes its place, and one that is there unchanged is passed over."""
        model = self._require_model()
        self.found = ReadSummary()
        documents = read_documents(docs, ReadOptions(text, id, blocks), self.found)
        with open_writer(self.path, model, watch) as writer:
            self._check_model(writer.state)
            self.added = writer.add(documents, self.found, getattr(model, "tokenizer", None))
            writer.settle()
        return self.added

    def remove(self, ids: str | Iterable[str] = (), where: Where | None = None, watch: Watch = no_progress) -> int:
        """Remove documents by their ids, or all that fit a filter; how many there were."""
        named = [ids] if isinstance(ids, str) else list(ids)
        with open_writer(self.path, None, watch) as writer:
            gone, _ = writer.remove(named, where)
            writer.settle()
        return gone

    def settle(self, kind: str, watch: Watch = no_progress) -> None:
        """Make it one of another kind: flat, hnsw, ivfpq, or auto."""
        with open_writer(self.path, None, watch) as writer:
            writer.settle(asked=kind)

    @overload
    def search(  # type: ignore[overload-overlap]
        self,
        question: str,
        k: int = 5,
        *,
        where: Where | None = None,
        rerank: Reranker | None = None,
        candidates: int = CANDIDATES,
        label: str | None = None,
    ) -> list[Hit]: ...

    @overload
    def search(
        self,
        question: Sequence[str],
        k: int = 5,
        *,
        where: Where | None = None,
        rerank: Reranker | None = None,
        candidates: int = CANDIDATES,
        label: str | None = None,
    ) -> list[list[Hit]]: ...

    def search(
        self,
        question: str | Sequence[str],
        k: int = 5,
        *,
        where: Where | None = None,
        rerank: Reranker | None = None,
        candidates: int = CANDIDATES,
        label: str | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """The k passages nearest to a question, or a list of them for each of several.

        `where`: only documents with these values in their metadata (a list of values: any of them; `id` and `source`
        count too). `rerank`: a model fine-tuned on pairs that reads the question with each of the first `candidates`
        passages and orders them anew; `label`: the class that means yes, if it has classes.
        """
        questions = [question] if isinstance(question, str) else list(question)
        model = self._require_model()
        for number, text in enumerate(questions, 1):
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"question {number}: there is nothing in it to look for")
        for name, number in (("k", k), ("candidates", candidates)):
            if not isinstance(number, int) or number < 1:
                raise UserError(f"{name}: must be a whole number of at least 1, not {number!r}")
        if not questions:
            return []
        vectors = embed_texts(model, questions, self.state.prompts[1])
        found = self.nearest(vectors, max(k, candidates) if rerank else k, where=where, names=questions)
        if rerank is not None:
            found = index_rerank.rerank(rerank, questions, found, candidates, label)
        best = [hits[:k] for hits in found]
        return best[0] if isinstance(question, str) else best

    def nearest(
        self, vectors: Vectors, k: int = 5, *, where: Where | None = None, names: Sequence[str] = ()
    ) -> list[list[Hit]]:
        """The k passages nearest to each vector."""
        if not len(vectors):
            return []
        for _ in range(ATTEMPTS):
            with self._store.transaction() as state:
                self._check_model(state)
                try:
                    files = self._files = self._files.for_state(state, self._store)
                except FileNotFoundError as error:
                    gone = error.filename
                    continue  # a writer has replaced it since the state was read: there is a newer one
                queries = unit_vectors(vectors, state.dimension, names or ["a query"] * len(vectors))
                allowed = None if not where else files.vectors.positions(self._store.matching_passages(where))
                found = find_nearest(files.vectors, files.graph, queries, k, files.dead, allowed)
                numbers = [files.vectors.numbers[positions].tolist() for positions, _ in found]
                passages = self._store.passages(number for row in numbers for number in row)
            return [
                [_hit(passages[n], score) for n, score in zip(row, scores.tolist(), strict=True)]
                for row, (_, scores) in zip(numbers, found, strict=True)
            ]
        raise UserError(f"{gone}: is missing; build the index again, or restore this file")

    def __len__(self) -> int:
        """Passages."""
        state = self.state
        return state.vectors - state.dead

    @property
    def state(self) -> IndexState:
        """Its newest state: the model it is tied to, its settings and its files."""
        with self._store.transaction() as state:
            return state

    @property
    def info(self) -> Json:
        """What it is, how large, of what and why so."""
        return describe_index(self.path, self._store)

    def verify(self) -> None:
        """Read every byte; one line on the first file that is not what was written."""
        verify_files(self.path, self._store)

    def close(self) -> None:
        """Let go of the files."""
        self._store.close()
        self._files = OpenFiles(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_model(self, state: IndexState) -> None:
        """A vector of another model is a vector of another space."""
        if self.model is None:
            return
        if self.model.digest != state.digest or self.model.dimension != state.dimension:
            was = f"{state.model or 'another model'} (weights {state.digest[:12]}, {state.dimension} numbers)"
            has = f"weights {self.model.digest[:12]}, {self.model.dimension} numbers"
            raise UserError(
                f"{self.path}: was made with {was}, and this model is not it ({has}); use that, or build anew"
            )

    def _require_model(self) -> Encoder:
        if self.model is None:
            raise UserError(f"{self.path}: was opened without its model; Index.open(path, model) can ask and add")
        return self.model


def _hit(passage: tuple[Any, ...], score: float) -> Hit:
    text, document, source, start, end, known = passage
    return Hit(score, text, document, source, start, end, known, score)


def _prompt(model: Encoder, *names: str) -> str:
    """The first of these kinds of text the model has a prompt for."""
    known = dict(getattr(getattr(model, "vector", None), "prompts", ()))
    return next((name for name in names if name in known), "")


def _room(model: Encoder, prompt: str) -> int | None:
    """Tokens of text the model reads at once, where it says so."""
    longest, tokenizer, vector = (getattr(model, name, None) for name in ("max_length", "tokenizer", "vector"))
    if longest is None or tokenizer is None:
        return None
    before = vector.before(prompt or None) if vector is not None else ""
    return int(longest) - len(tokenizer.backend.encode(before).ids)  # with its special tokens
