"""Pairs to learn sentence vectors from, out of running text, of questions on passages and of NLI.

    python -m benchmarks.pairs --text corpus.txt --count 100000 --out neighbours.jsonl.xz
    python -m benchmarks.pairs --text corpus.txt --kind leads --out leads.jsonl.xz
    python -m benchmarks.pairs --questions squad-train.json other.json --out questions.jsonl.xz
    python -m benchmarks.pairs --nli snli/train.tsv --out nli.jsonl.xz
    python -m benchmarks.pairs --text simple.txt --kind twins --other full.txt --out twins.jsonl.xz

Text is articles: an empty line between two, a paragraph a line, the title first, headings as short lines. Of text:

- neighbours: a sentence and those around it, without it;
- leads: the first sentence of a paragraph and the rest of it; another paragraph of the article as hard negative;
- sections: title and heading of a section and its first paragraph; a paragraph of another section as hard negative;
- titles: the title of an article and its first paragraph;
- twins: the first paragraphs of the articles of one title in two encyclopaedias (--text and --other).

Of questions (SQuAD's files): a question and the passage around its answer; a passage of the same article that
does not hold it as hard negative. Of NLI: a premise, what follows from it, and what contradicts it. All are what
`bertree embeddings train --loss ranking` reads: anchor, positive, negative.

--without FILE leaves out every text that shares eight words in a row with a text of that file, or is one of its
texts: what a model is measured on must not be learned from.
"""

import argparse
import gzip
import json
import lzma
import random
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from bertree.objectives.embedding_losses import RankingLoss
from bertree.tasks.similarity import read as read_sentences
from bertree.tasks.similarity.examples import examples_for_loss

Row = tuple[str, ...]  # anchor, positive and, where there is one, negative
Article = list[str]  # title, then paragraphs and headings
WORDS = (5, 35)  # of an anchor
REST = (10, 70)  # of what stands around it
LONG = 200  # characters of a paragraph
TITLE, HEADING = 8, 6  # words at most
SHINGLE = 8  # words in a row that two texts must not share
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z“\"'])")


def opened(path: Path, mode: str) -> TextIO:
    """A text file, packed or not."""
    kinds: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
    file: TextIO = kinds.get(path.suffix, open)(path, mode, encoding="utf-8")
    return file


def articles(path: Path) -> Iterator[Article]:
    """The articles of a file."""
    lines: Article = []
    with opened(path, "rt") as file:
        for line in file:
            if line.strip():
                lines.append(line.strip())
            elif lines:
                yield lines
                lines = []
    if lines:
        yield lines


def neighbours(article: Article, draw: random.Random) -> Iterator[Row]:
    """A sentence of each paragraph and those around it."""
    for paragraph in _paragraphs(article):
        sentences = SENTENCE_END.split(paragraph)
        chosen = draw.randrange(len(sentences))
        around = " ".join([*sentences[max(0, chosen - 1) : chosen], *sentences[chosen + 1 : chosen + 3]])
        if len(sentences) > 2 and _is_anchor(sentences[chosen]) and len(around.split()) >= REST[0]:
            yield sentences[chosen], _cut(around)


def leads(article: Article, draw: random.Random) -> Iterator[Row]:
    """The first sentence of each paragraph, the rest of it, another paragraph."""
    paragraphs = _paragraphs(article)
    for number, paragraph in enumerate(paragraphs):
        first, *rest = SENTENCE_END.split(paragraph)
        others = paragraphs[:number] + paragraphs[number + 1 :]
        if len(rest) > 1 and _is_anchor(first) and others:
            yield first, _cut(" ".join(rest)), _cut(draw.choice(others))


def sections(article: Article, draw: random.Random) -> Iterator[Row]:
    """Title and heading of each section, its first paragraph, one of another section."""
    if not _is_title(article[0]):
        return
    found = [
        (heading.rstrip("."), text)
        for heading, text in pairwise(article[1:])
        if _is_heading(heading) and len(text) > LONG
    ]
    for heading, text in found:
        if others := [other for name, other in found if name != heading]:
            yield f"{article[0]}: {heading}", _cut(text), _cut(draw.choice(others))


def titles(article: Article, draw: random.Random) -> Iterator[Row]:
    """The title and the first paragraph."""
    if len(article) > 1 and _is_title(article[0]) and len(article[1]) > LONG:
        yield article[0], _cut(article[1])


KINDS = {"neighbours": neighbours, "leads": leads, "sections": sections, "titles": titles}


def of_text(path: Path, kind: str, share: float, seed: int) -> Iterator[Row]:
    """Rows of a share of the articles."""
    draw = random.Random(seed)
    for article in articles(path):
        if draw.random() < share:
            yield from KINDS[kind](article, draw)


