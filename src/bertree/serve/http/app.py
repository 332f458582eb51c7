"""The application: the routes behind what happens to every request."""

import re
import secrets
import time
from collections import defaultdict
from itertools import count

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from bertree.serve.http.access import PREFLIGHT, Access
from bertree.serve.http.answers import send_bytes, send_error
from bertree.serve.http.context import CONTEXT, Context, Service
from bertree.serve.http.endpoint import Endpoint
from bertree.serve.http.errors import HttpError
from bertree.serve.http.table import ROUTES, RouteSpec
from bertree.serve.page import page
from bertree.serve.routes import answer, cohere, generate, layers, openai, operations, search, space, tei, text

# Importing the modules fills the table of routes.
__all__ = [
    "answer",
    "build_app",
    "cohere",
    "generate",
    "layers",
    "openai",
    "operations",
    "page",
    "search",
    "space",
    "tei",
    "text",
]

GIVEN_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_started, _numbers = secrets.token_hex(4), count(1)


def build_app(service: Service) -> ASGIApp:
    """Return the ASGI application of a server."""
    by_path: dict[str, list[RouteSpec]] = defaultdict(list)
    for spec in ROUTES:
        by_path[spec.path].append(spec)
    return Application(service, {path: Endpoint(service, specs) for path, specs in by_path.items()})


class Application:
    """Gives a request its id, checks whether it may be asked, finds its endpoint, and notes how it was answered.

    It is one plain ASGI application, not a stack of them: each layer would cost as much as routing a request does."""

    def __init__(self, service: Service, endpoints: dict[str, Endpoint]) -> None:
        self._service = service
        self._access = Access(service.settings, [spec.path for spec in ROUTES if spec.open])
        self._plain = {path: endpoint for path, endpoint in endpoints.items() if "{" not in path}
        others = [Route(path, endpoint) for path, endpoint in endpoints.items() if "{" in path]
        self._router = Router(others, redirect_slashes=False, default=_not_found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        started, given = time.perf_counter(), dict(scope["headers"])
        context = Context(self._service, scope, given, _request_id(given))
        try:
            if (error := self._access.refusal(context)) is not None:
                await send_error(context, send, error)
            elif self._access.is_preflight(context):
                await send_bytes(context, send, 204, b"", PREFLIGHT)
            elif (endpoint := self._plain.get(scope["path"])) is not None:
                await endpoint.answer(context, receive, send)
            else:
                scope[CONTEXT] = context
                await self._router(scope, receive, send)
        finally:
            self._note(context, time.perf_counter() - started)

    def _note(self, context: Context, seconds: float) -> None:
        status = context.status
        self._service.metrics.answered(context.route, status, seconds)
        if self._service.log.wants(status):
            self._service.log.write(
                "request",
                status=status,
                id=context.request_id,
                method=context.scope["method"][:20],
                route=context.route,
                milliseconds=round(1000 * seconds, 2),
                tokens=context.tokens,
            )


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        error = HttpError(404, "there is no such path; see /docs", code="unknown_path")
        await send_error(scope[CONTEXT], send, error)


def _request_id(given: dict[bytes, bytes]) -> str:
    """Return the id that the client gave, if it is harmless, or a new one."""
    wanted = given.get(b"x-request-id")
    if wanted is not None and GIVEN_ID.fullmatch(wanted):
        return wanted.decode("ascii")
    return f"{_started}-{next(_numbers):x}"
