"""The tools `search` and `read` over one or several indexes."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.search.hit import Passage
from bertree.search.searcher import Searcher
from bertree.serve.mcp.protocol import Tool

MOST_HITS, MOST_BEFORE = 50, 50
CHARACTERS, MOST_CHARACTERS = 4_000, 20_000  # of an answer of `read`
LATEST_START = 1 << 40
MOST_QUERY = 10_000  # characters
TYPES = {str: "a text", int: "a whole number", dict: "an object"}
INSTRUCTIONS = (
    "Searches the user's documents by meaning. Use search with a question or a description of what is looked for, then "
    "read to see the text around a hit. Quote the document of what you use."
)
VALUE = {"type": ["string", "number", "boolean"]}


def make_tools(indexes: Mapping[str, Searcher]) -> list[Tool]:
    """Return the tools; with several indexes each takes the name of one."""
    tools = IndexTools(indexes)
    which: Json = {"type": "string", "enum": list(indexes), "description": "Which index; the first if left out."}
    shared: Json = {"index": which} if len(indexes) > 1 else {}
    hit = "Each hit has the text of a passage, its document, where it starts and ends in it, and a score (the cosine)."
    search: Json = {
        "query": {"type": "string", "description": "A question, or a description of what to find."},
        "k": {"type": "integer", "minimum": 1, "maximum": MOST_HITS, "default": 5, "description": "Number of hits."},
        "where": {
            "type": "object",
            "additionalProperties": {"anyOf": [VALUE, {"type": "array", "items": VALUE}]},
            "description": "Only documents with these metadata values; of a list, any.",
        },
    }
    read: Json = {
        "document": {"type": "string", "description": "The document of a hit."},
        "start": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "Where to read from: the start of a hit.",
        },
        "before": {
            "type": "integer",
            "minimum": 0,
            "maximum": MOST_BEFORE,
            "default": 0,
            "description": "Passages to read before the one at start.",
        },
        "characters": {
            "type": "integer",
            "minimum": 1,
            "maximum": MOST_CHARACTERS,
            "default": CHARACTERS,
            "description": "About how much to read.",
        },
    }
    return [
        Tool(
            "search",
            f"Find passages by meaning in {tools.describe()}. {hit}",
            _schema(search | shared, ["query"]),
            tools.search,
        ),
        Tool(
            "read",
            "Read a document, or the text around a hit (its start, and before=2). next_start says where more follows.",
            _schema(read | shared, ["document"]),
            tools.read,
        ),
    ]


def _schema(properties: Json, required: Sequence[str]) -> Json:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


class IndexTools:
    """Searches and reads indexes with the arguments that a client sends."""

    def __init__(self, indexes: Mapping[str, Searcher]) -> None:
        self._indexes = dict(indexes)

    def describe(self) -> str:
        """Say in a few words what can be searched."""
        found = []
        for name, index in self._indexes.items():
            info = index.info
            keys = f" with the metadata {', '.join(info['metadata'][:20])}" if info["metadata"] else ""
            found.append(f"{name} ({info['documents']:,} documents{keys})")
        return "; ".join(found)

    def search(self, arguments: Json) -> Json:
        """Return the passages nearest to a query."""
        index = self._take(arguments, ("query", "k", "where"))
        query = _argument(arguments, "query", str)
        k = _bounded(arguments, "k", 5, 1, MOST_HITS)
        if len(query) > MOST_QUERY:
            raise UserError(f"query: has {len(query):,} characters; at most {MOST_QUERY:,} are read")
        where = _argument(arguments, "where", dict, {})
        return {"hits": [hit.json() for hit in index.search(query, k, where=where)]}

    def read(self, arguments: Json) -> Json:
        """Return the text of a document, or of the passages around a place in it."""
        index = self._take(arguments, ("document", "start", "before", "characters"))
        id = _argument(arguments, "document", str)
        start = _bounded(arguments, "start", 0, 0, LATEST_START)
        before = _bounded(arguments, "before", 0, 0, MOST_BEFORE)
        most = _bounded(arguments, "characters", CHARACTERS, 1, MOST_CHARACTERS)
        passages = index.document(id)
        if not passages:
            raise UserError(f"document {id[:200]!r}: there is none of this name; search names the documents there are")
        at = max((n for n, passage in enumerate(passages) if passage.start <= start), default=0)
        first = max(0, at - before)
        last = first + 1
        while last < len(passages) and passages[last].end - passages[first].start <= most:
            last += 1
        rest = passages[last].start if last < len(passages) else None
        return _read_result(passages[first:last]) | {"next_start": rest}

    def _take(self, arguments: Json, known: Sequence[str]) -> Searcher:
        """Return the index that is asked; refuse arguments that a tool does not have."""
        names = (*known, "index")
        for name in arguments:
            if name not in names:
                raise UserError(f"{str(name)[:80]}: there is no such argument; {suggest(name, names)}")
        name = _argument(arguments, "index", str, next(iter(self._indexes)))
        if name not in self._indexes:
            raise UserError(f"index {name[:80]!r}: there is none of this name; {suggest(name, self._indexes)}")
        return self._indexes[name]


def _read_result(passages: Sequence[Passage]) -> Json:
    """Return passages that follow each other as one text: what two of them share is there once."""
    text, end = "", passages[0].start
    for passage in passages:
        gap = passage.start - end  # of blanks, which no passage holds
        text += "\n" * min(gap, 2) + passage.text if gap >= 0 else passage.text[-gap:]
        end = max(end, passage.end)
    first = passages[0]
    return {
        "document": first.document,
        "source": first.source,
        "start": first.start,
        "end": end,
        "text": text,
        "metadata": dict(first.metadata),
    }


def _argument(arguments: Json, name: str, kind: type, default: Any = None) -> Any:
    """Return an argument of a type; without a default it must be there."""
    value = arguments.get(name, default)
    if value is None and default is None:
        raise UserError(f"{name}: is missing")
    if type(value) is not kind:
        raise UserError(f"{name}: must be {TYPES[kind]}, not {str(value)[:80]!r}")
    return value


def _bounded(arguments: Json, name: str, default: int, low: int, high: int) -> int:
    value: int = _argument(arguments, name, int, default)
    if not low <= value <= high:
        raise UserError(f"{name}: must be from {low} to {high:,}, not {value}")
    return value
