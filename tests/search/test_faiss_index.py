"""The kinds: which is chosen, what each finds beside comparing with all, with filters and after changes."""

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertree.errors import UserError
from bertree.search import faiss_index, open_files, writer
from bertree.search.documents import Document
from bertree.search.faiss_index import cell_count, choose_kind, code_size
from bertree.search.index import Index
from tests.support.shared import suite_has

pytest.importorskip("faiss")
WIDTH, COUNT = 32, 2600


class Given:
    """Clustered vectors; the text of a passage is the number of its vector."""

    digest, dimension = "given", WIDTH

    def __init__(self, count: int = 2 * COUNT) -> None:
        random = np.random.default_rng(0)
        centres = random.standard_normal((60, WIDTH))
        self.vectors = centres[random.integers(0, 60, count)] + 0.7 * random.standard_normal((count, WIDTH))
        self.vectors = (self.vectors / np.linalg.norm(self.vectors, axis=1, keepdims=True)).astype(np.float32)

    def embed(self, texts: Any) -> Any:
        return self.vectors[[int(text.split()[1]) for text in texts]]

    def documents(self, first: int, last: int) -> list[Document]:
        return [
            Document(f"d{n}", f"vector {n}", metadata={"tenth": n % 10, "hundredth": n % 100, "half": n % 2})
            for n in range(first, last)
        ]


def recall(index: Index, model: Given, alive: np.ndarray, where: dict[str, int] | None = None) -> float:
    queries = Given(50).vectors + 0.05
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    for key, value in (where or {}).items():
        alive = alive[alive % {"tenth": 10, "hundredth": 100, "half": 2}[key] == value]
    truth = alive[np.argsort(-(queries @ model.vectors[alive].T), axis=1, kind="stable")[:, :10]]
    right = 0
    for query, row, hits in zip(queries, truth, index.nearest(queries, 10, where=where), strict=True):
        assert len(hits) == min(10, len(alive))
        documents = [int(hit.document[1:]) for hit in hits]
        assert len(set(documents)) == len(documents)
        assert set(documents) <= set(alive.tolist()), "only what is there and fits"
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert [hit.score for hit in hits] == pytest.approx(model.vectors[documents] @ query, abs=1e-6)
        right += len(set(documents) & set(row.tolist()))
    return right / truth.size


@pytest.mark.slow
@pytest.mark.parametrize("kind", suite_has(["hnsw", "ivfpq"], ["flat", "hnsw", "ivfpq"]))
def test_finds_what_comparing_finds(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "FEW_NUMBERS", 64 * WIDTH)  # so that filters meet the graph, too
    monkeypatch.setattr(writer, "TAIL", 500 * WIDTH)
    model = Given()
    least = 1.0 if kind == "flat" else 0.95
    index = Index.build(model, model.documents(0, COUNT), tmp_path / "index", kind=kind)
    alive = np.arange(COUNT)
    assert index.info["kind"] == kind
    assert recall(index, model, alive) >= least
    for where in ({"half": 1}, {"tenth": 3}, {"hundredth": 7}, {"half": 0, "tenth": 4}):
        assert recall(index, model, alive, where) >= least
    index.add(model.documents(COUNT, COUNT + 300))  # stays beside the graph
    alive = np.arange(COUNT + 300)
    assert index.info["beside"] == (0 if kind == "flat" else 300)
    assert recall(index, model, alive) >= least
    index.remove([f"d{n}" for n in range(600)])
    alive = alive[600:]
    assert index.info["removed"] == 600
    assert recall(index, model, alive) >= least
    assert recall(index, model, alive, {"half": 1}) >= least
    index.add(model.documents(COUNT + 300, COUNT + 1000))  # too much to stay beside it
    alive = np.arange(600, COUNT + 1000)
    assert index.info["beside"] == 0
    assert recall(index, model, alive) >= least
    index.remove(where={"tenth": [0, 1, 2, 3]})  # tidied up
    alive = alive[alive % 10 > 3]
    assert index.info["removed"] == 0
    assert recall(index, model, alive) >= least
    assert recall(index, model, alive, {"half": 1}) >= least
    index.verify()


