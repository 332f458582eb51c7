"""Answers: JSON, errors and Starlette responses, with the headers that every answer has.

An error is a status and one line, in the form that the clients of each interface expect.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Send

from bertree.serve.http.handlers import Context

# Status -> OpenAI's type of error, Text Embeddings Inference's type of error; others are as 422, or as 500.
ERROR_TYPES = {
    401: ("authentication_error", "Unauthorized"),
    403: ("permission_error", "Unauthorized"),
    404: ("not_found_error", "Validation"),
    408: ("timeout_error", "Validation"),
    422: ("invalid_request_error", "Validation"),
    429: ("rate_limit_error", "Overloaded"),
    500: ("server_error", "Backend"),
    503: ("unavailable_error", "Unhealthy"),
    504: ("timeout_error", "Overloaded"),
}
LONGEST = 400  # characters of a message, which may quote the request
NOSNIFF = (b"x-content-type-options", b"nosniff")
CLOSE = (b"connection", b"close")
NO_HEADERS: Mapping[str, str] = {}


class HttpError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        """`param`: the field at fault."""
        super().__init__(message)
        line = " ".join(message.split())
        self.message = line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
        self.status, self.param, self.code, self.headers = status, param, code, headers


def error_body(error: HttpError, form: str) -> dict[str, Any]:
    """Return the body of an error in a form: openai, tei or cohere."""
    openai, tei = ERROR_TYPES.get(error.status, ERROR_TYPES[500 if error.status >= 500 else 422])
    if form == "tei":
        return {"error": error.message, "error_type": "Empty" if error.code == "empty" else tei}
    if form == "cohere":
        return {"message": error.message}
    return {"error": {"message": error.message, "type": openai, "param": error.param, "code": error.code}}


async def send_json(
    context: Context, send: Send, status: int, value: Any, headers: Mapping[str, str] = NO_HEADERS
) -> None:
    """Send a value as JSON."""
    await send_bytes(context, send, status, orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), headers)


async def send_bytes(
    context: Context, send: Send, status: int, body: bytes, headers: Mapping[str, str] = NO_HEADERS
) -> None:
    """Send encoded JSON; an empty body has no content type."""
    lines = [(b"content-length", b"%d" % len(body)), (b"x-request-id", context.request_id.encode()), NOSNIFF]
    if body:
        lines.append((b"content-type", b"application/json"))
    for group in (context.response_headers, headers):
        if group:
            lines += [(name.lower().encode("latin-1"), v.encode("latin-1", "replace")) for name, v in group.items()]
    if context.service.draining:
        lines.append(CLOSE)
    context.status = status
    connection, in_parts = context.connection, CLOSE in lines or context.scope["method"] == "HEAD"
    if connection is not None and not in_parts and connection.send_whole(status, lines, body):
        return
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


async def send_error(context: Context, send: Send, error: HttpError, form: str = "openai") -> None:
    """Send an error in a form."""
    await send_json(context, send, error.status, error_body(error, form), error.headers)


async def send_busy(context: Context, send: Send, seconds: int, form: str) -> None:
    """Refuse a request because the queue is full."""
    await send_bytes(context, send, 429, busy_answer(seconds, form)[1], {"retry-after": str(seconds)})


@lru_cache(256)
def busy_answer(seconds: int, form: str) -> tuple[bytes, bytes]:
    """Return this refusal as bytes: its head, without an id, and its body."""
    body = orjson.dumps(error_body(HttpError(429, f"the server is busy; try again in {seconds} s"), form))
    head = b"content-type: application/json\r\ncontent-length: %d\r\nretry-after: %d\r\n%b: %b\r\n"
    return head % (len(body), seconds, *NOSNIFF), body


async def send_response(context: Context, receive: Receive, send: Send, response: Response) -> None:
    """Send a response of Starlette."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            context.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", context.request_id.encode()), NOSNIFF]
            if context.service.draining:
                message["headers"].append(CLOSE)
        await send(message)

    for name, value in context.response_headers.items():
        response.headers[name] = value
    await response(context.scope, receive, send_with_headers)
