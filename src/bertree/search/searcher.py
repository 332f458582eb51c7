"""Search by a question: what an index in a folder (index.py) and one in a database (postgres/index.py) share.

A subclass of `Searcher` finds passages by vectors and words; embedding questions, checks and re-ranking are here.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeAlias, TypedDict, Unpack, overload

import numpy as np

from bertree.config.names import resolve_model_path
from bertree.errors import UserError, WrongArgument
from bertree.errors.arguments import methods_check_arguments
from bertree.files.formats import Json
from bertree.inference.embedding import TextEncoder
from bertree.search.passage_vectors import embed_texts, prompts_of, unit_vectors
from bertree.search.passages import Hit, Passage, PassageSample, Where
from bertree.search.ranking import choose_mode
from bertree.search.rerank import CANDIDATES, Reranker, rerank_hits
from bertree.search.vector_files import Vectors
from bertree.search.words.terms import find_highlights

if TYPE_CHECKING:
    from bertree.search.index_state import IndexState
    from bertree.search.postgres.tables import ExportedState

AnyState: TypeAlias = "IndexState | ExportedState"


class SearchOptions(TypedDict, total=False):
    """The keywords of `Searcher.search`."""

    mode: str | None
    where: Where | None
    rerank: Reranker | None
    candidates: int
    label: str | None


@methods_check_arguments
class Searcher(ABC):
    """An index that can be searched. `name` is what messages call it."""

    def __init__(self, name: str, model: TextEncoder | None) -> None:
        self.name, self.model = name, model

    @property
    @abstractmethod
    def state(self) -> AnyState:
        """The newest committed state of the index."""

    @property
    @abstractmethod
    def info(self) -> Json:
        """Description of the index, with its `documents` and the keys of their `metadata`."""

    @property
    def model_path(self) -> str:
        """The name or path of the model the index was built with; an error if there is no such model."""
        recorded = self.state.model
        if not recorded:
            raise UserError(f"{self.name}: does not say where its model is; give it with `model`")
        if not resolve_model_path(recorded).exists():
            raise UserError(f"{self.name}: its model was at {recorded}, which is gone; give its new path with `model`")
        return recorded

    def nearest(
        self, vectors: Vectors, k: int = 5, *, where: Where | None = None, names: Sequence[str] = ()
    ) -> list[list[Hit]]:
        """Return the k passages nearest to each vector."""
        if k < 1:
            raise WrongArgument(f"k: must be at least 1, not {k}")
        if np.ndim(vectors) == 0:
            raise WrongArgument("vectors: must be rows of numbers, one row for each query")
        return self.find(names or ["a query"] * len(vectors), vectors, k, mode="vectors", where=where)

    @property
    @abstractmethod
    def has_words(self) -> bool:
        """Whether passages can be found by their words."""

    @property
    @abstractmethod
    def language(self) -> str:
        """Code of the language of the documents."""

    def find(
        self,
        questions: Sequence[str],
        vectors: Vectors | None,
        k: int,
        *,
        mode: str,
        where: Where | None = None,
        weight: float | None = None,
    ) -> list[list[Hit]]:
        """Return the k best passages of each question; `vectors`: of the questions, if the mode needs them.

        `weight`: of words, if not that of the index.
        """
        return self._find(questions, vectors, k, mode, where or {}, weight) if len(questions) else []

    @abstractmethod
    def _find(
        self, questions: Sequence[str], vectors: Vectors | None, k: int, mode: str, where: Where, weight: float | None
    ) -> list[list[Hit]]:
        """Return the hits of one question or more, as `find` does."""

    @abstractmethod
    def sample(self, most: int) -> PassageSample:
        """Return passages with their vectors: all of them, or `most` that are spread evenly over the index."""

    @property
    @abstractmethod
    def generation(self) -> int:
        """A number that changes whenever the index does."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of passages."""

    @abstractmethod
    def document(self, id: str) -> list[Passage]:
        """Return the passages of a document, in order; none if there is no such document."""

    @overload
    def search(self, question: str, k: int = 5, **options: Unpack[SearchOptions]) -> list[Hit]: ...  # type: ignore[overload-overlap]

    @overload
    def search(self, question: Sequence[str], k: int = 5, **options: Unpack[SearchOptions]) -> list[list[Hit]]: ...

    def search(
        self,
        question: str | Sequence[str],
        k: int = 5,
        *,
        mode: str | None = None,
        where: Where | None = None,
        rerank: Reranker | None = None,
        candidates: int = CANDIDATES,
        label: str | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """Return the k best passages for a question, or one such list per question.

        `mode`: vectors (by meaning), words (BM25; needs no model) or hybrid (both, the default if the index has words).
        `where`: only documents with these metadata values (of a list, any; `id` and `source` work too). `rerank`: a
        model that reads the first `candidates` passages and sorts them again: one fine-tuned on pairs of texts reads
        each with the question, any other compares their tokens. `label`: its positive class, if it has classes.
        """
        questions = [question] if isinstance(question, str) else list(question)
        mode = choose_mode(mode, self.has_words, self.name)
        for number, text in enumerate(questions, 1):
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"question{'' if isinstance(question, str) else f' {number}'}: is empty")
        for name, number in (("k", k), ("candidates", candidates)):
            if not isinstance(number, int) or number < 1:
                raise UserError(f"{name}: must be a whole number of at least 1, not {number!r}")
        if not questions:
            return []
        results = self.find_unmarked(questions, max(k, candidates) if rerank else k, mode=mode, where=where)
        if rerank is not None:
            results = rerank_hits(rerank, questions, results, candidates=candidates, label=label)
        best = [self.mark(text, hits[:k]) for text, hits in zip(questions, results, strict=True)]
        return best[0] if isinstance(question, str) else best

    def find_unmarked(
        self, questions: Sequence[str], k: int, *, mode: str | None = None, where: Where | None = None
    ) -> list[list[Hit]]:
        """Return the k best passages of each question, without the words that they share with it."""
        mode = choose_mode(mode, self.has_words, self.name)
        vectors = None if mode == "words" else embed_texts(self._require_model(), questions, self.state.prompts[1])
        return self.find(questions, vectors, k, mode=mode, where=where)

    def mark(self, question: str, hits: Sequence[Hit]) -> list[Hit]:
        """Return hits with the words that they share with a question."""
        return [replace(hit, highlights=find_highlights(question, hit.text, self.language)) for hit in hits]

    @abstractmethod
    def close(self) -> None:
        """Close the index's files or connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_model(self, state: AnyState) -> None:
        """Raise an error if the vectors of the index were made by another model."""
        model = self.model
        if model is None:
            return
        if model.digest != state.digest or model.dimension != state.dimension:
            expected = f"{state.model or 'another model'} (weights {state.digest[:12]}, {state.dimension} numbers)"
            actual = f"weights {model.digest[:12]}, {model.dimension} numbers"
            raise UserError(
                f"{self.name}: was made with {expected}, not with this model ({actual}); use that, or build it again"
            )
        # Only a bertree model lists its prompts; those of other encoders are not checked.
        unknown = set(state.prompts) - {"", *prompts_of(model)} if hasattr(model, "vector") else set()
        if unknown:
            raise UserError(f"{self.name}: uses the prompt {min(unknown)!r}, which this model lacks; build it again")

    def _require_model(self) -> TextEncoder:
        if self.model is None:
            load = f"bertree.load({self.state.model!r})" if self.state.model else "bertree.load(PATH)"
            words = "; a search with `mode='words'` needs none" if self.has_words else ""
            raise UserError(f"{self.name}: was opened without its model; open it with `model={load}`{words}")
        return self.model


def unit_rows(vectors: Vectors | None, dimension: int, questions: Sequence[str], mode: str) -> Sequence[Vectors | None]:
    """Return the unit vector of each question; None for each if only words are searched."""
    if mode == "words":
        return [None] * len(questions)
    assert vectors is not None
    return list(unit_vectors(vectors, dimension, questions))
