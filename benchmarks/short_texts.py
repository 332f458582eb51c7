"""Text for a sentence encoder to learn from its teacher: articles, and short texts cut out of them and of tasks.

    python -m benchmarks.short_texts --text simplewiki.txt enwiki.txt books.txt --tasks QQP/train.tsv squad.json \\
        --without squad-dev.json sts --out texts
    bertree prepare texts/*.txt --tokenizer TEACHER --out store
    bertree prepare texts/held/*.txt --tokenizer TEACHER --out held

A sentence vector is of a sentence, a question or a paragraph, and running text in sequences of equal length has none of
these. So every article is written twice: as it is, and as documents of one to four sentences. Of the task files every
text of four words or more is a document, once. One article in --hold-out goes to OUT/held instead. An article or text
that shares eight words in a row with a text of the --without files is left out: models are measured on those.
"""

import argparse
import gzip
import json
import lzma
import random
import re
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

SENTENCES = (1, 1, 1, 2, 2, 3, 4)  # in a short text, one of these
CHARACTERS = (20, 1500)  # of a short text
WORDS = 4  # of a text of a task, at least
SHINGLE = 8  # words in a row that two texts must not share
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z“\"'])")


def opened(path: Path, mode: str) -> TextIO:
    """Open a text file, compressed or not."""
    kinds: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
    file: TextIO = kinds.get(path.suffix, open)(path, mode, encoding="utf-8")
    return file


def articles(path: Path) -> Iterator[list[str]]:
    """Yield the articles of a file: an empty line between two, a paragraph per line."""
    lines: list[str] = []
    with opened(path, "rt") as file:
        for line in file:
            if line.strip():
                lines.append(line.strip())
            elif lines:
                yield lines
                lines = []
    if lines:
        yield lines


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

    def overlap(self, texts: Iterable[str]) -> bool:
        """Return whether one of the texts is, or shares eight words in a row with, a text that is measured on."""
        return any(
            " ".join(words) in self._texts or not self._shingles.isdisjoint(_shingles(words))
            for words in map(_words, texts)
        )


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _shingles(words: list[str]) -> Iterator[int]:
    return (hash(tuple(words[at : at + SHINGLE])) for at in range(len(words) - SHINGLE + 1))


def texts_of(path: Path) -> Iterator[str]:
    """Yield the strings of a JSON file, the tab-separated fields of another, or those of all files of a folder."""
    if path.is_dir():
        yield from (text for file in sorted(path.rglob("*")) if file.is_file() for text in texts_of(file))
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


@dataclass(frozen=True)
class ArticleShare:
    """A share of the articles of a file: every n-th, where n is the number of processes."""

    path: Path
    number: int
    parts: int
    without: tuple[Path, ...]
    hold_out: int
    out: Path


def short_texts(paragraphs: list[str], draw: random.Random) -> Iterator[str]:
    """Cut paragraphs into texts of a few sentences."""
    for paragraph in paragraphs:
        sentences = iter(SENTENCE_END.split(paragraph))
        while sentences_of_text := list(islice(sentences, draw.choice(SENTENCES))):
            text = " ".join(sentences_of_text)
            if CHARACTERS[0] <= len(text) <= CHARACTERS[1]:
                yield text


@cache
def measured_texts(paths: tuple[Path, ...]) -> MeasuredTexts:
    """Read the texts that models are measured on, once in each process."""
    return MeasuredTexts(paths)


def write_part(part: ArticleShare) -> tuple[int, int, int]:
    """Write the articles and short texts of a part; return how many of each there are, and how many were left out."""
    draw, measured = random.Random(part.number), measured_texts(part.without)
    name = f"{part.path.name.partition('.')[0]}-{part.number}.txt"
    count = short = left_out = 0
    with (
        (part.out / f"articles-{name}").open("w", encoding="utf-8") as articles_file,
        (part.out / f"short-{name}").open("w", encoding="utf-8") as pieces,
        (part.out / "held" / name).open("w", encoding="utf-8") as held,
    ):
        for number, article in enumerate(articles(part.path)):
            if number % part.parts != part.number:
                continue
            if measured.overlap(article):
                left_out += 1
            elif part.hold_out and number % part.hold_out == part.hold_out // 2:
                held.write("\n".join(article) + "\n\n")
            else:
                articles_file.write("\n".join(article) + "\n\n")
                count += 1
                for text in short_texts(article, draw):
                    pieces.write(text + "\n\n")
                    short += 1
    return count, short, left_out


def write_tasks(paths: list[Path], without: tuple[Path, ...], out: Path) -> tuple[int, int, int]:
    """Write every text of task files once."""
    measured = measured_texts(without)
    texts = dict.fromkeys(" ".join(text.split()) for path in paths for text in texts_of(path))
    long_enough = [text for text in texts if len(text.split()) >= WORDS and len(text) <= CHARACTERS[1]]
    kept = [text for text in long_enough if not measured.overlap([text])]
    out.write_text("\n\n".join(kept) + "\n", encoding="utf-8")
    return 0, len(kept), len(long_enough) - len(kept)


def main() -> None:
    """Write the texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="articles: a paragraph a line")
    parser.add_argument("--tasks", type=Path, nargs="*", default=[], help="files of tasks, whose texts are taken alone")
    parser.add_argument("--without", type=Path, nargs="*", default=[], help="files or folders of texts to leave out")
    parser.add_argument("--hold-out", type=int, default=250, help="one article in so many; 0: none")
    parser.add_argument("--workers", type=int, default=4, help="processes, and parts of each file")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if len({path.name.partition(".")[0] for path in options.text}) < len(options.text):
        parser.error("--text: two files have the same name before the first dot, and so would what is made of them")
    if options.out.exists():
        parser.error(f"--out {options.out}: exists already; give another folder")
    making = options.out.with_name(f"{options.out.name}.part")  # renamed at the end: OUT is complete, or not there
    shutil.rmtree(making, ignore_errors=True)
    (making / "held").mkdir(parents=True)
    without = tuple(options.without)
    parts = [
        ArticleShare(path, number, options.workers, without, options.hold_out, making)
        for path in options.text
        for number in range(options.workers)
    ]
    with ProcessPoolExecutor(options.workers) as pool:
        tasks = pool.submit(write_tasks, options.tasks, without, making / "tasks.txt")
        counts = [*pool.map(write_part, parts), tasks.result()]
    making.rename(options.out)
    count, short, left_out = map(sum, zip(*counts, strict=True))
    print(
        f"{options.out}: {count:,} articles, {short:,} short texts; {left_out:,} left out, because they are measured on"
    )


if __name__ == "__main__":
    main()
