"""Sort the best passages again with a re-ranker (cross-encoder): a model fine-tuned on pairs of texts.

It reads the query and a passage together, which is more accurate than comparing two vectors and far slower, so it reads
only the best few passages.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.search.passages import Hit

# Common names of the positive class of pair tasks, most specific first.
POSITIVE_LABELS = ("relevant", "entailment", "duplicate", "equivalent", "paraphrase", "similar", "yes", "true", "1")
NO_BOUNDS = (-math.inf, math.inf)
CANDIDATES = 50  # passages that a re-ranker reads, unless set


class Reranker(Protocol):
    """Scores pairs: a model fine-tuned on a task of two texts."""

    def predict(self, inputs: list[tuple[str, str]], /) -> Sequence[Json]:
        """Return the prediction for each pair."""
        ...


def rerank_hits(
    model: Reranker, questions: Sequence[str], results: Sequence[Sequence[Hit]], *, candidates: int, label: str | None
) -> list[list[Hit]]:
    """Sort the first `candidates` hits of each query by the model's score, from 0 to 1; the others follow unchanged."""
    check_cross_encoder(model)
    pairs = [(q, hit.text) for q, hits in zip(questions, results, strict=True) for hit in hits[:candidates]]
    predictions = model.predict(pairs) if pairs else []
    values = np.array([pair_score(prediction, label) for prediction in predictions])
    single = any("probabilities" not in prediction for prediction in predictions)
    scores = iter((relevance_of(values, find_bounds(model)) if single else values).tolist())
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


def find_bounds(model: Reranker) -> tuple[float, float]:
    """Return the bounds of the scores that a model was fine-tuned on; infinite if they are not known."""
    find_task = getattr(model, "find_task", None)
    return getattr(find_task(), "bounds", NO_BOUNDS) if find_task is not None else NO_BOUNDS


def relevance_of(values: NDArray[np.float64], bounds: tuple[float, float]) -> NDArray[np.float64]:
    """Return outputs of a model with a single one on the scale of all re-rankers, 0 to 1: their place within the
    bounds of the task; the sigmoid where there are none."""
    low, high = bounds
    if math.isfinite(low) and math.isfinite(high):
        return np.clip((values - low) / (high - low), 0, 1)
    return 1 / (1 + np.exp(-values))


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
