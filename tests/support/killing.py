"""Changes to an index in a process of their own, which is killed at some moment."""

import os
import signal
import sys
from collections import Counter
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from bertree.inference.load import load
from bertree.search import writer
from bertree.search.database import DATABASE
from bertree.search.index import Index
from bertree.search.words.terms import analyzer_for
from tests.support.processes import PROCESSES
from tests.support.standin import Words

WATCHED = tuple(
    f"search/{name}.py"
    for name in ("writer", "passage_store", "checked_rows", "vector_files", "faiss_index", "open_files")
)
WATCHED += ("bertree/files/atomic.py",)
Record = dict[str, Any]


def records(version: int, count: int = 120) -> list[Record]:
    """Documents, of which every third says something else in every version."""
    return [
        {
            "id": f"d{n}",
            "text": " ".join(
                f"Word{n}x{s} stands in version {version if n % 3 == 0 else 0}." for s in range(1 + n % 5)
            ),
            "group": f"g{n % 4}",
        }
        for n in range(count)
    ]


def work(folder: Path, version: int, kind: str, log: Path, lines: int = 0, model_folder: Path | None = None) -> None:
    """Build an index, or add to it; after `lines` lines of our code, die. `model_folder`: of a real model."""
    writer.COMMIT_ROWS, writer.EMBED_BATCH, writer.MERGE = 24, 10, 3
    if lines:
        left = lines

        def trace(frame: FrameType, event: str, arguments: object) -> Any:
            nonlocal left
            if not frame.f_code.co_filename.endswith(WATCHED):
                return None
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
    model = load(model_folder) if model_folder else Words(16)
    finished = (folder / DATABASE).is_file() and Index.open(folder).info["complete"]
    if version == 0 and not finished:  # else it was killed after its last commit
        Index.build(model, records(0), folder, kind=kind, chunk=12, overlap=3)
    elif version:
        index = Index.open(folder, model)
        index.add(records(version))
        index.remove(where={"group": "g3"})
    log.write_text("done")


def start(*arguments: Any) -> ForkServerProcess:
    process = PROCESSES.Process(target=work, args=arguments)
    process.start()
    return process


def contents(folder: Path, model: Any = None) -> dict[str, Any]:
    """All of an index that counts: every document with its passages, metadata and vectors."""
    model = model or Words(16)
    index = Index.open(folder, model)
    index.verify()
    documents: dict[str, Any] = {}
    with index._store.transaction() as state:
        files = index._files.for_state(state, index._store)
        rows = index._store._base.execute(
            "SELECT d.id, d.metadata, d.chunks, c.number, c.first, c.last, c.text FROM documents d "
            "JOIN chunks c ON c.document = d.number ORDER BY d.id, c.first"
        ).fetchall()
        labels = index._store._base.execute(
            "SELECT d.id, l.key, l.value FROM labels l JOIN documents d ON d.number = l.document"
        ).fetchall()
    numbers = {number: position for position, number in enumerate(files.vectors.numbers.tolist())}
    dead = set(files.vectors.numbers[files.dead].tolist())
    assert len(files.vectors) - len(dead) == len(rows) == len(index), "every vector is a passage's, or dead"
    for id, metadata, chunks, number, first, last, text in rows:
        assert number not in dead
        entry = documents.setdefault(id, {"metadata": metadata, "count": chunks, "passages": [], "labels": set()})
        entry["passages"].append((first, last, text))
    for id, key, value in labels:
        documents[id]["labels"].add((key, value))
    for id, entry in documents.items():
        assert entry["count"] == len(entry["passages"]), f"{id} is whole"
    if rows:
        rows.sort(key=lambda row: numbers[row[3]])
        texts = [row[6] for row in rows]
        positions = np.array([numbers[row[3]] for row in rows])
        fresh = model.embed(texts)
        fresh /= np.linalg.norm(fresh, axis=1, keepdims=True)
        assert np.allclose(files.vectors[positions], fresh, atol=1e-6), "each passage has its own vector"
        analyzer = analyzer_for(state.chunking.language)
        terms = [Counter(analyzer.terms(text)) for text in texts]
        expected = {
            (at, term): n for at, counts in zip(positions.tolist(), terms, strict=True) for term, n in counts.items()
        }
        assert files.words is not None
        indexed = {
            (at, term): n
            for term in {term for counts in terms for term in counts}
            for at, n in zip(*(column.tolist() for column in files.words.postings([term])[:2]), strict=True)
        }
        assert indexed == expected, "each passage has its own words"
    index.close()
    return documents
