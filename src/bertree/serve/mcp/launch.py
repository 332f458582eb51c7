"""Open the indexes, and give standard output to the protocol alone."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import PurePath

from bertree.errors import UserError
from bertree.inference.embedding import TextEncoder
from bertree.search.postgres.choice import open_index
from bertree.search.postgres.place import is_address
from bertree.search.searcher import Searcher
from bertree.serve.mcp.protocol import serve_tools
from bertree.serve.mcp.tools import INSTRUCTIONS, make_tools

Load = Callable[[str], TextEncoder]  # a model by its name or path


def serve_indexes(given: Sequence[str], load: Load, model: str | None, schema: str, table: str) -> None:
    """Serve indexes, folders or postgresql:// addresses, until standard input ends."""
    target = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever is printed from here on goes to standard error
    with target, ExitStack() as stack:
        indexes = open_indexes(given, load, model, schema, table, stack)
        print(f"bertree mcp: {', '.join(indexes)} ready on standard input", file=sys.stderr, flush=True)
        serve_tools(make_tools(indexes), INSTRUCTIONS, sys.stdin.buffer, target)


def open_indexes(
    given: Sequence[str], load: Load, model: str | None, schema: str, table: str, stack: ExitStack
) -> dict[str, Searcher]:
    """Open indexes with their models, each model once; return them by name: that of the folder or of the table."""
    models: dict[str, TextEncoder] = {}
    found: dict[str, Searcher] = {}
    for where in given:
        name = table if is_address(where) else PurePath(os.path.abspath(where)).name
        if name in found:
            raise UserError(f"{name}: two indexes have this name; give one of them, or rename its folder")
        with open_index(where, None, schema, table) as unloaded:
            path = model or unloaded.model_path
        if path not in models:
            models[path] = load(path)
        found[name] = stack.enter_context(open_index(where, models[path], schema, table))
    return found
