"""How fast and how exact an index answers: build time, size, recall@10, and milliseconds a query on one core.

    python -m benchmarks.search --model FOLDER --count 1000000 --kinds flat ivfpq --out rows.jsonl

The vectors are made, since embedding a million passages takes hours here: real vectors of the corpus' sentences
(MiniLM's), each new one a mix of two of them (up to half of the second) plus noise with the covariance of the real
ones, half as large. So they are clustered and lie in the few directions real ones lie in. Queries are vectors of real
sentences that none was made of. Everything goes through `bertree.Index`, the texts and SQLite included: a query is the
time from its vector to passages with text and metadata; the time it computed is beside it, for a machine that others
use too. Recall counts against comparing with every vector.
"""

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import bertree
from benchmarks.common import CORPUS, Results, argument_parser
from bertree import Index
from bertree.search.documents import Document
from bertree.search.faiss_index import choose_kind
from bertree.text.sentence_splitter import split_sentences

Vectors = NDArray[np.float32]
K, BLOCK, GROUPS = 10, 50_000, 50


class Prepared:
    """An encoder that knows the vectors already: the text of a passage is its number."""

    def __init__(self, vectors: Vectors) -> None:
        self.vectors, self.dimension, self.digest = vectors, vectors.shape[1], "prepared"

    def embed(self, texts: Iterable[str]) -> Vectors:
        """By number."""
        return self.vectors[[int(text.split()[1]) for text in texts]]


def sentence_vectors(model: str, cache: Path | None) -> Vectors:
    """Vectors of the corpus' sentences, each once."""
    if cache is not None and cache.is_file():
        return np.load(cache, allow_pickle=False)
    sentences = list(dict.fromkeys(split_sentences(CORPUS.read_text(encoding="utf-8"))))
    vectors = bertree.load(model).embed(sentences)
    if cache is not None:
        np.save(cache, vectors)
    return vectors


def mixed_vectors(base: Vectors, count: int) -> Vectors:
    """Many more of the same sort."""
    random = np.random.default_rng(1)
    values, directions = np.linalg.eigh(np.cov((base - base.mean(0)).T))
    root = (directions * np.sqrt(np.maximum(values, 0))).astype(np.float32).T
    vectors = np.empty((count, base.shape[1]), np.float32)
    for at in range(0, count, BLOCK):
        n = min(BLOCK, count - at)
        first, second = base[random.integers(0, len(base), n)], base[random.integers(0, len(base), n)]
        share = random.uniform(0, 0.5, (n, 1)).astype(np.float32)
        noise = random.standard_normal((n, base.shape[1]), np.float32) @ root
        mixed = (1 - share) * first + share * second + 0.5 * noise
        vectors[at : at + n] = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
    return vectors


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


def measured(index: Index, queries: Vectors, truth: list[set[int]]) -> dict[str, float]:
    """Return recall and times, on one core."""
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
    return {
        "recall_at_10": right / (K * len(queries)),
        "query_median_ms": 1000 * float(np.median(times)),
        "query_95th_ms": 1000 * float(np.percentile(times, 95)),
        "query_cpu_median_ms": 1000 * float(np.median(busy)),
        "filtered_median_ms": 1000 * float(np.median(filtered)),
    }


def main() -> None:
    """Make, build, ask, write the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", required=True, help="a model folder with its tokenizer")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--kinds", nargs="+", default=["flat", "hnsw", "ivfpq"])
    parser.add_argument("--cache", type=Path, help="file for the real vectors, to embed them once")
    options = parser.parse_args()
    base = sentence_vectors(options.model, options.cache)
    base = base[np.random.default_rng(0).permutation(len(base))]
    queries, base = base[: options.queries], base[options.queries :]
    vectors = mixed_vectors(base, options.count)
    truth = exact(queries, vectors)
    note = (
        f"{base.shape[1]} dimensions, {len(queries)} queries; chosen: {choose_kind(options.count, base.shape[1])[0]}."
    )
    results = Results(f"search/{options.count:,}", options.out, ["faiss-cpu", "numpy"], note)
    with tempfile.TemporaryDirectory(dir=options.out.parent if options.out else None) as folder:
        start = time.perf_counter()
        index = Index.build(Prepared(vectors), documents(options.count), Path(folder) / "index", kind="flat")
        seconds, size = time.perf_counter() - start, index.info["bytes"]
        results.add(
            "documents", build_seconds=seconds, database_mb=size["database"] / 1e6, vectors_mb=size["vectors"] / 1e6
        )
        for kind in options.kinds:
            start = time.perf_counter()
            index.settle(kind)
            seconds = time.perf_counter() - start
            figures = measured(index, queries, truth)
            results.add(kind, build_seconds=round(seconds), index_mb=index.info["bytes"]["graph"] / 1e6, **figures)
    results.print_table()


if __name__ == "__main__":
    main()
