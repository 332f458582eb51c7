"""Requests and answers: bodies and queries, read within limits and checked against a type; JSON, errors and Starlette
responses, with the headers that every answer has.

An error is a status and one line, in the form that the clients of each interface expect.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Send

from bertree.errors import suggest
from bertree.serve.http.handlers import Context, InputsForm, InputsRequest

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


BODY_SECONDS = 30.0  # for a body to arrive
MOST_RECEIVED = 256 << 20  # bytes of all bodies that are arriving
MOST_DISCARDED = 64 << 20  # bytes that are read, and not kept, of a body that is too large
CLOSING = {"connection": "close"}
PATH = re.compile(r" - at `\$(.*)`$")
UNKNOWN = re.compile(r"unknown field `(.*?)`")
MISSING = re.compile(r"missing required field `(\w+)`")


async def read_body(context: Context, receive: Receive) -> bytes:
    """Return the body of a request; 413 if it is too large."""
    headers, most, service = context.request_headers, context.limits.body_bytes, context.service
    if encoding := headers.get(b"content-encoding", b"identity").lower().removeprefix(b"identity"):
        raise HttpError(415, f"the body is encoded ({encoding[:20].decode('latin-1')}); send it as plain JSON")
    if context.connection is not None and (body := context.connection.whole_body(most)) is not None:
        return body
    length = headers.get(b"content-length", b"")
    too_large = length.isdigit() and int(length) > most
    if too_large and b"expect" in headers:  # the client asks before it sends the body
        raise _too_large(most)
    pieces, size, kept, more = list[bytes](), 0, 0, True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                piece, more = message.get("body", b""), message.get("more_body", False)
                size += len(piece)
                too_large = too_large or size > most
                if size > most + MOST_DISCARDED:
                    break
                if not too_large:
                    pieces.append(piece)
                    service.body_bytes += len(piece)
                    kept += len(piece)
                if service.body_bytes > MOST_RECEIVED + most:
                    raise HttpError(503, "too many bodies arrive at once", headers=CLOSING | {"retry-after": "1"})
    except TimeoutError:
        raise HttpError(408, "the body did not arrive in time", headers=CLOSING) from None
    finally:
        service.body_bytes -= kept
    if too_large:  # answered when the client has sent all of it: many read the answer only then
        raise _too_large(most)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class ClientGone(Exception):
    """The client has closed the connection."""


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"the body is larger than {most:,} bytes; send fewer texts", headers=CLOSING)


def body_decoder(kind: Any, inputs: InputsForm | None = None) -> Callable[[bytes], Any]:
    """Return a function from the bytes of a body to a value of a type; with a form, a body with `inputs` gives that
    value and the body itself."""
    decoder, names = msgspec.json.Decoder(kind), msgspec.json.Decoder(dict[str, msgspec.Raw])

    def decode(body: bytes) -> Any:
        try:
            if inputs is None or b'"inputs"' not in body or "inputs" not in names.decode(body):
                return decoder.decode(body)
            request = msgspec.json.decode(body, type=InputsRequest)
            return msgspec.convert(_read(inputs, request), kind), request
        except msgspec.ValidationError as error:
            raise invalid_field(error, kind) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise HttpError(400, f"the body is not JSON: {_short(error)}", code="invalid_json") from None

    return decode


def _read(form: InputsForm, request: InputsRequest) -> dict[str, Any]:
    try:
        return form.read(request)
    except ValueError as error:
        raise HttpError(422, str(error), param=str(error).partition(":")[0]) from None


def query_decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return a function from a query string to a value of a type."""

    def decode(query: bytes) -> Any:
        try:
            fields = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=50))
            return msgspec.convert(fields, kind, strict=False)
        except msgspec.ValidationError as error:
            raise invalid_field(error, kind) from None
        except ValueError as error:
            raise HttpError(422, f"the query cannot be read: {_short(error)}") from None

    return decode


def invalid_field(error: Exception, kind: Any) -> HttpError:
    """Return the answer to a field that is unknown, missing or of the wrong type: it names the field."""
    message = str(error)
    if unknown := UNKNOWN.search(message):
        fields = getattr(kind, "__struct_fields__", ()) if " - at " not in message else ()
        near = f"; {suggest(unknown[1], fields)}" if fields else ""
        return HttpError(422, f"{unknown[1]}: unknown field{near}", param=unknown[1])
    path = PATH.search(message)
    field = path[1].removeprefix(".") if path else ""
    message = message.removesuffix(path[0]) if path else message
    message = message[:1].lower() + message[1:]
    missing = MISSING.search(message)
    name = re.split(r"[.\[]", field)[0] or (missing[1] if missing else None)
    return HttpError(422, f"{field}: {message}"[:400] if field else message[:400], param=name)


def _short(error: Exception) -> str:
    return "too deeply nested" if isinstance(error, RecursionError) else str(error)[:120]
