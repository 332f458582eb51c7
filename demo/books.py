"""Make a task of the corpus: which book is a paragraph from? Writes a CSV file with the columns text and book."""

import csv
import random
import sys
from pathlib import Path

# The first words of each book; the corpus holds the books one after the other.
BEGINNINGS = {
    "To Sherlock Holmes": "Sherlock Holmes",
    "The Time Traveller": "The Time Machine",
    "Dorothy lived": "The Wizard of Oz",
    "You will rejoice": "Frankenstein",
    "SQUIRE TRELAWNEY": "Treasure Island",
    "I HAVE endeavoured": "A Christmas Carol",
    "Buck did not": "The Call of the Wild",
    "One thing was certain": "Through the Looking-Glass",
}
MOST = 250  # paragraphs of a book


def main(corpus: str, out: str) -> None:
    """Write up to MOST paragraphs of each book to a table."""
    paragraphs: dict[str, list[str]] = {}
    beginnings = dict(BEGINNINGS)
    for line in Path(corpus).read_text(encoding="utf-8").splitlines():
        start = next((words for words in beginnings if line.startswith(words)), None)
        if start is not None:
            book = beginnings.pop(start)
        if 80 <= len(line) <= 400:
            paragraphs.setdefault(book, []).append(line)
    assert not beginnings, f"not in the corpus: {list(beginnings)}"
    draw = random.Random(0)
    rows = [(text, book) for book, texts in paragraphs.items() for text in draw.sample(texts, min(MOST, len(texts)))]
    draw.shuffle(rows)
    with open(out, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "book"), *rows])
    print(f"{out}: {len(rows):,} paragraphs of {len(paragraphs)} books")


if __name__ == "__main__":
    main(*sys.argv[1:])
