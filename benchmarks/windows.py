"""Texts of a window in `embed`: larger ones sort better, smaller ones let a GPU begin sooner.

    python -m benchmarks.windows --device cuda --texts 20000
    python -m benchmarks.windows --device cpu --texts 2000 --preset bert-mini --repeats 1

`growing`: the first windows are small, as in `bertree embed`. From ids: the texts were tokenized before.
"""

import argparse
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import bertree
from benchmarks.common import CORPUS, environment, sentences, table
from benchmarks.embed import model_folder
from bertree.inference import embedding

ARMS = [(4096, None), (2048, None), (1024, None), (512, None), (4096, 0), (1024, 0)]  # window, first row if it grows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--preset", default="bert-base", help="random weights of this preset")
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    texts = sentences(CORPUS, given.texts)
    with tempfile.TemporaryDirectory() as scratch:
        folder = model_folder(given.preset, Path(scratch))
        model = bertree.load(folder, device=given.device, dtype="float16" if given.device == "cuda" else "float32")
    tokenize = model.tokenize
    known = dict(zip(texts, tokenize(texts, given.max_length), strict=True))
    sources = {"texts": tokenize, "ids": lambda some, limit=None: [known[text] for text in some]}

    def rate(window: int, first: int | None, source: str) -> float:
        embedding.WINDOW = window
        vars(model)["tokenize"] = sources[source]
        began = time.perf_counter()
        found = sum(map(len, model.embed_windows(texts, max_length=given.max_length, first=first)))
        assert found == len(texts)
        return found / (time.perf_counter() - began)

    arms = [(*arm, source) for source in sources for arm in ARMS]
    found: dict[tuple[int, int | None, str], list[float]] = {arm: [] for arm in arms}
    for turn in range(given.repeats + 1):
        for arm in arms:
            if (speed := rate(*arm)) and turn:  # the first turn warms up
                found[arm].append(speed)
    rows = [
        (source, f"{window:,}{'' if first is None else ', growing'}", f"{statistics.median(speeds):,.0f}")
        for (window, first, source), speeds in found.items()
    ]
    print(f"{environment()}; {given.preset}, {given.texts:,} texts, medians of {given.repeats}\n")
    print(table(("from", "texts of a window", "texts/s"), rows))


if __name__ == "__main__":
    main()
