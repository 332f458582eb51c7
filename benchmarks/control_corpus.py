"""Make a corpus of several sources, equally large, for models with control codes.

    python -m benchmarks.control_corpus --out sources Books=books.txt Wikipedia=simplewiki.txt.xz \
        Reviews=imdb/*.tsv.xz News=agnews/*.tsv

A source is NAME=FILES, any files that `bertree prepare` reads (of a table the column `text`). Long documents are cut at
line ends into pieces of a few thousand characters. All sources have as many characters as the smallest, or `--size`.

    OUT/train/NAME/all.txt       for `bertree prepare OUT/train --control folder`
    OUT/held-out/NAME/all.txt    other documents
    OUT/held-out.tsv             a paragraph a line, with its code: columns code, text
"""

import argparse
import html
import re
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from bertree.text.corpus import Corpus, CorpusOptions

PIECE = 4000  # characters
PARAGRAPH = (150, 600)  # characters of the paragraphs in held-out.tsv


def clean(text: str) -> str:
    """Undo the marks of the released files: HTML line ends and characters, and backslashes for line ends (AG News)."""
    text = re.sub(r"<br ?/?>", "\n", text)
    text = html.unescape(re.sub(r" ?&?#(\d{2,4});", r"&#\1;", text)).replace("\\", " ")
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def pieces(text: str) -> Iterator[str]:
    """Yield a document in pieces of whole lines."""
    lines: list[str] = []
    for line in text.splitlines():
        if lines and sum(map(len, lines)) + len(line) > PIECE:
            yield "\n".join(lines)
            lines = []
        lines.append(line)
    if lines:
        yield "\n".join(lines)


def order(text: str) -> bytes:
    """Return a place in a random order that depends on the text alone."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()


def read_source(files: str, held_out: float) -> tuple[list[str], list[str]]:
    """Return the pieces to train on and the held-out ones, which are of other documents, in random order."""
    parts: tuple[list[str], list[str]] = ([], [])
    for document in Corpus([files], CorpusOptions(deduplicate=True, min_characters=100)).documents():
        text = clean(document)
        is_held_out = int.from_bytes(order(text[:1000]), "little") < held_out * 2**64
        parts[is_held_out].extend(piece for piece in pieces(text) if len(piece) >= 100)
    for part in parts:
        part.sort(key=order)
    return parts


def take(texts: list[str], size: int) -> list[str]:
    """Return the first texts, up to `size` characters."""
    chosen, total = [], 0
    for text in texts:
        if total + len(text) > size:
            break
        chosen.append(text)
        total += len(text)
    return chosen


def paragraphs(texts: list[str], count: int) -> list[str]:
    """Return a paragraph of each of the first texts that have one of a middle length."""
    low, high = PARAGRAPH
    lines_of_texts = (next((line for line in text.splitlines() if low <= len(line) <= high), None) for text in texts)
    return [line for line in lines_of_texts if line is not None][:count]


def main() -> None:
    """Write the corpus and print its sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", metavar="NAME=FILES")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", type=int, default=4_000_000, help="characters of a source to train on, at most")
    parser.add_argument("--unequal", action="store_true", help="a smaller source does not make the others smaller")
    parser.add_argument("--held-out", type=float, default=0.05, help="share of the documents")
    parser.add_argument("--paragraphs", type=int, default=250, help="of each source in held-out.tsv")
    options = parser.parse_args()
    sources = (source.partition("=") for source in options.sources)
    read = {name: read_source(files, options.held_out) for name, _, files in sources}
    sizes = [sum(map(len, train)) for train, _ in read.values()]
    size = options.size if options.unequal else min(options.size, *sizes)
    rows = ["code\ttext"]
    for name, (train, held_out) in read.items():
        chosen = take(train, size), take(held_out, int(size * options.held_out))
        for part, texts in zip(("train", "held-out"), chosen, strict=True):
            path = options.out / part / name / "all.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n\n".join(texts) + "\n")
        rows += [f"{name}\t{line}" for line in paragraphs(held_out, options.paragraphs)]
        count, characters = len(chosen[0]), sum(map(len, chosen[0]))
        print(f"{name}: {count:,} documents, {characters:,} characters; held out {len(chosen[1]):,}")
    (options.out / "held-out.tsv").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
