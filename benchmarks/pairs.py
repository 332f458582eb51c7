"""Pairs to learn sentence vectors from, out of running text and of questions on passages.

    python -m benchmarks.pairs --text corpus.txt --count 100000 --out neighbours.jsonl.xz
    python -m benchmarks.pairs --questions squad-train.json other.json --out questions.jsonl.xz

Of text (a paragraph a line): a sentence and those around it, without it. Of questions (SQuAD's files): a question and
the passage around its answer. Both are what `bertree sentence train --loss ranking` reads: anchor, positive.
"""

import argparse
import gzip
import json
import lzma
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

SHARE = 0.3  # of the paragraphs: enough of a large corpus, from all of it
WORDS = (5, 35)  # of an anchor
REST = (10, 70)  # of what stands around it
AROUND = 420  # characters of a passage
BEFORE = 160  # of them before the answer, about


def opened(path: Path, mode: str) -> TextIO:
    """A text file, packed or not."""
    kinds: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
    file: TextIO = kinds.get(path.suffix, open)(path, mode, encoding="utf-8")
    return file


def neighbours(path: Path, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """A sentence and those around it."""
    draw = random.Random(seed)
    with opened(path, "rt") as file:
        paragraphs = [line.strip() for line in file if draw.random() < SHARE and 200 < len(line) < 3000]
    draw.shuffle(paragraphs)
    made = 0
    for paragraph in paragraphs:
        sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z“\"'])", paragraph)
        chosen = draw.randrange(len(sentences))
        around = " ".join([*sentences[max(0, chosen - 1) : chosen], *sentences[chosen + 1 : chosen + 3]]).split()
        anchor = sentences[chosen]
        if len(sentences) > 2 and WORDS[0] <= len(anchor.split()) <= WORDS[1] and len(around) >= REST[0]:
            yield anchor, " ".join(around[: REST[1]])
            made += 1
            if made == count:
                return


def questions(path: Path) -> Iterator[tuple[str, str]]:
    """A question and the passage around its answer."""
    with opened(path, "rt") as file:
        articles = json.load(file)["data"]
    for paragraph in (paragraph for article in articles for paragraph in article["paragraphs"]):
        context = paragraph["context"]
        for question in (question for question in paragraph["qas"] if question.get("answers")):
            start = question["answers"][0]["answer_start"]
            begin = context.rfind(". ", 0, start - BEFORE) + 1 if start > BEFORE else 0
            passage = context[begin : begin + AROUND].strip()
            yield question["question"].strip(), passage.rpartition(" ")[0] if begin + AROUND < len(context) else passage


def main() -> None:
    """Write the pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a paragraph a line")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--questions", type=Path, nargs="+", default=[], help="files in SQuAD's form")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    made = 0
    with opened(options.out, "wt") as file:
        sources = [neighbours(options.text, options.count, options.seed)] if options.text else []
        for anchor, positive in (pair for source in [*sources, *map(questions, options.questions)] for pair in source):
            file.write(json.dumps({"anchor": anchor, "positive": positive}, ensure_ascii=False) + "\n")
            made += 1
    print(f"{options.out}: {made:,} pairs")


if __name__ == "__main__":
    main()
