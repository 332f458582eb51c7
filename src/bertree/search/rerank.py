"""Sort the best passages again with a second model.

It is more accurate than comparing two vectors and far slower, so it reads only the best few passages.

A cross-encoder, a model fine-tuned on pairs of texts, reads the query and a passage together. Any other model compares
their tokens (late interaction): each token of the query with the one of the passage that is most like it. The sum is

    (1 - FIRST) * mean of the largest cosines  +  FIRST * score of the search / best score of the search
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.inference.model import Model
from bertree.search.passages import Hit

# Common names of the positive class of pair tasks, most specific first.
POSITIVE_LABELS = ("relevant", "entailment", "duplicate", "equivalent", "paraphrase", "similar", "yes", "true", "1")
NO_BOUNDS = (-math.inf, math.inf)
CANDIDATES = 50  # passages that a re-ranker reads, unless set
FIRST = 0.15  # weight of the score of the search beside that of the tokens
MOST_KEPT = 2048  # passages whose tokens are kept for the next questions


class Reranker(Protocol):
    """Scores pairs: a model fine-tuned on a task of two texts."""

    def predict(self, inputs: list[tuple[str, str]], /) -> Sequence[Json]:
        """Return the prediction for each pair."""
        ...


def rerank_hits(
    model: Reranker, questions: Sequence[str], results: Sequence[Sequence[Hit]], *, candidates: int, label: str | None
) -> list[list[Hit]]:
    """Sort the first `candidates` hits of each query by the model's score, at most 1; the others follow unchanged."""
    if isinstance(model, Model) and compares_tokens(model):
        if label is not None:
            raise UserError(f"label '{label}': the re-ranker has no classes; it compares tokens")
        return _rerank_by_tokens(model, questions, results, candidates)
    check_cross_encoder(model)
    pairs = [(q, hit.text) for q, hits in zip(questions, results, strict=True) for hit in hits[:candidates]]
    predictions = model.predict(pairs) if pairs else []
    values = np.array([pair_score(prediction, label) for prediction in predictions])
    single = any("probabilities" not in prediction for prediction in predictions)
    scores = (relevance_of(values, find_bounds(model)) if single else values).tolist()
    left = iter(scores)
    return [sort_again(hits, list(islice(left, len(hits[:candidates])))) for hits in results]


def compares_tokens(model: Model) -> bool:
    """Whether a model re-ranks by comparing tokens: it has no head for pairs."""
    return model.trained and "sequence" not in model.classes


def sort_again(hits: Sequence[Hit], scores: Sequence[float]) -> list[Hit]:
    """Sort the first hits by new scores; the others follow."""
    first = [replace(hit, score=score) for hit, score in zip(hits, scores, strict=False)]
    return [*sorted(first, key=lambda hit: -hit.score), *hits[len(first) :]]


def _rerank_by_tokens(
    model: Model, questions: Sequence[str], results: Sequence[Sequence[Hit]], candidates: int
) -> list[list[Hit]]:
    kept: dict[str, Tensor] = {}
    ordered = []
    for question, hits in zip(questions, results, strict=True):
        texts = dict.fromkeys(hit.text for hit in hits[:candidates])
        if len(kept) + len(texts) > MOST_KEPT:
            kept = {}
        new = [text for text in texts if text not in kept]
        kept |= zip(new, map(unit_states, model.hidden(new)), strict=True)
        query_th = unit_states(model.hidden(question))[own_tokens(model, model.tokenize([question])[0].ids)]
        scores = token_scores(query_th, [kept[hit.text] for hit in hits[:candidates]], hits)
        ordered.append(sort_again(hits, scores))
    return ordered


def token_scores(query_th: Tensor, passages: Sequence[Tensor], hits: Sequence[Hit]) -> list[float]:
    """Return the new scores of the first hits; `query_th`: its own tokens, `passages`: the tokens of these hits."""
    best = max((hit.score for hit in hits), default=0.0)
    return [
        (1 - FIRST) * float((query_th @ tokens_th.T).amax(1).mean()) + (FIRST * hit.score / best if best > 0 else 0.0)
        for tokens_th, hit in zip(passages, hits, strict=False)
    ]


def unit_states(states_th: Tensor | NDArray[np.float32]) -> Tensor:
    """Return hidden states of length 1."""
    return torch.nn.functional.normalize(torch.as_tensor(states_th).float(), dim=-1)


def own_tokens(model: Model, ids: Sequence[int]) -> list[int]:
    """Return the places of the tokens of a text itself, not special ones; of all if there are no others."""
    tokenizer = model.required_tokenizer
    special = {tokenizer.id_of(kind) for kind in tokenizer.special}
    return [place for place, id in enumerate(ids) if id not in special] or list(range(len(ids)))


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
