"""One state of an index: what it is tied to and which files make it up, as its database keeps it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertree.errors import UserError
from bertree.files import Json
from bertree.search.chunks import Chunking
from bertree.search.faiss_index import SETTINGS
from bertree.search.vector_files import IndexFile

FORMAT = 1


@dataclass(frozen=True)
class IndexState:
    """One generation of an index: the model it is tied to, its settings and the files that make it up."""

    model: str  # where the model was found
    digest: str  # of its weights
    dimension: int
    chunking: Chunking
    prompts: tuple[str, str] = ("", "")  # the model's own, by name, for a passage and for a question; "": none
    generation: int = 0
    complete: bool = False  # False while a build goes on
    next: int = 0  # number of the next vector
    dead: int = 0  # vectors of the files that belong to no passage any more
    parts: tuple[IndexFile, ...] = ()
    kind: str = "flat"
    asked: str = "auto"  # the kind somebody wanted
    why: str = ""
    graph: IndexFile | None = None  # the file of FAISS; its count is how many of the first vectors it covers
    settings: Mapping[str, int] = field(default_factory=dict)  # of the kind, for searching
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def vectors(self) -> int:
        """In the files, dead ones too."""
        return sum(part.count for part in self.parts)

    @property
    def files(self) -> set[str]:
        """Names of the files beside the database."""
        return {part.name for part in self.parts} | ({self.graph.name} if self.graph else set())

    def to_json(self) -> str:
        """As it is kept."""
        return json.dumps({"format": FORMAT} | asdict(self))

    @classmethod
    def from_json(cls, text: str, path: Path) -> "IndexState":
        """From what was kept; anything else is refused."""
        try:
            value = json.loads(text)
            if (found := int(value.pop("format"))) <= FORMAT:
                return cls(**_check_fields(value))
        except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
            raise UserError(f"{path}: does not say what the index is ({error}); build the index again") from None
        raise UserError(f"{path}: is of format {found}, newer than this bertree reads ({FORMAT}); upgrade it")


def _check_fields(value: Json) -> Json:
    """The fields of a state, each of its type; KeyError, TypeError, ValueError or UserError where one is not."""
    for names, kind in (
        (("model", "digest", "kind", "asked", "why"), str),
        (("dimension", "generation", "next", "dead"), int),
        (("complete",), bool),
        (("parts", "prompts"), list),
        (("chunking", "settings", "versions"), dict),
    ):
        for name in names:
            _check_type(value[name], kind, name)
    chunking = value["chunking"]
    for name in ("tokens", "overlap"):
        _check_type(chunking[name], int, name)
    parts = tuple(map(IndexFile.from_json, value["parts"]))
    graph = IndexFile.from_json(value["graph"]) if value["graph"] is not None else None
    vectors = sum(part.count for part in parts)
    if not 1 <= value["dimension"] <= 1 << 20:
        raise ValueError(f"dimension {value['dimension']}")
    if value["generation"] < 0 or value["next"] < 0 or not 0 <= value["dead"] <= vectors:
        raise ValueError(f"generation {value['generation']}, next {value['next']}, dead {value['dead']} of {vectors}")
    if value["kind"] not in SETTINGS or value["asked"] not in (*SETTINGS, "auto"):
        raise ValueError(f"kind '{value['kind']}', asked '{value['asked']}'")
    if (graph is None) != (value["kind"] == "flat"):
        raise ValueError(f"kind {value['kind']} {'without' if graph is None else 'with'} a graph")
    for name in SETTINGS[value["kind"]]:
        if _check_type(value["settings"][name], int, name) < 1:
            raise ValueError(f"{name} {value['settings'][name]}")
    first, second = (str(_check_type(prompt, str, "prompts")) for prompt in value["prompts"])
    return value | {"chunking": Chunking(**chunking), "parts": parts, "graph": graph, "prompts": (first, second)}


def _check_type(value: Any, kind: type, name: str) -> Any:
    if type(value) is not kind:  # True is no number here
        raise TypeError(f"{name} {str(value)[:40]!r}")
    return value
