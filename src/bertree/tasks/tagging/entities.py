"""Entities in tag sequences, and their precision, recall and F1.

Entities are read as in the CoNLL evaluation, which accepts every sequence: predicted tags need not be well formed,
and a stray I- or a change of type begins a new entity. Complete entities are counted, as papers report: an entity with
one wrong word is both a false negative and a false positive.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertree.tasks.metrics import Statistic, ratio_statistic

Counts = NDArray[np.float64]
SHAPE = re.compile(r"O|[BIESLU](?:-.+)?", re.DOTALL)
PLAIN = "plain"
_AS_IOBES = {"L": "E", "U": "S"}


class Entity(NamedTuple):
    """The words from `start` to `end`, without `end`."""

    kind: str
    start: int
    end: int


class EntityScores(NamedTuple):
    """Precision, recall and F1."""

    precision: float
    recall: float
    f1: float


@lru_cache(4096)
def split_tag(tag: str) -> tuple[str, str]:
    """Return the position in an entity (B, I ...) and its type; a tag without a type ("B") has the type "_"."""
    return tag[:1], tag[1:].split("-", 1)[-1] or "_"


def join_tag(position: str, kind: str) -> str:
    """Return the tag with this position and type."""
    return position if kind == "_" else f"{position}-{kind}"


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a sequence of IOB1, IOB2 or IOBES tags, well formed or not."""
    spans: list[Entity] = []
    start, before, kind_before = -1, "O", "_"
    for at, (position, kind) in enumerate((*map(split_tag, tags), ("O", "_"))):
        begins = position != "O" and (position in "BS" or before in "OES" or kind != kind_before)
        if start >= 0 and (begins or position == "O" or before in "ES"):
            spans.append(Entity(kind_before, start, at))
            start = -1
        if begins:
            start = at
        before, kind_before = position, kind
    return spans


def to_iob2(tags: Sequence[str], scheme: str = "iob2") -> list[str]:
    """Convert tags to IOB2. IOB1, IOBES and broken IOB2 are read by the same rule; BILOU is renamed first."""
    if scheme == "bilou":
        tags = [_AS_IOBES.get(tag[:1], tag[:1]) + tag[1:] for tag in tags]
    converted = ["O"] * len(tags)
    for kind, start, end in entities(tags):
        converted[start:end] = [join_tag("B", kind), *[join_tag("I", kind)] * (end - start - 1)]
    return converted


def scheme_of(sequences: Iterable[Sequence[str]]) -> str:
    """Return iob1, iob2, iobes, bilou, or plain if the tags are not of entities (parts of speech).

    Sequences that are both IOB1 and IOB2 (no entity at all) are IOB2. If a few tags break every scheme, the one with
    fewer broken tags is chosen."""
    positions: set[str] = set()
    shaped: set[str] = set()
    inside_first = needless = 0  # entities begun by I-, and by B- where no entity of the type ended just before
    for tags in sequences:
        before, kind_before = "O", "_"
        for tag in tags:
            if tag not in shaped:
                if not SHAPE.fullmatch(tag):
                    return PLAIN
                shaped.add(tag)
            position, kind = split_tag(tag)
            positions.add(position)
            apart = before == "O" or kind != kind_before
            inside_first += position == "I" and apart
            needless += position == "B" and apart
            before, kind_before = position, kind
    if positions & set("ES"):
        return PLAIN if positions & set("LU") else "iobes"
    if positions & set("LU"):
        return "bilou"
    return "iob1" if inside_first > needless else "iob2"


def score_entities(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> tuple[EntityScores, dict[str, EntityScores]]:
    """Return precision, recall and F1 over all entities and for each type; 0 if there is nothing to count."""
    true: Counter[str] = Counter()
    predicted_counts: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        assert len(gold_tags) == len(predicted_tags), "a tag for each word"
        expected, actual = set(entities(gold_tags)), set(entities(predicted_tags))
        true.update(entity.kind for entity in expected)
        predicted_counts.update(entity.kind for entity in actual)
        right.update(entity.kind for entity in expected & actual)
    total = _entity_scores(right.total(), predicted_counts.total(), true.total())
    kinds = sorted(true.keys() | predicted_counts.keys())
    return total, {kind: _entity_scores(right[kind], predicted_counts[kind], true[kind]) for kind in kinds}


def entity_statistics(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> dict[str, Statistic]:
    """Return what `score_entities` scores, given gold and predicted tags of each sentence."""
    pairs_of_sets = [(set(entities(gold)), set(entities(predicted))) for gold, predicted in pairs]

    def count(kind: str | None) -> tuple[Counts, Counts, Counts]:
        """Count right, predicted and true entities of each sentence; None: of every type."""
        rows = [[sum(kind in (None, e.kind) for e in each) for each in (t & p, p, t)] for t, p in pairs_of_sets]
        right, predicted, true = np.array(rows, np.float64).T
        return right, predicted, true

    right, predicted, true = count(None)
    statistics = {
        "precision": ratio_statistic(right, predicted),
        "recall": ratio_statistic(right, true),
        "f1": ratio_statistic(2 * right, predicted + true),
    }
    for kind in sorted({entity.kind for each in pairs_of_sets for side in each for entity in side}):
        right, predicted, true = count(kind)
        statistics[f"f1-{kind}"] = ratio_statistic(2 * right, predicted + true)
    return statistics


def _entity_scores(right: int, predicted: int, true: int) -> EntityScores:
    precision, recall = right / predicted if predicted else 0.0, right / true if true else 0.0
    return EntityScores(precision, recall, 2 * precision * recall / (precision + recall) if right else 0.0)
