"""The sections of a report page about named entities: scores of each type, confusions, confident mistakes.

page.py uses them for a tagging task. An entity is right if its words and its type are. A wrong one is counted by what
overlaps it: other words of the same type, another type, or nothing.
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

MAX_TYPES, MAX_CONFUSIONS = 40, 15  # rows of each table
NOTHING = "nothing"  # stands in a confusion for "no entity"


@dataclass
class _EntityCounts:
    """Counts of entities by type over all sentences, and the location of every predicted entity."""

    gold: Counter[str] = field(default_factory=Counter)
    predicted: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    confused: Counter[tuple[str, str]] = field(default_factory=Counter)  # (gold, predicted) type of wrong entities
    examples: dict[tuple[str, str], str] = field(default_factory=dict)  # the words of the first case of each confusion
    locations: list[tuple[int, int]] = field(default_factory=list)  # index of the line, index in its `entities`
    hits: list[bool] = field(default_factory=list)  # whether the predicted entity at each location is right


def entities_sections(lines: Sequence[Json]) -> list[Section]:
    """Return the sections of lines whose tags are those of entities."""
    counts = _count(lines)
    if not counts.gold and not counts.predicted:
        return [Section("", blocks=["There is no entity in gold or predicted tags."])]
    scores = as_floats(lines[line]["entities"][index].get("score") for line, index in counts.locations)
    right = np.array(counts.hits, dtype=np.float64)

    def show(number: int) -> Case:
        line, index = counts.locations[number]
        return _case(lines[line], index, counts.hits[number])

    return [
        Section("Scores by type", [_by_type(counts), _confusions(counts)]),
        *confidence(scores, right),
        *confident_cases(scores, right, show),
    ]


def _count(lines: Sequence[Json]) -> _EntityCounts:
    gold: list[Entity] = []
    predicted: list[Entity] = []
    counts = _EntityCounts()
    for number, line in enumerate(lines):
        in_gold = _entities(line["gold"])
        in_predicted = in_gold if line["gold"] == line["predicted"] else _entities(line["predicted"])
        assert len(in_predicted) == len(line["entities"]), "a line lists the entities of its tags"
        common = set(in_gold).intersection(in_predicted)
        gold += in_gold
        predicted += in_predicted
        counts.locations += [(number, index) for index in range(len(in_predicted))]
        counts.hits += [entity in common for entity in in_predicted]
        if len(common) < max(len(in_gold), len(in_predicted)):
            for pair, entity in _mistakes(in_gold, in_predicted, common):
                counts.confused[pair] += 1
                counts.examples.setdefault(pair, " ".join(line["words"][entity.start : entity.end]))
    counts.gold, counts.predicted = (Counter(entity.kind for entity in listed) for listed in (gold, predicted))
    counts.right = Counter(entity.kind for entity, hit in zip(predicted, counts.hits, strict=True) if hit)
    return counts


def _entities(tags: Sequence[str]) -> list[Entity]:
    # Faster: most sentences of most files have no entity.
    return entities(tags) if tags.count("O") < len(tags) else []


def _mistakes(
    gold: list[Entity], predicted: list[Entity], common: set[Entity]
) -> Iterator[tuple[tuple[str, str], Entity]]:
    """Yield what gold entities were taken for, and what was predicted where there are none."""
    for entity in gold:
        if entity in common:
            continue
        overlapping = next((candidate for candidate in predicted if _overlap(candidate, entity)), None)
        if overlapping is None:
            yield (entity.kind, NOTHING), entity
        else:
            moved = "" if overlapping[1:] == entity[1:] else ", other words"
            yield (entity.kind, overlapping.kind + moved), entity
    for entity in predicted:
        if entity not in common and not any(_overlap(candidate, entity) for candidate in gold):
            yield (NOTHING, entity.kind), entity


def _overlap(first: Entity, second: Entity) -> bool:
    return first.start < second.end and second.start < first.end


def _by_type(counts: _EntityCounts) -> BarTable:
    rows = []
    for kind, _ in (counts.gold | counts.predicted).most_common(MAX_TYPES):
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
    pairs = counts.confused.most_common(MAX_CONFUSIONS)
    rows = relative_bars([(" → ".join(pair), count, clip(counts.examples[pair], 24).text) for pair, count in pairs])
    return BarTable(
        "Most frequent confusions", rows, under="gold → predicted, with the first case", head=("count", "such as")
    )


def _case(line: Json, index: int, right: bool) -> Case:
    """Return the sentence around a predicted entity, the gold entities that overlap it, and the entity."""
    predicted = line["entities"][index]
    entity = entities(line["predicted"])[index]
    gold = [
        _named(gold_entity.kind, " ".join(line["words"][gold_entity.start : gold_entity.end]))
        for gold_entity in entities(line["gold"])
        if _overlap(gold_entity, entity)
    ]
    text = around(line["text"], [(predicted["start"], predicted["end"], "mark" if right else "wrong")])
    missing = [[Piece("no entity", "missing")]]
    return text, gold or missing, [_named(predicted["type"], predicted["text"])]


def _named(kind: str, text: str) -> list[Piece]:
    return [clip(kind)._replace(kind="strong"), Piece(" "), clip(text, 80)]
