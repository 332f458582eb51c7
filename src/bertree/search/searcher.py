"""Search by a question: what an index in a folder (index.py) and one in a database (postgres/index.py) share.

A subclass of `Searcher` finds the nearest vectors; embedding questions, checks and re-ranking are here. A re-ranker
(cross-encoder) is a model fine-tuned on pairs of texts. It reads the query and a passage together, which is more
accurate than comparing two vectors and far slower, so it reads only the best few passages.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, Self, TypedDict, Unpack, overload

from bertree.config.model_names import resolve_model_path
from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.inference.embedding import TextEncoder
from bertree.search.passage_store import Where
from bertree.search.passage_vectors import embed_texts
from bertree.search.passages import Hit, Passage, PassageSample
from bertree.search.vector_files import Vectors

# Common names of the positive class of pair tasks, most specific first.
POSITIVE_LABELS = ("relevant", "entailment", "duplicate", "equivalent", "paraphrase", "similar", "yes", "true", "1")
CANDIDATES = 50  # passages that a re-ranker reads, unless set


class Reranker(Protocol):
    """Scores pairs: a model fine-tuned on a task of two texts."""

    def predict(self, inputs: list[tuple[str, str]], /) -> Sequence[Json]:
        """Return the prediction for each pair."""
        ...


def rerank_hits(
    model: Reranker, questions: Sequence[str], results: Sequence[Sequence[Hit]], *, candidates: int, label: str | None
) -> list[list[Hit]]:
    """Sort the first `candidates` hits of each query by the model's score; the other hits follow unchanged."""
    check_cross_encoder(model)
    pairs = [(q, hit.text) for q, hits in zip(questions, results, strict=True) for hit in hits[:candidates]]
    scores = iter([pair_score(prediction, label) for prediction in model.predict(pairs)] if pairs else [])
    ordered = []
    for hits in results:
        reranked = [replace(hit, score=next(scores)) for hit in hits[:candidates]]
        ordered.append([*sorted(reranked, key=lambda hit: -hit.score), *hits[candidates:]])
    return ordered


def check_cross_encoder(model: Reranker) -> None:
    """Refuse a model without a head for pairs."""
    heads = getattr(model, "classes", None)
    if heads is not None and "sequence" not in heads:
        raise UserError("the cross-encoder has no head for pairs; use a model fine-tuned on a task of two texts")


def pair_score(prediction: Json, label: str | None) -> float:
    """Return the score of a pair: the predicted value, or the probability of the positive class."""
    probabilities: dict[str, Any] | None = prediction.get("probabilities")
    if probabilities is None:
        if not isinstance(prediction.get("predicted"), float):
            raise UserError(
                "the cross-encoder gives no score for a pair; use a model fine-tuned on a task of two texts"
            )
        return float(prediction["predicted"])
    return float(probabilities[positive_label(list(probabilities), label)])


def positive_label(labels: Sequence[str], label: str | None = None) -> str:
    """Return the positive class: `label`, else the one with a common name, else the second of two."""
    if label is not None:
        if label not in labels:
            raise UserError(f"label '{label}': the cross-encoder has no such class; {suggest(label, labels)}")
        return label
    folded = {name.casefold(): name for name in labels}
    positive = next((folded[name] for name in POSITIVE_LABELS if name in folded), None)
    if positive is None and len(labels) != 2:
        raise UserError(f"the cross-encoder's positive class is unclear; give it with `label`: {', '.join(labels)}")
    return positive if positive is not None else labels[1]


class SearchOptions(TypedDict, total=False):
    """The keywords of `Searcher.search`."""

    where: Where | None
    rerank: Reranker | None
    candidates: int
    label: str | None


class VectorOrigin(Protocol):
    """What an index records of the model that made its vectors."""

    @property
    def model(self) -> str:
        """Path of the model."""

    @property
    def digest(self) -> str:
        """Hash of its weights and settings."""

    @property
    def dimension(self) -> int:
        """Numbers of a vector."""

    @property
    def prompts(self) -> tuple[str, str]:
        """Names of the prompts for passages and queries."""


class Searcher(ABC):
    """An index that can be searched. `name` is what messages call it."""

    def __init__(self, name: str, model: TextEncoder | None) -> None:
        self.name, self.model = name, model

    @property
    @abstractmethod
    def state(self) -> VectorOrigin:
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

    @abstractmethod
    def nearest(
        self, vectors: Vectors, k: int = 5, *, where: Where | None = None, names: Sequence[str] = ()
    ) -> list[list[Hit]]:
        """Return the k passages nearest to each vector."""

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
        where: Where | None = None,
        rerank: Reranker | None = None,
        candidates: int = CANDIDATES,
        label: str | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """Return the k passages nearest to a question, or one such list per question.

        `where`: only documents with these metadata values (of a list, any; `id` and `source` work too). `rerank`: a
        model fine-tuned on pairs of texts that reads the question with each of the first `candidates` passages and
        sorts them again; `label`: its positive class, if it has classes.
        """
        questions = [question] if isinstance(question, str) else list(question)
        model = self._require_model()
        for number, text in enumerate(questions, 1):
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"question {number}: is empty")
        for name, number in (("k", k), ("candidates", candidates)):
            if not isinstance(number, int) or number < 1:
                raise UserError(f"{name}: must be a whole number of at least 1, not {number!r}")
        if not questions:
            return []
        vectors = embed_texts(model, questions, self.state.prompts[1])
        results = self.nearest(vectors, max(k, candidates) if rerank else k, where=where, names=questions)
        if rerank is not None:
            results = rerank_hits(rerank, questions, results, candidates=candidates, label=label)
        best = [hits[:k] for hits in results]
        return best[0] if isinstance(question, str) else best

    @abstractmethod
    def close(self) -> None:
        """Close the index's files or connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_model(self, origin: "VectorOrigin") -> None:
        """Raise an error if the vectors of the index were made by another model."""
        if self.model is not None:
            check_model(self.model, origin, self.name)

    def _require_model(self) -> TextEncoder:
        if self.model is None:
            raise UserError(f"{self.name}: was opened without its model; open it with the model to search or add")
        return self.model


def check_model(model: TextEncoder, origin: VectorOrigin, name: str) -> None:
    """Raise an error if the vectors of an index were made by another model."""
    if model.digest != origin.digest or model.dimension != origin.dimension:
        expected = f"{origin.model or 'another model'} (weights {origin.digest[:12]}, {origin.dimension} numbers)"
        actual = f"weights {model.digest[:12]}, {model.dimension} numbers"
        raise UserError(
            f"{name}: was made with {expected}, not with this model ({actual}); use that, or build it again"
        )
    # Only a bertree model lists its prompts; those of other encoders are not checked.
    unknown = set(origin.prompts) - {"", *prompts_of(model)} if hasattr(model, "vector") else set()
    if unknown:
        raise UserError(f"{name}: uses the prompt {min(unknown)!r}, which this model lacks; build it again")


def prompts_of(model: TextEncoder) -> dict[str, str]:
    """Return the prompts of a model by their names."""
    return dict(getattr(getattr(model, "vector", None), "prompts", ()))
