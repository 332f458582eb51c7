"""Four documents to search, and the ids of what is found."""

from bertree.search.searcher import Searcher

SHIPS = [
    {"id": "a", "text": "The brig lay at anchor in the bay.", "book": "Sea", "year": 1851, "tags": ["ship", "bay"]},
    {"id": "b", "text": "A lantern burned in the tower all night.", "book": "Tower", "year": 1815},
    {"id": "c", "text": "Two brigs and a sloop left the bay at dawn.", "book": "Sea", "year": 1902, "late": True},
    {"id": "d", "text": "She poured the tea and said nothing.", "book": "Home", "year": 1815.0},
]
ALL = {"a", "b", "c", "d"}
# Filters, and the documents that match.
FILTERS: list[tuple[dict[str, object], set[str]]] = [
    ({"book": "Sea"}, {"a", "c"}),
    ({"year": 1815}, {"b", "d"}),
    ({"year": "1815"}, {"b", "d"}),
    ({"book": ["Home", "Tower"]}, {"b", "d"}),
    ({"book": "Sea", "year": 1902}, {"c"}),
    ({"tags": "bay"}, {"a"}),
    ({"late": True}, {"c"}),
    ({"id": "b"}, {"b"}),
    ({"id": ["b", "d", "x"]}, {"b", "d"}),
    ({"source": ""}, ALL),
    ({"book": "Nothing"}, set()),
    ({"book": []}, set()),
    ({"book": "'; DROP TABLE bertree; --"}, set()),
    ({}, ALL),
]


def ids(index: Searcher, question: str = "the brig in the bay", k: int = 10, **arguments: object) -> list[str]:
    return [hit.document for hit in index.search(question, k, **arguments)]