def twins(path: Path, others: Iterable[Path]) -> Iterator[Row]:
    """The first paragraphs of articles of one title."""
    first = {a[0]: a[1] for a in articles(path) if len(a) > 1 and _is_title(a[0]) and len(a[1]) > LONG // 2}
    for article in (article for other in others for article in articles(other)):
        mine = first.get(article[0])
        if mine is not None and len(article) > 1 and len(article[1]) > LONG // 2 and article[1] != mine:
            yield _cut(mine), _cut(article[1])


def questions(path: Path, around: int, seed: int) -> Iterator[Row]:
    """A question, the passage around its answer, a passage of the same article without it."""
    draw = random.Random(seed)
    with opened(path, "rt") as file:
        data = json.load(file)["data"]
    for article in data:
        contexts = [paragraph["context"] for paragraph in article["paragraphs"]]
        for paragraph in article["paragraphs"]:
            context = paragraph["context"]
            others = [text for text in contexts if text != context]
            for question in (question for question in paragraph["qas"] if question.get("answers")):
                row = question["question"].strip(), _passage(context, question["answers"][0]["answer_start"], around)
                wrong = [text for text in others if question["answers"][0]["text"] not in text]
                yield (*row, _passage(draw.choice(wrong), 0, around)) if wrong else row


def _passage(context: str, start: int, around: int) -> str:
    """So many characters around a place, from the start of a sentence on."""
    before = around * 3 // 8
    begin = context.rfind(". ", 0, start - before) + 1 if start > before else 0
    passage = context[begin : begin + around].strip()
    return passage.rpartition(" ")[0] if begin + around < len(context) else passage


def inference(path: Path) -> Iterator[Row]:
    """A premise, what follows from it, what contradicts it."""
    rows = read_sentences.read([path], read_sentences.ColumnNames(wants="label"))
    for example in examples_for_loss(rows, RankingLoss):
        yield example.texts


def _paragraphs(article: Article) -> list[str]:
    return [line for line in article[1:] if LONG < len(line) < 3000]


def _is_anchor(sentence: str) -> bool:
    return WORDS[0] <= len(sentence.split()) <= WORDS[1]


def _is_title(line: str) -> bool:
    return len(line.split()) <= TITLE and not line.endswith((".", ":"))


def _is_heading(line: str) -> bool:
    return line.endswith(".") and len(line.split()) <= HEADING


def _cut(text: str) -> str:
    return " ".join(text.split()[: REST[1]])


class MeasuredTexts:
    """The texts of files that models are measured on."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._texts: set[str] = set()
        self._shingles: set[int] = set()
        for text in (text for path in paths for text in texts_of(path)):
            words = _words(text)
            if len(words) > 3:  # labels, names and answers are no texts
                self._texts.add(" ".join(words))
                self._shingles.update(_shingles(words))

    def touch(self, row: Row) -> bool:
        """Whether a text of a row is, or shares eight words in a row with, one of them."""
        found = [_words(text) for text in row]
        return any(" ".join(words) in self._texts or not self._shingles.isdisjoint(_shingles(words)) for words in found)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _shingles(words: list[str]) -> Iterator[int]:
    return (hash(tuple(words[at : at + SHINGLE])) for at in range(len(words) - SHINGLE + 1))


def texts_of(path: Path) -> Iterator[str]:
    """All texts of a JSON file, or all fields of the lines of another."""
    if path.is_dir():
        yield from (text for one in sorted(path.rglob("*")) if one.is_file() for text in texts_of(one))
        return
    with opened(path, "rt") as file:
        if ".json" in path.suffixes:
            yield from _strings(json.load(file))
        else:
            yield from (field for line in file for field in line.rstrip("\n").split("\t"))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def main() -> None:
    """Write the pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", default=[], help="articles: a paragraph a line")
    parser.add_argument("--kind", default="neighbours", choices=[*KINDS, "twins"], help="what is made of text")
    parser.add_argument("--other", type=Path, nargs="+", default=[], help="articles of another encyclopaedia")
    parser.add_argument("--share", type=float, default=1.0, help="of the articles that are read")
    parser.add_argument("--count", type=int, default=100_000, help="pairs at most, drawn from all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--questions", type=Path, nargs="+", default=[], help="files in SQuAD's form")
    parser.add_argument("--around", type=int, default=420, help="characters of a passage around an answer")
    parser.add_argument("--nli", type=Path, nargs="+", default=[], help="files of SNLI or MultiNLI")
    parser.add_argument("--without", type=Path, nargs="+", default=[], help="files or folders of texts to leave out")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    sources: list[Iterator[Row]] = [questions(path, options.around, options.seed) for path in options.questions]
    sources += [inference(path) for path in options.nli]
    if options.kind == "twins":
        sources += [twins(path, options.other) for path in options.text]
    else:
        sources += [of_text(path, options.kind, options.share, options.seed) for path in options.text]
    rows = list(dict.fromkeys(row for source in sources for row in source))
    random.Random(options.seed).shuffle(rows)
    measured, made, left_out = MeasuredTexts(options.without), 0, 0
    with opened(options.out, "wt") as file:
        for row in rows:
            if made == options.count:
                break
            if measured.touch(row):
                left_out += 1
                continue
            names = ("anchor", "positive", "negative")
            file.write(json.dumps(dict(zip(names, row, strict=False)), ensure_ascii=False) + "\n")
            made += 1
    print(f"{options.out}: {made:,} pairs of {len(rows):,}; {left_out:,} left out, because they are measured on")


if __name__ == "__main__":
    main()
