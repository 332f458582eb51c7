"""What happens to every request: an id, a key, a line in the log, metrics. Plain ASGI, so that disconnects are seen."""

import re
import secrets
import time
from collections.abc import Iterable
from itertools import count

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertree.serve.http.context import Service
from bertree.serve.http.endpoint import send_error
from bertree.serve.http.errors import HttpError

GIVEN_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
CLIENT_CLOSED = 499  # status in logs and metrics of a request whose client has gone
LOCAL_NAMES = (b"localhost", b"127.0.0.1", b"[::1]")
HEADERS = [(b"x-content-type-options", b"nosniff")]
_started, _numbers = secrets.token_hex(4), count(1)


class Observe:
    """Gives a request its id, and notes how it was answered."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), CLIENT_CLOSED
        number = scope["bertree.id"] = _request_id(scope)

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], (b"x-request-id", number.encode()), *HEADERS]
                if self.service.draining:
                    headers.append((b"connection", b"close"))
                message["headers"] = headers
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        finally:
            seconds = time.perf_counter() - started
            route = scope.get("bertree.route", "none")
            context = scope.get("bertree.context")
            self.service.metrics.answered(route, status, seconds)
            self.service.log.request(
                status,
                id=number,
                method=scope["method"][:20],
                route=route,
                milliseconds=round(1000 * seconds, 2),
                tokens=context.tokens if context else 0,
            )


class RequireKey:
    """Refuses requests without a key, if the server has keys, except to open paths."""

    def __init__(self, app: ASGIApp, service: Service, open_paths: Iterable[str]) -> None:
        """`open_paths`: of one with a parameter, what stands before it counts."""
        self.app, self.service = app, service
        paths = [path.partition("{") for path in open_paths]
        self.open_paths = frozenset(path for path, brace, _ in paths if not brace)
        self.open_folders = tuple(path for path, brace, _ in paths if brace)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        keys = self.service.settings.keys
        path = scope.get("path", "")
        if scope["type"] != "http" or not keys or path in self.open_paths or path.startswith(self.open_folders):
            await self.app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if keys.allow(given.decode("latin-1")):
            await self.app(scope, receive, send)
            return
        message = "the key is wrong" if given else "a key is needed (Authorization: Bearer KEY)"
        error = HttpError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
        await send_error(send, error, "openai")


class RefuseForeignPages:
    """Refuses what a page of another site makes a browser send.

    A browser tells where a page comes from (Origin). A page whose name was bound to this machine's address after it was
    loaded sends a foreign Host; that can be told only where the names of the server are known: on the loopback."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...], loopback: bool) -> None:
        """`origins`: those that are allowed; `loopback`: the server listens there alone."""
        self.app, self.origins, self.loopback = app, {origin.encode() for origin in origins}, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            host = origin = b""
            for name, value in scope["headers"]:
                if name == b"host":
                    host = value
                elif name == b"origin":
                    origin = value
            if origin and origin not in self.origins and origin.rpartition(b"//")[2] != host:
                await send_error(send, HttpError(403, "this page is of another site (see --cors)"), "openai")
                return
            if self.loopback and host and host.rsplit(b":", 1)[0] not in LOCAL_NAMES and host not in LOCAL_NAMES:
                await send_error(send, HttpError(403, "the server is reached by a foreign name"), "openai")
                return
        await self.app(scope, receive, send)


class AllowOrigins:
    """Lets pages of other origins ask the server (CORS), if the server was told so."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        self.app, self.origins = app, {origin.encode() for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        origin = next((v for n, v in scope["headers"] if n == b"origin"), b"") if scope["type"] == "http" else b""
        if origin not in self.origins:
            await self.app(scope, receive, send)
            return
        allowed = [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]
        if scope["method"] == "OPTIONS":
            allowed += [
                (b"access-control-allow-methods", b"GET, POST"),
                (b"access-control-allow-headers", b"authorization, content-type, x-timeout, x-request-id"),
                (b"access-control-max-age", b"600"),
            ]
            await send({"type": "http.response.start", "status": 204, "headers": allowed})
            await send({"type": "http.response.body", "body": b""})
            return

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *allowed]
            await send(message)

        await self.app(scope, receive, send_allowed)


def _request_id(scope: Scope) -> str:
    """Return the id that the client gave, if it is harmless, or a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and GIVEN_ID.fullmatch(value):
            return str(value, "ascii")
    return f"{_started}-{next(_numbers):x}"
