"""One state of an index as its database stores it: the model, the settings and the files."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertree.errors import UserError
from bertree.files.formats import Json, parse_json
from bertree.search.chunks import Chunking
from bertree.search.faiss_index import SETTINGS
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
    dimension: int
    chunking: Chunking
    prompts: tuple[str, str] = ("", "")  # names of the model's prompts for passages and queries; "": none
    generation: int = 0
    complete: bool = False  # False while a build is under way
    next: int = 0  # number of the next vector
    dead: int = 0  # vectors in the files whose passage was removed
    parts: tuple[IndexFile, ...] = ()
    kind: str = "flat"
    asked: str = "auto"  # the requested kind
    why: str = ""
    graph: IndexFile | None = None  # the FAISS file; its count is how many of the first vectors it covers
    settings: Mapping[str, int] = field(default_factory=dict)  # search settings of the kind
    versions: Mapping[str, str] = field(default_factory=dict)
    words: tuple[IndexFile, ...] = ()  # word tables, one per file of vectors
    word_version: int = 0  # version of what made their terms; 0: the index has no words
    word_weight: float = WORD_WEIGHT
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
                return cls(
                    **_check_fields({key: item for key, item in value.items() if key not in ("format", CHECKSUM)})
                )
        except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
            raise UserError(f"{path}: has no valid state ({error}); build the index again") from None
        raise UserError(f"{path}: has format {version}, newer than this bertree reads ({FORMAT}); upgrade bertree")


def seal(value: Json) -> str:
    """Return a state as JSON, with its checksum."""
    value = {key: item for key, item in value.items() if key != CHECKSUM}
    return json.dumps(value | {CHECKSUM: hashlib.sha256(json.dumps(value).encode()).hexdigest()})


def _check_fields(value: Json) -> Json:
    """Return the fields of a state; raise KeyError, TypeError, ValueError or UserError if one is invalid."""
    for names, kind in (
        (("model", "digest", "kind", "asked", "why"), str),
        (("dimension", "generation", "next", "dead", "word_version"), int),
        (("word_weight",), float),
        (("complete",), bool),
        (("parts", "words", "prompts"), list),
        (("chunking", "settings", "versions", "rows"), dict),
    ):
        for name in names:
            _check_type(value[name], kind, name)
    chunking = value["chunking"]
    for name in ("tokens", "overlap"):
        _check_type(chunking[name], int, name)
    _check_type(chunking["language"], str, "language")
    parts, words = (tuple(map(IndexFile.from_json, value[name])) for name in ("parts", "words"))
    graph = IndexFile.from_json(value["graph"]) if value["graph"] is not None else None
    vectors = sum(part.count for part in parts)
    if not 1 <= value["dimension"] <= 1 << 20:
        raise ValueError(f"dimension {value['dimension']}")
    if value["generation"] < 0 or value["next"] < 0 or not 0 <= value["dead"] <= vectors:
        raise ValueError(f"generation {value['generation']}, next {value['next']}, dead {value['dead']} of {vectors}")
    if value["kind"] not in SETTINGS or value["asked"] not in (*SETTINGS, "auto"):
        raise ValueError(f"kind '{value['kind']}', asked '{value['asked']}'")
    if not 0 <= value["word_weight"] <= 1:
        raise ValueError(f"word_weight {value['word_weight']}")
    if (graph is None) != (value["kind"] == "flat"):
        raise ValueError(f"kind {value['kind']} {'without' if graph is None else 'with'} a graph")
    for name in SETTINGS[value["kind"]]:
        if _check_type(value["settings"][name], int, name) < 1:
            raise ValueError(f"{name} {value['settings'][name]}")
    first, second = (str(_check_type(prompt, str, "prompts")) for prompt in value["prompts"])
    for name, number in value["rows"].items():
        if _check_type(number, int, name) < 0:
            raise ValueError(f"{name} {number}")
    files = {"parts": parts, "words": words, "graph": graph, "rows": RowTotals(**value["rows"])}
    return value | files | {"chunking": Chunking(**chunking), "prompts": (first, second)}


def _check_type(value: Any, kind: type, name: str) -> Any:
    if type(value) is not kind:  # not isinstance: True is not a number here
        raise TypeError(f"{name} {str(value)[:40]!r}")
    return value
