"""What there is to see of tagged entities: how well each type is found, what is taken for what, sure mistakes.

An entity is right where its words and its type are. One that is not is told apart by what overlaps it: other words of
the same type, another type, or nothing.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from bertree.files import Json
from bertree.report.cases import Shown, around, cases
from bertree.report.formats import percent
from bertree.report.html import cards
from bertree.report.tables import Bar, bars, clipped, floats, reliability
from bertree.tasks.tagging.entities import Entity, entities

TYPES, PAIRS = 40, 15  # at most shown
NOTHING = "nothing"


@dataclass
class _Tally:
    """Counts over all sentences, and every entity that was said."""

    true: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    taken: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], str] = field(default_factory=dict)
    places: list[tuple[int, int]] = field(default_factory=list)  # of what was said: line, number in its `entities`
    hits: list[bool] = field(default_factory=list)


def parts(lines: Sequence[Json]) -> list[str]:
    """Pictures and cases of lines whose tags are of entities."""
    tally = _counted(lines)
    if not tally.true and not tally.said:
        return ['<p class="sub">There is no entity in gold or predicted tags.</p>']
    scores = floats(lines[line]["entities"][at].get("score") for line, at in tally.places)
    right = np.array(tally.hits, dtype=np.float64)

    def show(number: int) -> Shown:
        line, at = tally.places[number]
        return _shown(lines[line], at, tally.hits[number])

    sure = reliability(scores, right)
    return [
        "<h2>Which entities</h2>",
        cards([_by_type(tally), _taken(tally)]),
        *(["<h2>How sure it is</h2>", cards(sure)] if sure else []),
        *cases(scores, right, show),
    ]


def _counted(lines: Sequence[Json]) -> _Tally:
    true: list[Entity] = []
    found: list[Entity] = []
    tally = _Tally()
    for number, line in enumerate(lines):
        gold, said = line["gold"], line["predicted"]
        here = _entities(gold)
        there = here if gold == said else _entities(said)
        assert len(there) == len(line["entities"]), "the line tells the entities of its tags"
        both = set(here).intersection(there)
        true += here
        found += there
        tally.places += [(number, at) for at in range(len(there))]
        tally.hits += [entity in both for entity in there]
        if len(both) < max(len(here), len(there)):
            for pair, entity in _mistaken(here, there, both):
                tally.taken[pair] += 1
                tally.examples.setdefault(pair, " ".join(line["words"][entity.start : entity.end]))
    tally.true, tally.said = Counter(entity.kind for entity in true), Counter(entity.kind for entity in found)
    tally.right = Counter(entity.kind for entity, hit in zip(found, tally.hits, strict=True) if hit)
    return tally


def _entities(tags: Sequence[str]) -> list[Entity]:
    """Most sentences of most files have none."""
    return entities(tags) if tags.count("O") < len(tags) else []


def _mistaken(here: list[Entity], there: list[Entity], both: set[Entity]) -> Iterator[tuple[tuple[str, str], Entity]]:
    """What gold entities were taken for, and what was said where there are none."""
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


def _by_type(tally: _Tally) -> str:
    rows = []
    for kind, _ in (tally.true | tally.said).most_common(TYPES):
        right, said, true = tally.right[kind], tally.said[kind], tally.true[kind]
        shares = [right / said if said else 0.0, right / true if true else 0.0, 2 * right / (said + true)]
        rows.append(Bar(kind, shares, [*(percent(share, 1) for share in shares), f"{true:,}"]))
    names = ("precision", "recall", "F1")
    return bars("Precision, recall and F1 of each type", rows, "", names, ("", *names, "gold"))


def _taken(tally: _Tally) -> str:
    most = tally.taken.most_common(PAIRS)
    top = most[0][1] if most else 1
    rows = [
        Bar(f"{gold} → {said}", [count / top], [f"{count:,}", _short(tally.examples[gold, said])])
        for (gold, said), count in most
    ]
    return bars("What is taken for what", rows, "gold → predicted, with the first case", head=("", "count", "such as"))


def _short(text: str) -> str:
    return text if len(text) <= 24 else text[:23] + "…"


def _shown(line: Json, at: int, right: bool) -> Shown:
    """The sentence around one entity that was said; what stands there in truth; what was said."""
    said = line["entities"][at]
    entity = entities(line["predicted"])[at]
    there = [one for one in entities(line["gold"]) if _overlap(one, entity)]
    gold = [f"<b>{clipped(one.kind)}</b> {clipped(' '.join(line['words'][one.start : one.end]), 80)}" for one in there]
    text = around(line["text"], [(said["start"], said["end"], "" if right else "wrong")])
    told = f"<b>{clipped(said['type'])}</b> {clipped(said['text'], 80)}"
    return text, "<br>".join(gold) or "<i>no entity</i>", told
