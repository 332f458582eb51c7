"""Choose the sentences whose pairs say how similar two random sentences are to a model.

    python -m benchmarks.random_sentences corpus/books.txt > src/bertree/inference/random_sentences.txt

One sentence of each of 128 documents, so that no two are neighbours: plain ones, neither very short nor long, without
quotation marks. Which sentence of a document it is depends on a fixed seed alone.
"""

import random
import re
import sys
from pathlib import Path

from bertree.text.sentence_splitter import split_sentences

COUNT, FEWEST, MOST = 128, 6, 14  # sentences; words of a sentence
PLAIN = re.compile(r"[A-Z][A-Za-z,;'’ -]+\.")


def choose(text: str) -> list[str]:
    """Return the sentences, in random order."""
    documents = [document for document in text.split("\n\n") if document.strip()]
    chance = random.Random(0)
    chosen = []
    for document in chance.sample(documents, len(documents)):
        sentences = [s for s in split_sentences(document) if PLAIN.fullmatch(s) and FEWEST <= len(s.split()) <= MOST]
        if sentences:
            chosen.append(chance.choice(sentences))
    return chosen[:COUNT]


if __name__ == "__main__":
    print("\n".join(choose(Path(sys.argv[1]).read_text(encoding="utf-8"))))
