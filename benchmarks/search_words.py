"""What a word index costs: build, memory, bytes, and milliseconds a query in each mode, beside bm25s and FAISS alone.

    python -m benchmarks.search_words --texts FILE --count 100000 --out rows.jsonl

FILE has a paragraph a line; passages are its first ones of 200 characters or more. Queries are 6 to 12 neighboring
words of paragraphs that are not in the index. The vectors are made, since embedding so many passages takes hours on two
cores: clustered, of 384 numbers. A query is the time from its text and vector to passages with text and metadata, on
one core; embedding the question comes on top in the modes with vectors.
"""

import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import bertree
from benchmarks.common import Results, argument_parser
from bertree import Index
from bertree.search.documents import Document
from bertree.search.faiss_index import BEAM
from bertree.search.words.terms import analyzer_for

Vectors = NDArray[np.float32]
K, DIMENSION, SHORTEST = 10, 384, 200


class Prepared:
    """An encoder that knows the vectors already: it is asked for passages in their order."""

    def __init__(self, vectors: Vectors) -> None:
        self.vectors, self.dimension, self.digest, self.done = vectors, vectors.shape[1], "prepared", 0

    def embed(self, texts: Iterable[str]) -> Vectors:
        """Return the next vectors."""
        count = len(list(texts))
        self.done += count
        return self.vectors[self.done - count : self.done]


def clustered_vectors(count: int) -> Vectors:
    """Vectors around a thousand centers."""
    draw = np.random.default_rng(0)
    centers = draw.standard_normal((1000, DIMENSION), np.float32)
    vectors = centers[draw.integers(0, 1000, count)] + 0.7 * draw.standard_normal((count, DIMENSION), np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def read_texts(path: Path, count: int) -> list[str]:
    """Return paragraphs, and as many more as there are queries to be made from."""
    with path.open(encoding="utf-8") as file:
        lines = (line.strip()[:1200] for line in file)
        long = (line for line in lines if len(line) >= SHORTEST)
        return [text for text, _ in zip(long, range(count), strict=False)]


def make_queries(texts: list[str]) -> list[str]:
    """Return some neighboring words of each text."""
    draw = Random(0)
    queries = []
    for text in texts:
        words = text.split()
        length = draw.randint(6, 12)
        first = draw.randrange(max(1, len(words) - length))
        queries.append(" ".join(words[first : first + length]))
    return queries


def timed(ask: Callable[[int], object], count: int) -> dict[str, float]:
    """Return the times of queries on one core, after a few that warm up."""
    for number in range(10):
        ask(number)
    times, busy = [], []
    for number in range(count):
        start, used = time.perf_counter(), time.process_time()
        ask(number)
        times.append(1000 * (time.perf_counter() - start))
        busy.append(1000 * (time.process_time() - used))
    names = {"p50_ms": (times, 50), "p99_ms": (times, 99), "cpu_p50_ms": (busy, 50), "cpu_p99_ms": (busy, 99)}
    return {name: float(np.percentile(values, share)) for name, (values, share) in names.items()}


def main() -> None:
    """Build, ask, and write the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--kind", default="auto")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    texts = read_texts(options.texts, options.count + options.queries)
    texts, queries = texts[: options.count], make_queries(texts[options.count :])
    vectors = clustered_vectors(len(texts) + len(queries))
    asked = vectors[len(texts) :]
    results = Results(f"search-words/{len(texts):,}", options.out, ["faiss-cpu", "numpy"], f"{len(queries)} queries")

    def documents() -> Iterator[Document]:
        yield from (Document(f"d{number}", text) for number, text in enumerate(texts))

    with tempfile.TemporaryDirectory(dir=options.out.parent if options.out else None) as name:
        start, used = time.perf_counter(), time.process_time()
        index = Index.build(
            Prepared(vectors), documents(), Path(name) / "index", kind="flat", chunk=100_000, words=False
        )
        built = time.perf_counter() - start, time.process_time() - used
        start, used = time.perf_counter(), time.process_time()
        index.upgrade()
        counted = time.perf_counter() - start, time.process_time() - used
        start = time.perf_counter()
        index.settle(options.kind)
        graph = time.perf_counter() - start
        sizes = {key: value / 1e6 for key, value in index.info["bytes"].items()}
        results.add(
            "build",
            seconds=built[0],
            cpu_seconds=built[1],
            words_seconds=counted[0],
            words_cpu_seconds=counted[1],
            graph_seconds=graph,
            peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
            **{f"{key}_mb": value for key, value in sizes.items()},
        )
        for mode in ("words", "vectors", "hybrid"):
            ask = lambda n, mode=mode: index.find([queries[n]], asked[n : n + 1], K, mode=mode)  # noqa: E731
            results.add(f"{index.info['kind']}, {mode}", **timed(ask, len(queries)))
        if index._files.graph is not None:
            alone = index._files.graph.index
            if index._files.graph.kind == "hnsw":
                alone.hnsw.efSearch = BEAM  # as the index searches
            results.add("FAISS alone", **timed(lambda n: alone.search(asked[n : n + 1], K), len(queries)))
        index.close()
    model = bertree.load("default")
    results.add("embedding the question", **timed(lambda n: model.embed([queries[n]]), len(queries)))
    if find_spec("bm25s") is None:
        return
    bm25s: Any = import_module("bm25s")
    analyzer = analyzer_for("en")
    start = time.perf_counter()
    peer = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    peer.index([analyzer.terms(text) for text in texts], show_progress=False)
    seconds_alone = time.perf_counter() - start
    terms = [[term for term in analyzer.terms(query) if term in peer.vocab_dict] for query in queries]
    ask_peer = timed(lambda n: peer.retrieve([terms[n]], k=K, show_progress=False), len(queries))
    results.add("bm25s alone", seconds=seconds_alone, **ask_peer)
    results.print_table()


if __name__ == "__main__":
    main()
