"""Which words of a passage are marked."""

import pytest

from bertree.search.highlights import find_highlights


@pytest.mark.parametrize(
    ("query", "text", "marked"),
    [
        ("Who repaired the lighthouse?", "The lighthouse was repaired.", ["lighthouse", "repaired"]),
        ("brig in the bay", "Two brigs left the Bay; the brigade stayed.", ["brigs", "Bay", "brigade"]),
        ("sailing ships", "He sails. A ship sailed; the sheep slept.", ["sails", "ship", "sailed"]),
        ("the captain's cat", "The captain has a cat, a category and cats.", ["captain", "cat"]),
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
