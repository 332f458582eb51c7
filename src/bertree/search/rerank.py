"""Re-rank the best passages with a cross-encoder, a model fine-tuned on pairs of texts.

A cross-encoder reads the query and a passage together, which is more accurate than comparing two vectors and far
slower, so it reads only the best few passages.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.search.hit import Hit

# Common names of the positive class of pair tasks, most specific first.
POSITIVE = ("relevant", "entailment", "duplicate", "equivalent", "paraphrase", "similar", "yes", "true", "1")


class Reranker(Protocol):
    """Scores pairs: a model fine-tuned on a task of two texts."""

    def predict(self, inputs: list[tuple[str, str]], /) -> Sequence[Json]:
        """Return the prediction for each pair."""
        ...


def rerank_hits(
    model: Reranker, questions: Sequence[str], found: Sequence[Sequence[Hit]], candidates: int, label: str | None
) -> list[list[Hit]]:
    """Sort the first `candidates` hits of each query by the model's score; the other hits follow unchanged."""
    heads = getattr(model, "classes", None)
    if heads is not None and "sequence" not in heads:
        raise UserError("the re-ranker has no head for pairs; use a model fine-tuned on a task of two texts")
    pairs = [(q, hit.text) for q, hits in zip(questions, found, strict=True) for hit in hits[:candidates]]
    scores = iter([_score(line, label) for line in model.predict(pairs)] if pairs else [])
    ordered = []
    for hits in found:
        read = [replace(hit, score=next(scores)) for hit in hits[:candidates]]
        ordered.append([*sorted(read, key=lambda hit: -hit.score), *hits[candidates:]])
    return ordered


def _score(line: Json, label: str | None) -> float:
    """Return the score of a pair: the predicted value, or the probability of the positive class."""
    shares: dict[str, Any] | None = line.get("probabilities")
    if shares is None:
        if not isinstance(line.get("predicted"), float):
            raise UserError("the re-ranker gives no score for a pair; use a model fine-tuned on a task of two texts")
        return float(line["predicted"])
    return float(shares[positive_label(list(shares), label)])


def positive_label(labels: Sequence[str], label: str | None = None) -> str:
    """Return the positive class."""
    if label is not None:
        if label not in labels:
            raise UserError(f"label '{label}': the re-ranker has no such class; {suggest(label, labels)}")
        return label
    folded = {name.casefold(): name for name in labels}
    known = next((folded[name] for name in POSITIVE if name in folded), None)
    if known is None and len(labels) != 2:
        raise UserError(f"the re-ranker's positive class is unclear; give it with --label: {', '.join(labels)}")
    return known if known is not None else labels[1]
