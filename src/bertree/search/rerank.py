"""The first passages read again, each together with the question, by a model fine-tuned on pairs.

A cross-encoder sees both texts at once, which two vectors never do: slower by far, so it reads only the best few.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from bertree.errors import UserError, suggest
from bertree.files import Json
from bertree.search.hit import Hit

# What people call the class of pairs that belong together, the plainest first.
POSITIVE = ("relevant", "entailment", "duplicate", "equivalent", "paraphrase", "similar", "yes", "true", "1")


class Reranker(Protocol):
    """What scores pairs: a model fine-tuned on a task of two texts."""

    def predict(self, inputs: list[tuple[str, str]], /) -> Sequence[Json]:
        """What it says about each pair."""
        ...


def rerank(
    model: Reranker, questions: Sequence[str], found: Sequence[Sequence[Hit]], candidates: int, label: str | None
) -> list[list[Hit]]:
    """The hits of each question in the order of the model, those beyond the candidates behind them as they were."""
    heads = getattr(model, "classes", None)
    if heads is not None and "sequence" not in heads:
        raise UserError("the model to re-rank with has no head for pairs; fine-tune one on a task of two texts")
    pairs = [(q, hit.text) for q, hits in zip(questions, found, strict=True) for hit in hits[:candidates]]
    scores = iter([_score(line, label) for line in model.predict(pairs)] if pairs else [])
    ordered = []
    for hits in found:
        read = [replace(hit, score=next(scores)) for hit in hits[:candidates]]
        ordered.append([*sorted(read, key=lambda hit: -hit.score), *hits[candidates:]])
    return ordered


def _score(line: Json, label: str | None) -> float:
    """How well a pair belongs together: the model's figure, or its probability of the class that says so."""
    shares: dict[str, Any] | None = line.get("probabilities")
    if shares is None:
        if not isinstance(line.get("predicted"), float):
            raise UserError("the model to re-rank with gives no score for a pair; fine-tune one on a task of two texts")
        return float(line["predicted"])
    return float(shares[positive_label(list(shares), label)])


def positive_label(labels: Sequence[str], label: str | None = None) -> str:
    """The class that says yes."""
    if label is not None:
        if label not in labels:
            raise UserError(f"label '{label}': the model to re-rank with has no such class; {suggest(label, labels)}")
        return label
    folded = {name.casefold(): name for name in labels}
    known = next((folded[name] for name in POSITIVE if name in folded), None)
    if known is None and len(labels) != 2:
        raise UserError(f"which class means that a passage answers? say it with --label: {', '.join(labels)}")
    return known if known is not None else labels[1]
