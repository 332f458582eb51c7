"""One state of an index as its database stores it: the model, the settings and the files."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated

from bertree.config.settings import AtLeast, AtMost, OneOf, Share, read
from bertree.errors import UserError
from bertree.files.formats import Json, parse_json
from bertree.search.chunks import Chunking
from bertree.search.faiss_index import KINDS, SETTINGS
from bertree.search.vector_files import IndexFile

FORMAT = 3  # 1: without words; 2: without checksums of rows and of the state
CHECKSUM = "sha256"  # of a state, in its JSON
WORD_WEIGHT = 0.67  # of words in a hybrid search; the rest is that of vectors


@dataclass
class RowTotals:
    """What the rows of an index add up to."""

    documents: int = 0
    labels: int = 0
    checksum: int = 0  # sum of the checksums of documents and passages, modulo 2^64

    def change(self, checksums: Iterable[int], sign: int = 1) -> None:
        """Add rows with these checksums, or remove them."""
        self.checksum = (self.checksum + sign * sum(checksums)) % (1 << 64)


@dataclass(frozen=True, kw_only=True)
class IndexState:
    """One generation of an index: the model it belongs to, its settings and its files."""

    model: str  # path of the model
    digest: str  # of its weights
    dimension: Annotated[int, AtLeast(1), AtMost(1 << 20)]
    chunking: Chunking
    prompts: tuple[str, str] = ("", "")  # names of the model's prompts for passages and queries; "": none
    generation: Annotated[int, AtLeast(0)] = 0
    complete: bool = False  # False while a build is under way
    next: Annotated[int, AtLeast(0)] = 0  # number of the next vector
    dead: Annotated[int, AtLeast(0)] = 0  # vectors in the files whose passage was removed
    parts: tuple[IndexFile, ...] = ()
    kind: Annotated[str, OneOf(KINDS)] = "flat"
    asked: Annotated[str, OneOf((*KINDS, "auto"))] = "auto"  # the requested kind
    why: str = ""
    graph: IndexFile | None = None  # the FAISS file; its count is how many of the first vectors it covers
    settings: Mapping[str, int] = field(default_factory=dict)  # search settings of the kind
    versions: Mapping[str, str] = field(default_factory=dict)
    words: tuple[IndexFile, ...] = ()  # word tables, one per file of vectors
    word_version: int = 0  # version of what made their terms; 0: the index has no words
    word_weight: Annotated[float, Share(closed=True)] = WORD_WEIGHT
    rows: RowTotals = field(default_factory=RowTotals)

    @property
    def vectors(self) -> int:
        """Number of vectors in the files, including dead ones."""
        return sum(part.count for part in self.parts)

    @property
    def files(self) -> set[str]:
        """Names of the vector, word and graph files."""
        return {part.name for part in self.all_parts}

    @property
    def all_parts(self) -> tuple[IndexFile, ...]:
        """The vector, word and graph files."""
        return (*self.parts, *self.words, *([self.graph] if self.graph else []))

    def to_json(self) -> str:
        """Return the state as JSON."""
        return seal({"format": FORMAT} | asdict(self))

    @classmethod
    def from_json(cls, text: str, path: Path) -> "IndexState":
        """Parse and check a state."""
        try:
            value = parse_json(text, "state")
            if (version := int(value["format"])) <= FORMAT:
                if version == FORMAT and seal(value) != text:
                    raise ValueError("its checksum differs")
                if version == 1:
                    value |= {"words": [], "word_version": 0, "word_weight": WORD_WEIGHT}
                if version < FORMAT:
                    value["rows"] = asdict(RowTotals())
                return _read_fields({key: item for key, item in value.items() if key not in ("format", CHECKSUM)})
        except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
            raise UserError(f"{path}: has no valid state ({error}); build the index again") from None
        raise UserError(f"{path}: has format {version}, newer than this bertree reads ({FORMAT}); upgrade bertree")


def seal(value: Json) -> str:
    """Return a state as JSON, with its checksum."""
    value = {key: item for key, item in value.items() if key != CHECKSUM}
    return json.dumps(value | {CHECKSUM: hashlib.sha256(json.dumps(value).encode()).hexdigest()})


def _read_fields(value: Json) -> IndexState:
    """Return the state with these fields; raise KeyError, TypeError, ValueError or UserError if one is invalid."""
    model, rows = value["model"], value["rows"]  # broken characters and numbers of 64 bits, which `read` refuses
    if type(model) is not str or not all(type(number) is int and number >= 0 for number in rows.values()):
        raise TypeError(f"model {str(model)[:40]!r} or rows {str(rows)[:80]}")
    state: IndexState = read(IndexState, value | {"model": "", "rows": {}}, "state")
    if missing := next((each.name for each in fields(IndexState) if each.name not in value), None):
        raise KeyError(missing)
    if state.dead > state.vectors:
        raise ValueError(f"dead {state.dead} of {state.vectors}")
    if (state.graph is None) != (state.kind == "flat"):
        raise ValueError(f"kind {state.kind} {'without' if state.graph is None else 'with'} a graph")
    for name in SETTINGS[state.kind]:
        if state.settings[name] < 1:
            raise ValueError(f"{name} {state.settings[name]}")
    return replace(state, model=model, rows=RowTotals(**rows))
