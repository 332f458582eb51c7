"""The part of the Model Context Protocol that a server of tools needs: JSON-RPC messages, one a line.

Written by hand: the package `mcp` brings 47 MB of other packages and takes 1.7 seconds to import, for what is a
handshake and two methods here. Clients of the revision without a handshake (2026-07-28) fall back to the handshake.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from bertree.errors import UserError
from bertree.files.formats import Json, json_text
from bertree.version import __version__

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")  # with a handshake
LONGEST = 1 << 20  # bytes of a message
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602


@dataclass(frozen=True)
class Tool:
    """What a client can call: `call` takes the arguments and returns a JSON object, or raises a UserError."""

    name: str
    description: str
    schema: Json  # of its arguments
    call: Callable[[Json], Json]

    def json(self) -> Json:
        """Return how the protocol describes a tool."""
        hints = {"readOnlyHint": True, "openWorldHint": False}
        return {"name": self.name, "description": self.description, "inputSchema": self.schema, "annotations": hints}


class _Refused(Exception):
    """A message that the protocol does not allow."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def serve_tools(tools: Sequence[Tool], instructions: str, source: BinaryIO, target: BinaryIO) -> None:
    """Answer the messages of a client until its end of the stream is closed."""
    server = ToolServer(tools, instructions)
    for line in _lines(source):
        if answer := server.answer(line):
            target.write(json_text(answer).encode() + b"\n")
            target.flush()


def _lines(source: BinaryIO) -> Iterator[bytes]:
    """Yield lines; of one that is too long, the part that shows it."""
    while line := source.readline(LONGEST + 1):
        rest = line
        while len(rest) > LONGEST and not rest.endswith(b"\n"):
            rest = source.readline(LONGEST + 1)
        yield line


class ToolServer:
    """Answers one message at a time."""

    def __init__(self, tools: Sequence[Tool], instructions: str) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._instructions = instructions
        self._methods: dict[str, Callable[[Json], Json]] = {
            "initialize": self._initialize,
            "ping": lambda params: {},
            "tools/list": lambda params: {"tools": [tool.json() for tool in self._tools.values()]},
            "tools/call": self._call,
        }

    def answer(self, line: bytes) -> Json | None:
        """Return the answer to a message; None if it needs none."""
        id: Any = None
        try:
            message = _parse(line)
            if message is None:
                return None
            id = message.get("id")
            if "method" not in message and ("result" in message or "error" in message):
                return None  # an answer; this server asks nothing
            method, params = message.get("method"), message.get("params", {})
            if not isinstance(method, str) or isinstance(id, bool) or not isinstance(id, str | int | None):
                id = None
                raise _Refused(INVALID_REQUEST, "a message needs a method, and an id that is a text or a whole number")
            if "id" not in message:
                return None  # a notification
            if method not in self._methods:
                raise _Refused(METHOD_NOT_FOUND, f"there is no method {method[:80]!r}")
            if not isinstance(params, dict):
                raise _Refused(INVALID_PARAMS, "params must be an object")
            return {"jsonrpc": "2.0", "id": id, "result": self._methods[method](params)}
        except _Refused as refused:
            return {"jsonrpc": "2.0", "id": id, "error": {"code": refused.code, "message": str(refused)}}

    def _initialize(self, params: Json) -> Json:
        version = params.get("protocolVersion")
        return {
            "protocolVersion": version if version in VERSIONS else VERSIONS[-1],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "bertree", "version": __version__},
            "instructions": self._instructions,
        }

    def _call(self, params: Json) -> Json:
        name, arguments = params.get("name"), params.get("arguments", {})
        if not isinstance(name, str) or name not in self._tools:
            raise _Refused(INVALID_PARAMS, f"there is no tool {str(name)[:80]!r}; known: {', '.join(self._tools)}")
        if not isinstance(arguments, dict):
            raise _Refused(INVALID_PARAMS, "arguments must be an object")
        try:
            result = self._tools[name].call(arguments)
        except UserError as error:
            return _text(" ".join(str(error).split())) | {"isError": True}
        except Exception:  # a mistake of ours must not end the session
            traceback.print_exc(file=sys.stderr)
            return _text("internal error; the server's log has the details") | {"isError": True}
        return _text(json_text(result)) | {"structuredContent": result, "isError": False}


def _parse(line: bytes) -> Json | None:
    """Return the message of a line; None for an empty line."""
    if len(line) > LONGEST:
        raise _Refused(PARSE_ERROR, f"a message may have at most {LONGEST:,} bytes")
    if not line.strip():
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise _Refused(PARSE_ERROR, "this is not JSON") from None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise _Refused(INVALID_REQUEST, "a message must be an object with jsonrpc 2.0")
    return message


def _text(text: str) -> Json:
    return {"content": [{"type": "text", "text": text}]}
