"""The open files of one state of an index, and a description of the index."""

from dataclasses import asdict, dataclass, field
from importlib import metadata as packages
from pathlib import Path

import numpy as np

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.search.database import DATABASE
from bertree.search.faiss_index import FaissIndex
from bertree.search.passage_store import PassageStore
from bertree.search.state import FORMAT, IndexState
from bertree.search.vector_files import IndexFile, MappedVectors, Numbers, sha256_of
from bertree.version import __version__


@dataclass(frozen=True)
class OpenFiles:
    """The files a search reads. Files that were deleted meanwhile can still be read while they are open."""

    folder: Path
    state: IndexState | None = None
    vectors: MappedVectors = field(default_factory=lambda: MappedVectors(Path(), (), 1))
    graph: FaissIndex | None = None
    dead: Numbers = field(default_factory=lambda: np.empty(0, np.int64))  # positions, sorted

    def for_state(self, state: IndexState, store: PassageStore) -> "OpenFiles":
        """Return the files of a state, within its transaction; unchanged files stay open."""
        if self.state is not None and self.state.generation == state.generation:
            return self
        vectors = MappedVectors(self.folder, state.parts, state.dimension)
        graph = None
        if state.graph is not None:
            same = self.state is not None and self.state.graph == state.graph
            graph = self.graph if same else None
            if graph is None:
                graph = FaissIndex.read(self.folder, state.graph, state.kind, dict(state.settings), state.dimension)
            if graph.count > len(vectors):
                raise UserError(f"{self.folder}: the files do not belong together; build the index again")
        dead = vectors.positions(store.dead()) if state.dead else np.empty(0, np.int64)
        return OpenFiles(self.folder, state, vectors, graph, dead)


def describe_index(folder: Path, store: PassageStore) -> Json:
    """Describe an index: its contents, size, model and settings."""
    with store.transaction() as state:
        documents, passages, sources = store.count()
        keys = store.metadata_keys()
    vectors = sum(part.bytes for part in state.parts)
    graph = state.graph.bytes if state.graph else 0
    database = sum(path.stat().st_size for path in folder.glob(f"{DATABASE}*"))
    return {
        "path": str(folder),
        "format": FORMAT,
        "generation": state.generation,
        "complete": state.complete,
        "kind": state.kind,
        "why": state.why,
        "settings": dict(state.settings),
        "documents": documents,
        "passages": passages,
        "removed": state.dead,  # vectors of removed passages that are still in the files
        "beside": state.vectors - state.graph.count if state.graph else 0,  # vectors that are not in the graph yet
        "dimension": state.dimension,
        "model": {"path": state.model, "digest": state.digest},
        "prompts": list(state.prompts),
        "chunking": asdict(state.chunking),
        "bytes": {"vectors": vectors, "graph": graph, "database": database, "all": vectors + graph + database},
        "sources": sources,
        "metadata": keys,
        "versions": dict(state.versions),
    }


def verify_files(folder: Path, store: PassageStore) -> None:
    """Read every byte and report the first file whose checksum differs."""
    store.check()
    checked: set[IndexFile] = set()
    before: IndexState | None = None
    while True:
        with store.transaction() as state:
            parts = (*state.parts, *([state.graph] if state.graph else []))
        try:
            for part in parts:
                path = folder / part.name
                if part not in checked and sha256_of(path) != part.hash:
                    raise UserError(f"{path}: is damaged; build the index again, or restore this file")
                checked.add(part)
            return
        except FileNotFoundError:
            if state == before:  # otherwise a writer may have replaced it: there is a newer state
                raise UserError(f"{path}: is missing; build the index again, or restore this file") from None
            before = state


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries an index is made with."""
    found = {"bertree": __version__}
    for name in ("faiss-cpu", "numpy"):
        try:
            found[name] = packages.version(name)
        except packages.PackageNotFoundError:
            continue
    return found
