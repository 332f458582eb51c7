"""The input of a request: its body or its query, read within limits and checked against a type."""

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive

from bertree.serve.http.answers import HttpError

BODY_SECONDS = 30.0  # for a body to arrive
PATH = re.compile(r" - at `\$(.*)`$")
MISSING = re.compile(r"missing required field `(\w+)`")


async def read_body(headers: Mapping[bytes, bytes], receive: Receive, most: int) -> bytes:
    """Return the body of a request with these headers; 413 if it is too large."""
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > most:
        raise _too_large(most)
    first = await receive()
    if first["type"] == "http.disconnect":
        raise ClientGone
    pieces, size = [first.get("body", b"")], len(first.get("body", b""))
    if size > most:
        raise _too_large(most)
    if not first.get("more_body"):
        return pieces[0]
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                if size > most:
                    raise _too_large(most)
                if not message.get("more_body"):
                    return b"".join(pieces)
    except TimeoutError:
        raise HttpError(408, "the body did not arrive in time", headers={"connection": "close"}) from None


class ClientGone(Exception):
    """The client has closed the connection."""


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"the body is larger than {most:,} bytes; send fewer texts", headers={"connection": "close"})


def body_decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return a function from the bytes of a body to a value of a type."""
    decoder = msgspec.json.Decoder(kind)

    def decode(body: bytes) -> Any:
        try:
            return decoder.decode(body)
        except msgspec.ValidationError as error:
            raise invalid_field(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise HttpError(400, f"the body is not JSON: {_short(error)}", code="invalid_json") from None

    return decode


def query_decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return a function from a query string to a value of a type."""

    def decode(query: bytes) -> Any:
        try:
            fields = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=50))
            return msgspec.convert(fields, kind, strict=False)
        except msgspec.ValidationError as error:
            raise invalid_field(error) from None
        except ValueError as error:
            raise HttpError(422, f"the query cannot be read: {_short(error)}") from None

    return decode


def invalid_field(error: Exception) -> HttpError:
    """Return the answer to a value of the wrong type: it names the field."""
    message = str(error)
    path = PATH.search(message)
    field = path[1].removeprefix(".") if path else ""
    message = message.removesuffix(path[0]) if path else message
    message = message[:1].lower() + message[1:]
    missing = MISSING.search(message)
    name = re.split(r"[.\[]", field)[0] or (missing[1] if missing else None)
    return HttpError(422, f"{field}: {message}"[:400] if field else message[:400], param=name)


def _short(error: Exception) -> str:
    return "too deeply nested" if isinstance(error, RecursionError) else str(error)[:120]
