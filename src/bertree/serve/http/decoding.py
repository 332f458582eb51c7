"""The input of a request: its body or its query, read within limits and checked against a type."""

import asyncio
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive

from bertree.errors import suggest
from bertree.serve.http.answers import HttpError
from bertree.serve.http.handlers import Context, InputsForm, InputsRequest

BODY_SECONDS = 30.0  # for a body to arrive
MOST_RECEIVED = 256 << 20  # bytes of all bodies that are arriving
MOST_DISCARDED = 64 << 20  # bytes that are read, and not kept, of a body that is too large
CLOSE = {"connection": "close"}
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
                    raise HttpError(503, "too many bodies arrive at once", headers=CLOSE | {"retry-after": "1"})
    except TimeoutError:
        raise HttpError(408, "the body did not arrive in time", headers=CLOSE) from None
    finally:
        service.body_bytes -= kept
    if too_large:  # answered when the client has sent all of it: many read the answer only then
        raise _too_large(most)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class ClientGone(Exception):
    """The client has closed the connection."""


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"the body is larger than {most:,} bytes; send fewer texts", headers=CLOSE)


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
