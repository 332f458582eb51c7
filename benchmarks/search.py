"""How fast and how exact an index answers: build time, size, recall@10, and milliseconds a query on one core.

    python -m benchmarks.search --model FOLDER --count 1000000 --kinds flat ivfpq --out result.md

The vectors are made, since embedding a million passages takes hours here: real vectors of the corpus' sentences
(MiniLM's), each new one a mix of two of them (up to half of the second) plus noise with the covariance of the real
ones, half as large. So they are clustered and lie in the few directions real ones lie in. Queries are vectors of real
sentences that none was made of. Everything goes through `bertree.Index`, the texts and SQLite included: a query is the
time from its vector to passages with text and metadata; the time it computed is beside it, for a machine that others
use too. Recall counts against comparing with every vector.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import bertree
from benchmarks.common import CORPUS, environment, table
from bertree import Index
from bertree.search.documents import Document
from bertree.search.faiss_index import choose_kind
from bertree.text.sentence_splitter import split_sentences

Vectors = NDArray[np.float32]
HEAD = (
    "kind",
    "built in",
    "size of it",
    "recall@10",
    "a query, median",
    "95 %",
    "of it computing, median",
    "filtered, median",
)
K, BLOCK, GROUPS = 10, 50_000, 50


class Prepared:
    """An encoder that knows the vectors already: the text of a passage is its number."""

    def __init__(self, vectors: Vectors) -> None:
        self.vectors, self.dimension, self.digest = vectors, vectors.shape[1], "prepared"

    def embed(self, texts: Iterable[str]) -> Vectors:
        """By number."""
        return self.vectors[[int(text.split()[1]) for text in texts]]


def real(model: str, cache: Path | None) -> Vectors:
    """Vectors of the corpus' sentences, each once."""
    if cache is not None and cache.is_file():
        return np.load(cache, allow_pickle=False)
    sentences = list(dict.fromkeys(split_sentences(CORPUS.read_text(encoding="utf-8"))))
    found = bertree.load(model).embed(sentences)
    if cache is not None:
        np.save(cache, found)
    return found


def made(base: Vectors, count: int) -> Vectors:
    """Many more of the same sort."""
    random = np.random.default_rng(1)
    values, directions = np.linalg.eigh(np.cov((base - base.mean(0)).T))
    root = (directions * np.sqrt(np.maximum(values, 0))).astype(np.float32).T
    found = np.empty((count, base.shape[1]), np.float32)
    for at in range(0, count, BLOCK):
        n = min(BLOCK, count - at)
        first, second = base[random.integers(0, len(base), n)], base[random.integers(0, len(base), n)]
        share = random.uniform(0, 0.5, (n, 1)).astype(np.float32)
        noise = random.standard_normal((n, base.shape[1]), np.float32) @ root
        mixed = (1 - share) * first + share * second + 0.5 * noise
        found[at : at + n] = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
    return found


def documents(count: int) -> Iterator[Document]:
    """A document a vector, with a group to filter by."""
    for number in range(count):
        yield Document(f"d{number}", f"passage {number}", source="made", metadata={"group": number % GROUPS})


def exact(queries: Vectors, vectors: Vectors) -> list[set[int]]:
    """The nearest of each query among all."""
    best: list[list[tuple[float, int]]] = [[] for _ in queries]
    for at in range(0, len(vectors), BLOCK):
        scores = queries @ vectors[at : at + BLOCK].T
        top = np.argpartition(-scores, K, axis=1)[:, :K]
        for row, columns in enumerate(top):
            best[row] = sorted([*best[row], *((float(scores[row, c]), at + int(c)) for c in columns)])[-K:]
    return [{number for _, number in row} for row in best]


def measured(index: Index, queries: Vectors, truth: list[set[int]]) -> list[str]:
    """Recall and times, on one core."""
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {min(cores)})
    torch.set_num_threads(1)
    times, busy, filtered, right = [], [], [], 0
    index.nearest(queries[:1], K)
    try:
        for number, query in enumerate(queries):
            start, used = time.perf_counter(), time.process_time()
            (hits,) = index.nearest(query[None], K)
            times.append(time.perf_counter() - start)
            busy.append(time.process_time() - used)
            right += len({int(hit.document[1:]) for hit in hits} & truth[number])
        for number, query in enumerate(queries[:20]):
            start = time.perf_counter()
            (hits,) = index.nearest(query[None], K, where={"group": number % GROUPS})
            filtered.append(time.perf_counter() - start)
            assert all(hit.metadata["group"] == number % GROUPS for hit in hits)
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
    figures = (np.median(times), np.percentile(times, 95), np.median(busy), np.median(filtered))
    return [f"{right / (K * len(queries)):.4f}", *(f"{1000 * figure:.2f} ms" for figure in figures)]


def main() -> None:
    """Make, build, ask, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model folder with its tokenizer")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--kinds", nargs="+", default=["flat", "hnsw", "ivfpq"])
    parser.add_argument("--cache", type=Path, help="file for the real vectors, to embed them once")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    base = real(options.model, options.cache)
    base = base[np.random.default_rng(0).permutation(len(base))]
    queries, base = base[: options.queries], base[options.queries :]
    vectors = made(base, options.count)
    truth = exact(queries, vectors)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(dir=options.out.parent if options.out else None) as place:
        start = time.perf_counter()
        index = Index.build(Prepared(vectors), documents(options.count), Path(place) / "index", kind="flat")
        taken = time.perf_counter() - start
        size = index.info["bytes"]
        line = (
            f"Reading {options.count:,} documents, cutting them, SQLite and the vectors on the disk: {taken:.0f} s, "
            f"{size['database'] / 1e6:,.0f} MB of SQLite, {size['vectors'] / 1e6:,.0f} MB of vectors."
        )
        print(line, flush=True)
        for kind in options.kinds:
            start = time.perf_counter()
            index.settle(kind)
            taken = time.perf_counter() - start
            figures = measured(index, queries, truth)
            size = index.info["bytes"]["graph"]
            rows.append([kind, f"{taken:.0f} s", f"{size / 1e6:,.0f} MB", *figures])
            print(" | ".join(rows[-1]), flush=True)
    text = (
        f"{options.count:,} vectors of {base.shape[1]} numbers, {len(queries)} queries; chosen for so many: "
        f"{choose_kind(options.count, base.shape[1])[0]}. {environment('faiss-cpu', 'numpy')}\n\n"
        f"{line}\n\n{table(HEAD, rows)}\n"
    )
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
