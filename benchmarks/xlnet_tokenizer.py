"""Ids of XLNet's real vocabulary: bertree beside SentencePiece with the authors' steps, and beside transformers.

    python -m benchmarks.xlnet_tokenizer spiece.model                  # texts of the corpus in this repository
    python -m benchmarks.xlnet_tokenizer spiece.model FILE [FILE ...]  # one text a line, .xz too, equally many of each

Texts are compared whole. `--show N` prints the first N places where bertree and the authors' code differ.
"""

import argparse
import lzma
import os
import random
import shutil
import tempfile
import unicodedata
from itertools import islice
from pathlib import Path

import sentencepiece
import transformers

from benchmarks.common import CORPUS, environment, sentences, table
from bertree.text.tokenizer import Tokenizer

os.environ.setdefault("HF_HUB_OFFLINE", "1")
SPACE = "▁"
LINES = 50_000  # read of each file, to choose from


def main() -> None:
    """Encode the texts in all ways and count those that differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="spiece.model")
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--show", type=int, default=0)
    given = parser.parse_args()
    texts = choose(given.files, given.texts) if given.files else sentences(CORPUS, given.texts)
    print(environment())
    truth = sentencepiece.SentencePieceProcessor(model_file=str(given.model))
    with tempfile.TemporaryDirectory() as work:
        source, written = Path(work) / "source", Path(work) / "written"
        source.mkdir()
        written.mkdir()
        shutil.copy(given.model, source / "spiece.model")
        ours = Tokenizer.load(source)
        assert ours is not None
        ours.save(written)
        found = {
            "bertree": [encoding.ids for encoding in ours.encode_plain(texts)],
            "the authors' code (SentencePiece, digit-comma rule)": [author_ids(truth, text) for text in texts],
            "SentencePiece without that rule": [truth.encode(prepared(text)) for text in texts],
            "transformers, the folder that bertree wrote": transformers_ids(written, texts),
            "transformers, spiece.model": transformers_ids(source, texts),
        }
    mine, authors = list(found.values())[:2]
    rows = [[name, str(sum(a != b for a, b in zip(ids, mine, strict=True)))] for name, ids in list(found.items())[1:]]
    tokens = sum(map(len, mine))
    print(table([f"of {len(texts)} texts, {tokens} tokens", "differ from bertree's"], rows))
    different = (pair for pair in zip(mine, authors, strict=True) if pair[0] != pair[1])
    for ids, wanted in islice(different, given.show):
        at = next(i for i, (a, b) in enumerate(zip(ids, wanted, strict=False)) if a != b)
        near = slice(max(0, at - 2), at + 5)
        print(truth.id_to_piece(ids[near]), truth.id_to_piece(wanted[near]))


def choose(files: list[Path], count: int) -> list[str]:
    """Return texts of all files."""
    chosen: list[str] = []
    for number, path in enumerate(files):
        with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as stream:
            lines = [line.rstrip("\n") for line in islice(stream, LINES) if line.strip()]
        share = (count - len(chosen)) // (len(files) - number)
        chosen += random.Random(0).sample(lines, min(share, len(lines)))
    return chosen


def transformers_ids(folder: Path, texts: list[str]) -> list[list[int]]:
    """Return the ids that transformers gives, without special tokens."""
    kind = transformers.AutoTokenizer if (folder / "tokenizer.json").exists() else transformers.XLNetTokenizer
    encoded: list[list[int]] = kind.from_pretrained(folder)(texts, add_special_tokens=False)["input_ids"]
    return encoded


def prepared(text: str, lower: bool = False) -> str:
    """Do what the authors do with a text before SentencePiece reads it."""
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return text.lower() if lower else text


def ends_in_digit_and_comma(piece: str) -> bool:
    """Return whether the authors divide this piece again."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def author_ids(model: sentencepiece.SentencePieceProcessor, text: str, lower: bool = False) -> list[int]:
    """Return the ids without special tokens; a piece that ends in a digit and a comma is divided again without it."""
    found: list[str] = []
    for piece in model.encode(prepared(text, lower), out_type=str):
        if not ends_in_digit_and_comma(piece):
            found.append(piece)
            continue
        parts = model.encode(piece[:-1].replace(SPACE, ""), out_type=str)
        if piece[0] != SPACE and parts[0][0] == SPACE:
            parts = [parts[0][1:], *parts[1:]] if len(parts[0]) > 1 else parts[1:]
        found += [*parts, ","]
    return [model.piece_to_id(piece) for piece in found]


if __name__ == "__main__":
    main()
