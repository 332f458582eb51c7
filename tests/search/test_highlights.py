"""Which words of a passage are marked."""

import pytest

from bertree.search.words.terms import find_highlights


@pytest.mark.parametrize(
    ("query", "text", "marked"),
    [
        ("Who repaired the lighthouse?", "The lighthouse was repaired.", ["lighthouse", "repaired"]),
        ("brig in the bay", "Two brigs left the Bay; the brigade stayed.", ["brigs", "Bay"]),
        ("white whale, ", "Whitney hunted white whales; whaling.", ["white", "whales", "whaling"]),
        ("white", "Whitney has a whiteboard", ["whiteboard"]),
        ("a city hunts", "Cities hunted; hunting", ["Cities", "hunted", "hunting"]),
        ("stopped agreeing ", "He stops and agrees, and agreed", ["stops", "agrees", "agreed"]),
        ("car sing red ", "care, caring; singing; a reed, reds", ["singing", "reds"]),
        ("care ", "car, cares, caring, cared", ["cares", "caring", "cared"]),
        ("falling passes created ", "fall, passing, create", ["fall", "passing", "create"]),
        ("bus gas ", "bus, buses, gas", ["bus", "gas"]),
        ("sailing ships", "He sails. A ship sailed; the sheep slept.", ["sails", "ship", "sailed"]),
        ("the captain's cat", "The captain has a cat, a category and cats.", ["captain", "cat", "cats"]),
        ("cafe in Zürich", "Das Café in ZURICH", ["Café", "ZURICH"]),
        ("an old lighth", "The lighthouse", ["lighthouse"]),
        ("lighth ", "The lighthouse", []),
        ("ca", "A cat", []),
        ("light", "The lights and lighting", ["lights", "lighting"]),
        ("to be or not to be", "To be, he said, is not to have.", ["To", "be", "not", "to"]),
        ("the", "The tea", ["The"]),
        ("🙂 tea", "🙂🙂 tea 🙂", ["tea"]),
        ("", "anything", []),
        ("?!", "anything ?!", []),
    ],
)
def test_words_of_the_query_are_marked(query: str, text: str, marked: list[str]) -> None:
    assert [text[start:end] for start, end in find_highlights(query, text)] == marked