@pytest.mark.slow
def test_rebuilt_as_another_kind(tmp_path: Path) -> None:
    model = Given()
    index = Index.build(model, model.documents(0, COUNT), tmp_path / "index", kind="ivfpq")
    asked = index.nearest(model.vectors[:20], 5)
    for kind in ("hnsw", "flat", "ivfpq"):
        index.settle(kind)
        assert index.info["kind"] == kind
        hits = index.nearest(model.vectors[:20], 5)
        assert [row[0].document for row in hits] == [f"d{n}" for n in range(20)]
        assert np.allclose([h.score for h in hits[0]], [h.score for h in asked[0]], atol=1e-6)
    with pytest.raises(UserError, match="kind 'hsnw': unknown, did you mean 'hnsw'"):
        index.settle("hsnw")


def test_grown_out_of_its_cells(tmp_path: Path) -> None:
    model = Given()
    index = Index.build(model, model.documents(0, 1200), tmp_path / "index", kind="ivfpq")
    assert index.info["settings"]["trained"] == 1200
    index.add(model.documents(1200, COUNT))
    assert index.info["settings"]["trained"] == COUNT, "twice as many are worth new cells"


def test_the_kind_follows_from_the_number_and_width_of_the_vectors() -> None:
    assert choose_kind(1000, 384)[0] == "flat"
    assert choose_kind(40_000, 384)[0] == "flat"
    assert choose_kind(100_000, 384)[0] == "hnsw"
    assert choose_kind(1_000_000, 384)[0] == "ivfpq"
    assert choose_kind(200_000, 1 << 16)[0] == "ivfpq", "no memory for a graph"
    for count in (10, 100_000, 10_000_000):
        assert f"{count:,} vectors" in choose_kind(count, 384)[1]
    assert choose_kind(10, 384, "ivfpq")[0] == "flat"
    assert choose_kind(10, 384, "hnsw") == ("hnsw", "asked for")
    assert [cell_count(n) for n in (1, 100, 10_000, 100_000, 1_000_000)] == [1, 1, 128, 512, 2048]
    assert [code_size(d) for d in (384, 768, 50, 7, 1)] == [96, 192, 25, 7, 1]


def test_without_faiss_other_kinds_are_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Given()
    real = builtins.__import__

    def absent(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "faiss":
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    index = Index.build(model, model.documents(0, 50), tmp_path / "index")
    assert index.nearest(model.vectors[:1], 1)[0][0].document == "d0", "a small index needs none of it"
    with pytest.raises(UserError, match=r"pip install 'bertree\[search\]'"):
        index.settle("hnsw")
    assert index.info["kind"] == "flat"
    other = Given()
    monkeypatch.setattr(other, "embed", lambda texts: pytest.fail("it is said before the work"))
    with pytest.raises(UserError, match=r"pip install 'bertree\[search\]'"):
        Index.build(other, other.documents(0, 50), tmp_path / "other", kind="ivfpq")


def test_without_faiss_a_large_index_is_flat_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Given()
    monkeypatch.setattr(faiss_index, "FLAT", 100)
    monkeypatch.setattr(writer, "find_spec", lambda name: None)
    index = Index.build(model, model.documents(0, 50), tmp_path / "index")
    assert index.info["kind"] == "flat"
    assert "FAISS is not installed" in index.info["why"]


def test_threads_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert faiss_index.import_faiss().omp_get_max_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hnsw", "ivfpq"])
def test_as_many_are_found_as_asked_for(kind: str, tmp_path: Path) -> None:
    """Also of copies of one vector, which a graph does not lead to, and of more than the searched cells hold."""
    model = Given()
    model.vectors[::3] = model.vectors[0]
    index = Index.build(model, model.documents(0, COUNT), tmp_path / "index", kind=kind)
    index.remove([f"d{n}" for n in range(0, 300, 2)])
    for hits in index.nearest(Given(3).vectors, COUNT):
        assert len({hit.document for hit in hits}) == len(hits) == COUNT - 150
    assert {len(hits) for hits in index.nearest(Given(3).vectors, 1500)} == {1500}


@pytest.mark.parametrize(("kind", "width"), [("hnsw", 100), ("ivfpq", 900)])
def test_a_larger_pool_costs_no_wider_search(kind: str, width: int, tmp_path: Path) -> None:
    model = Given(1200)
    with Index.build(model, model.documents(0, 1200), tmp_path / "index", kind=kind) as index:
        index.nearest(model.vectors[:1], 1)
        files = index._files
        assert files.graph is not None
        queries = model.vectors[:20]
        pools = list(files.graph.candidates(queries, 100, sure=10))
        assert {len(pool) for pool in pools} == {width}
        nearest = [set(positions.tolist()) for positions, _ in files.nearest(queries, 10)]
        assert all(best <= set(pool.tolist()) for best, pool in zip(nearest, pools, strict=True))
