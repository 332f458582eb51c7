"""What storing weights as int8 costs: bytes, and how far the vectors of real texts move.

    python -m benchmarks.storage --model FOLDER --texts 500 --out result.md

The same weights are saved in every precision and loaded again into float32; the vector of a text is the mean of its
last hidden states. Vectors are compared with those of the float32 folder: the smallest and the mean cosine over the
texts, the largest difference of a component beside the components' own deviation, and what matters to whoever
searches with them, how often the nearest other text stays the same.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.common import CORPUS, environment, sentences, table
from bertree.inference.load import DTYPES, load

HEAD = ("weights", "bytes", "of float32", "cosine, least", "cosine, mean", "largest difference", "same nearest text")


def vectors(model: str | Path, texts: list[str]) -> Tensor:
    """The mean of each text's last states."""
    return torch.stack([states.mean(0) for states in load(model).hidden(texts)])


def nearest(vectors: Tensor) -> Tensor:
    """For each text, the other one whose vector has the largest cosine with its own."""
    unit = torch.nn.functional.normalize(vectors, dim=1)
    return (unit @ unit.T).fill_diagonal_(-2).argmax(1)


def main() -> None:
    """Save, load, compare, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model folder with its tokenizer")
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    texts = sentences(options.corpus, options.texts)
    model = load(options.model)
    plain = vectors(options.model, texts)
    rows: list[list[object]] = []
    whole = 0
    with tempfile.TemporaryDirectory() as place:
        for name in DTYPES:
            folder = Path(place) / name
            model.save(folder, dtype=name)
            size = (folder / "model.safetensors").stat().st_size
            whole = whole or size
            found = vectors(folder, texts)
            cosine = torch.nn.functional.cosine_similarity(plain.double(), found.double())
            same = (nearest(plain) == nearest(found)).double().mean()
            cells = (f"{cosine.min():.6f}", f"{cosine.mean():.6f}", f"{(plain - found).abs().max():.4f}", f"{same:.1%}")
            rows.append([name, f"{size:,}", f"{size / whole:.1%}", *cells])
    text = (
        f"{len(texts)} texts of {options.corpus.name}, vectors of {plain.shape[1]} components with deviation "
        f"{plain.std():.3f}; {environment('safetensors', 'tokenizers')}\n\n{table(HEAD, rows)}\n"
    )
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
