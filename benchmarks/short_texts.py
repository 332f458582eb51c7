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
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from benchmarks.pairs import SENTENCE_END, MeasuredTexts, articles, texts_of

SENTENCES = (1, 1, 1, 2, 2, 3, 4)  # in a short text, one of these
CHARACTERS = (20, 1500)  # of a short text
WORDS = 4  # of a text of a task, at least


@dataclass(frozen=True)
class Part:
    """A share of the articles of a file: every `parts`-th."""

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
        while some := list(islice(sentences, draw.choice(SENTENCES))):
            text = " ".join(some)
            if CHARACTERS[0] <= len(text) <= CHARACTERS[1]:
                yield text


@cache
def measured_texts(paths: tuple[Path, ...]) -> MeasuredTexts:
    """Read the texts that models are measured on, once in each process."""
    return MeasuredTexts(paths)


def write_part(part: Part) -> tuple[int, int, int]:
    """Write the articles and short texts of a part; return how many of each there are, and how many were left out."""
    draw, measured = random.Random(part.number), measured_texts(part.without)
    name = f"{part.path.name.partition('.')[0]}-{part.number}.txt"
    count = short = left_out = 0
    with (
        (part.out / f"articles-{name}").open("w", encoding="utf-8") as whole,
        (part.out / f"short-{name}").open("w", encoding="utf-8") as pieces,
        (part.out / "held" / name).open("w", encoding="utf-8") as held,
    ):
        for number, article in enumerate(articles(part.path)):
            if number % part.parts != part.number:
                continue
            if measured.touch(tuple(article)):
                left_out += 1
            elif part.hold_out and number % part.hold_out == part.hold_out // 2:
                held.write("\n".join(article) + "\n\n")
            else:
                whole.write("\n".join(article) + "\n\n")
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
    kept = [text for text in long_enough if not measured.touch((text,))]
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
        Part(path, number, options.workers, without, options.hold_out, making)
        for path in options.text
        for number in range(options.workers)
    ]
    with ProcessPoolExecutor(options.workers) as pool:
        tasks = pool.submit(write_tasks, options.tasks, without, making / "tasks.txt")
        found = [*pool.map(write_part, parts), tasks.result()]
    making.rename(options.out)
    count, short, left_out = map(sum, zip(*found, strict=True))
    print(
        f"{options.out}: {count:,} articles, {short:,} short texts; {left_out:,} left out, because they are measured on"
    )


if __name__ == "__main__":
    main()
