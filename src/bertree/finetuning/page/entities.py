"""The sections of a page about entities: scores of each type, confusions, confident mistakes.

An entity is right if its words and its type are. A wrong one is counted by what overlaps it: other words of the same
type, another type, or nothing.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from bertree.files.formats import Json
from bertree.report.formats import percent
from bertree.report.tables import (
    BarRow,
    BarTable,
    Case,
    Piece,
    Section,
    around,
    as_floats,
    clip,
    confidence,
    confident_cases,
    relative_bars,
)
from bertree.tasks.tagging.entities import Entity, entities

TYPES, PAIRS = 40, 15  # at most shown
NOTHING = "nothing"


@dataclass
class _EntityCounts:
    """Counts of entities by type over all sentences, and the place of every predicted entity."""

    gold: Counter[str] = field(default_factory=Counter)
    predicted: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    confused: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], str] = field(default_factory=dict)
    places: list[tuple[int, int]] = field(default_factory=list)  # line, number in its `entities`
    hits: list[bool] = field(default_factory=list)


def entities_sections(lines: Sequence[Json]) -> list[Section]:
    """Return the sections of lines whose tags are those of entities."""
    counts = _count(lines)
    if not counts.gold and not counts.predicted:
        return [Section("", blocks=["There is no entity in gold or predicted tags."])]
    scores = as_floats(lines[number]["entities"][at].get("score") for number, at in counts.places)
    right = np.array(counts.hits, dtype=np.float64)

    def show(number: int) -> Case:
        place, at = counts.places[number]
        return _case(lines[place], at, counts.hits[number])

    return [
        Section("Scores by type", [_by_type(counts), _confusions(counts)]),
        *confidence(scores, right),
        *confident_cases(scores, right, show),
    ]


def _count(lines: Sequence[Json]) -> _EntityCounts:
    gold: list[Entity] = []
    predicted: list[Entity] = []
    counts = _EntityCounts()
    for number, one in enumerate(lines):
        here = _entities(one["gold"])
        there = here if one["gold"] == one["predicted"] else _entities(one["predicted"])
        assert len(there) == len(one["entities"]), "a line lists the entities of its tags"
        both = set(here).intersection(there)
        gold += here
        predicted += there
        counts.places += [(number, at) for at in range(len(there))]
        counts.hits += [entity in both for entity in there]
        if len(both) < max(len(here), len(there)):
            for pair, entity in _mistakes(here, there, both):
                counts.confused[pair] += 1
                counts.examples.setdefault(pair, " ".join(one["words"][entity.start : entity.end]))
    counts.gold, counts.predicted = (Counter(entity.kind for entity in some) for some in (gold, predicted))
    counts.right = Counter(entity.kind for entity, hit in zip(predicted, counts.hits, strict=True) if hit)
    return counts


def _entities(tags: Sequence[str]) -> list[Entity]:
    # Most sentences of most files have none.
    return entities(tags) if tags.count("O") < len(tags) else []


def _mistakes(here: list[Entity], there: list[Entity], both: set[Entity]) -> Iterator[tuple[tuple[str, str], Entity]]:
    """Yield what gold entities were taken for, and what was predicted where there are none."""
    for entity in here:
        if entity in both:
            continue
        other = next((one for one in there if _overlap(one, entity)), None)
        if other is None:
            yield (entity.kind, NOTHING), entity
        else:
            moved = "" if other[1:] == entity[1:] else ", other words"
            yield (entity.kind, other.kind + moved), entity
    for entity in there:
        if entity not in both and not any(_overlap(one, entity) for one in here):
            yield (NOTHING, entity.kind), entity


def _overlap(one: Entity, other: Entity) -> bool:
    return one.start < other.end and other.start < one.end


def _by_type(counts: _EntityCounts) -> BarTable:
    rows = []
    for kind, _ in (counts.gold | counts.predicted).most_common(TYPES):
        right, predicted, gold = counts.right[kind], counts.predicted[kind], counts.gold[kind]
        shares = [
            right / predicted if predicted else 0.0,
            right / gold if gold else 0.0,
            2 * right / (predicted + gold),
        ]
        rows.append(BarRow(kind, shares, [*(percent(share, 1) for share in shares), f"{gold:,}"]))
    names = ("precision", "recall", "F1")
    return BarTable("Precision, recall and F1 of each type", rows, names=names, head=(*names, "gold"))


def _confusions(counts: _EntityCounts) -> BarTable:
    pairs = counts.confused.most_common(PAIRS)
    rows = relative_bars([(" → ".join(pair), count, clip(counts.examples[pair], 24).text) for pair, count in pairs])
    return BarTable(
        "Most frequent confusions", rows, under="gold → predicted, with the first case", head=("count", "such as")
    )


def _case(one: Json, at: int, right: bool) -> Case:
    """Return the sentence around a predicted entity, the gold entities that overlap it, and the entity."""
    predicted = one["entities"][at]
    entity = entities(one["predicted"])[at]
    gold = [
        _named(other.kind, " ".join(one["words"][other.start : other.end]))
        for other in entities(one["gold"])
        if _overlap(other, entity)
    ]
    text = around(one["text"], [(predicted["start"], predicted["end"], "mark" if right else "wrong")])
    missing = [[Piece("no entity", "missing")]]
    return text, gold or missing, [_named(predicted["type"], predicted["text"])]


def _named(kind: str, text: str) -> list[Piece]:
    return [clip(kind)._replace(kind="strong"), Piece(" "), clip(text, 80)]
