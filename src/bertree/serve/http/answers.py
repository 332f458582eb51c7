"""Answers: JSON, errors, and responses of Starlette, each with the headers that every answer has."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Send

from bertree.serve.http.context import Context
from bertree.serve.http.errors import HttpError, error_body

NOSNIFF = (b"x-content-type-options", b"nosniff")
CLOSE = (b"connection", b"close")
NONE: Mapping[str, str] = {}


async def send_json(context: Context, send: Send, status: int, value: Any, headers: Mapping[str, str] = NONE) -> None:
    """Send a value as JSON."""
    await send_bytes(context, send, status, orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), headers)


async def send_bytes(context: Context, send: Send, status: int, body: bytes, headers: Mapping[str, str] = NONE) -> None:
    """Send JSON that is written already; nothing: a body without a type."""
    lines = [(b"content-length", b"%d" % len(body)), (b"x-request-id", context.request_id.encode()), NOSNIFF]
    if body:
        lines.append((b"content-type", b"application/json"))
    for some in (context.headers, headers):
        if some:
            lines += [(name.lower().encode("latin-1"), v.encode("latin-1", "replace")) for name, v in some.items()]
    if context.service.draining:
        lines.append(CLOSE)
    context.status = status
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


async def send_error(context: Context, send: Send, error: HttpError, form: str = "openai") -> None:
    """Send an error in a form."""
    await send_json(context, send, error.status, error_body(error, form), error.headers)


async def send_busy(context: Context, send: Send, seconds: int, form: str) -> None:
    """Refuse a request because too much waits. It must be cheap: there may be many."""
    await send_bytes(context, send, 429, _busy_body(seconds, form), {"retry-after": str(seconds)})


async def send_response(context: Context, receive: Receive, send: Send, response: Response) -> None:
    """Send a response of Starlette."""

    async def send_noted(message: Message) -> None:
        if message["type"] == "http.response.start":
            context.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", context.request_id.encode()), NOSNIFF]
            if context.service.draining:
                message["headers"].append(CLOSE)
        await send(message)

    for name, value in context.headers.items():
        response.headers[name] = value
    await response(context.scope, receive, send_noted)


@lru_cache(256)
def _busy_body(seconds: int, form: str) -> bytes:
    return orjson.dumps(error_body(HttpError(429, f"the server is busy; try again in {seconds} s"), form))
