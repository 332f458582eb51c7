"""Search as a tool for assistants: `search` and `read` over indexes, by standard input and output."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import PurePath
from typing import Any, NamedTuple

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.inference.embedding import TextEncoder
from bertree.search.index import open_index
from bertree.search.mcp.protocol import Tool, serve_tools
from bertree.search.passages import Passage
from bertree.search.postgres.location import SCHEMA, TABLE, is_address
from bertree.search.ranking import MODES
from bertree.search.searcher import Searcher

MOST_QUERY = 10_000  # characters


class IntegerArgument(NamedTuple):
    """A whole number that a tool takes."""

    default: int
    low: int
    high: int
    description: str
    bounded: bool = True  # the schema names the highest value

    def schema(self) -> Json:
        """Return the JSON schema."""
        limits = {"minimum": self.low} | ({"maximum": self.high} if self.bounded else {})
        return {"type": "integer", **limits, "default": self.default, "description": self.description}


INTEGERS = {
    "k": IntegerArgument(5, 1, 50, "Number of hits."),
    "start": IntegerArgument(0, 0, 1 << 40, "Where to read from: the start of a hit.", bounded=False),
    "before": IntegerArgument(0, 0, 50, "Passages to read before the one at start."),
    "characters": IntegerArgument(4_000, 1, 20_000, "About how much to read."),
}
TYPES = {str: "a text", int: "a whole number", dict: "an object", bool: "true or false"}
INSTRUCTIONS = (
    "Searches the user's documents by meaning and by words. Use search with a question or a description of what is "
    "looked for, then read to see the text around a hit. Quote the document of what you use."
)
VALUE = {"type": ["string", "number", "boolean"]}
Load = Callable[[str], TextEncoder]  # a model by its name or path


def make_tools(indexes: Mapping[str, Searcher]) -> list[Tool]:
    """Return the tools; with several indexes each takes the name of one."""
    tools = IndexTools(indexes)
    which: Json = {"type": "string", "enum": list(indexes), "description": "Which index; the first if left out."}
    shared: Json = {"index": which} if len(indexes) > 1 else {}
    hit = (
        "Each hit has the text of a passage, its document, where it starts and ends in it, a score, its ranks by "
        "vectors and by words (null: not among the best), and the places of shared words."
    )
    search: Json = {
        "query": {"type": "string", "description": "A question, or a description of what to find."},
        "k": INTEGERS["k"].schema(),
        "mode": {
            "type": "string",
            "enum": list(MODES),
            "description": "By meaning and words (hybrid), by meaning (vectors), or by words (names, codes); hybrid if "
            "left out.",
        },
        "where": {
            "type": "object",
            "additionalProperties": {"anyOf": [VALUE, {"type": "array", "items": VALUE}]},
            "description": "Only documents with these metadata values; of a list, any.",
        },
        "rerank": {
            "type": "boolean",
            "default": False,
            "description": "Compare the query with the best 50 passages token by token: a better order, but slower.",
        },
    }
    read: Json = {
        "document": {"type": "string", "description": "The document of a hit."},
        **{name: INTEGERS[name].schema() for name in ("start", "before", "characters")},
    }
    return [
        Tool(
            "search",
            f"Find passages by meaning and by words in {tools.describe()}. {hit}",
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
        """Describe the indexes in a few words."""
        descriptions = []
        for name, index in self._indexes.items():
            info = index.info
            keys = f" with the metadata {', '.join(info['metadata'][:20])}" if info["metadata"] else ""
            descriptions.append(f"{name} ({info['documents']:,} documents{keys})")
        return "; ".join(descriptions)

    def search(self, arguments: Json) -> Json:
        """Return the best passages for a query."""
        index = self._index(arguments, ("query", "k", "mode", "where", "rerank"))
        query = _argument(arguments, "query", str)
        k = _integer(arguments, "k")
        if len(query) > MOST_QUERY:
            raise UserError(f"query: has {len(query):,} characters; at most {MOST_QUERY:,} are read")
        where = _argument(arguments, "where", dict, {})
        mode = _argument(arguments, "mode", str, "") or None
        reranker: Any = index.model if _argument(arguments, "rerank", bool, False) else None
        return {"hits": [hit.json() for hit in index.search(query, k, mode=mode, where=where, rerank=reranker)]}

    def read(self, arguments: Json) -> Json:
        """Return the text of a document, or of the passages around a position in it."""
        index = self._index(arguments, ("document", "start", "before", "characters"))
        id = _argument(arguments, "document", str)
        start = _integer(arguments, "start")
        before = _integer(arguments, "before")
        most = _integer(arguments, "characters")
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

    def _index(self, arguments: Json, accepted: Sequence[str]) -> Searcher:
        """Return the index that the arguments name; refuse arguments that a tool does not have."""
        names = (*accepted, "index")
        for name in arguments:
            if name not in names:
                raise UserError(f"{str(name)[:80]}: there is no such argument; {suggest(name, names)}")
        name = _argument(arguments, "index", str, next(iter(self._indexes)))
        if name not in self._indexes:
            raise UserError(f"index {name[:80]!r}: there is none of this name; {suggest(name, self._indexes)}")
        return self._indexes[name]


def _read_result(passages: Sequence[Passage]) -> Json:
    """Return consecutive passages as one text, without repeating their overlap."""
    text, end = "", passages[0].start
    for passage in passages:
        gap = passage.start - end  # of white space, which no passage contains
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


def _integer(arguments: Json, name: str) -> int:
    default, low, high, *_ = INTEGERS[name]
    value: int = _argument(arguments, name, int, default)
    if not low <= value <= high:
        raise UserError(f"{name}: must be from {low} to {high:,}, not {value}")
    return value


def serve_indexes(
    sources: Sequence[str], load: Load, model: str | None, *, schema: str = SCHEMA, table: str = TABLE
) -> None:
    """Serve indexes, folders or postgresql:// addresses, until standard input ends."""
    target = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # from here on print writes to standard error
    with target, ExitStack() as stack:
        indexes = open_indexes(sources, load, model, stack, schema=schema, table=table)
        print(f"bertree mcp: {', '.join(indexes)} ready on standard input", file=sys.stderr, flush=True)
        serve_tools(make_tools(indexes), INSTRUCTIONS, sys.stdin.buffer, target)


def open_indexes(
    sources: Sequence[str], load: Load, model: str | None, stack: ExitStack, *, schema: str, table: str
) -> dict[str, Searcher]:
    """Open indexes with their models, each model once; return them by the name of the folder or table."""
    models: dict[str, TextEncoder] = {}
    indexes: dict[str, Searcher] = {}
    for source in sources:
        name = table if is_address(source) else PurePath(os.path.abspath(source)).name
        if name in indexes:
            raise UserError(f"{name}: two indexes have this name; give one of them, or rename its folder")
        with open_index(source, None, schema, table) as unloaded:
            path = model or unloaded.model_path
        if path not in models:
            models[path] = load(path)
        indexes[name] = stack.enter_context(open_index(source, models[path], schema, table))
    return indexes
