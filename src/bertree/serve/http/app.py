"""The ASGI application: access checks, then the endpoint of the path; every request gets an id and a log line."""

import re
import secrets
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import count
from pkgutil import iter_modules

from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from bertree.serve import routes
from bertree.serve.http.connections import CONNECTION
from bertree.serve.http.endpoint import Endpoint
from bertree.serve.http.handlers import ROUTES, Context, RouteSpec, Service
from bertree.serve.http.messages import HttpError, busy_answer, send_bytes, send_error
from bertree.serve.settings import RequestSettings
from bertree.serve.token_queue import Overloaded

LOCAL_NAMES = (b"localhost", b"127.0.0.1", b"[::1]")
ALLOW_ORIGIN = "access-control-allow-origin"
PREFLIGHT = {"access-control-allow-methods": "GET, POST", "access-control-max-age": "600"}
HEADER_NAMES = re.compile(rb"[A-Za-z0-9-]+(, ?[A-Za-z0-9-]+)*")
EXPOSED = "Retry-After, X-Request-Id, X-Truncated-Texts, X-Truncated-Tokens"
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
for _module in iter_modules(routes.__path__):  # importing them fills the table of routes
    import_module(f"{routes.__name__}.{_module.name}")
_started, _numbers = secrets.token_hex(4), count(1)


def build_app(service: Service) -> "Application":
    """Return the ASGI application of a server."""
    by_path: dict[str, list[RouteSpec]] = defaultdict(list)
    for spec in ROUTES:
        by_path[spec.path].append(spec)
    return Application(service, {path: Endpoint(service, specs) for path, specs in by_path.items()})


class Access:
    """Refuses requests without a key, if the server has keys, and requests that pages of other sites make a browser
    send.

    A browser names the site of a page (Origin). A page whose name was bound to this machine's address after it was
    loaded sends a foreign Host; this can be detected only where the server's names are known: on the loopback."""

    def __init__(self, settings: RequestSettings) -> None:
        self._keys, self._loopback = settings.keys, settings.loopback
        self._origins = {origin.encode() for origin in settings.cors}

    def refusal(self, context: Context, spec: RouteSpec | None) -> HttpError | None:
        """Return why a request is refused; None: it is not. The answer to an allowed page gets the CORS headers."""
        headers = context.request_headers
        host, origin = headers.get(b"host", b""), headers.get(b"origin")
        if origin is not None:
            if origin in self._origins:
                context.response_headers[ALLOW_ORIGIN] = origin.decode("latin-1")
                context.response_headers["access-control-expose-headers"] = EXPOSED
                context.response_headers["vary"] = "Origin"
            elif origin.rpartition(b"//")[2] != host:
                return HttpError(403, "this page is of another site (see --cors)")
        if self._loopback and host and host.rsplit(b":", 1)[0] not in LOCAL_NAMES and host not in LOCAL_NAMES:
            return HttpError(403, "the server is reached by a foreign name")
        if self._keys and not (spec is not None and spec.open) and not self.is_preflight(context):
            return self._wrong_key(headers.get(b"authorization"))
        return None

    def is_preflight(self, context: Context) -> bool:
        """Return whether a browser asks if an allowed page may send a request (CORS)."""
        return ALLOW_ORIGIN in context.response_headers and context.scope["method"] == "OPTIONS"

    def _wrong_key(self, authorization: bytes | None) -> HttpError | None:
        if authorization is not None and self._keys.allow(authorization.decode("latin-1")):
            return None
        message = "a key is needed (Authorization: Bearer KEY)" if authorization is None else "the key is wrong"
        return HttpError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


class Application:
    """Gives a request its id, checks access, calls its endpoint, and records the answer in metrics and log.

    It is one plain ASGI application, not a stack of them: each layer would cost as much as routing a request."""

    def __init__(self, service: Service, endpoints: Mapping[str, Endpoint]) -> None:
        self._service = service
        self._access = Access(service.settings)
        self._plain = {path: endpoint for path, endpoint in endpoints.items() if "{" not in path}
        self._busy = {spec.path.encode(): spec for spec in ROUTES if spec.ability is not None and spec.method == "POST"}
        self._folders = [(path.partition("{")[0], endpoint) for path, endpoint in endpoints.items() if "{" in path]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await Router()(scope, receive, send)  # a server that asks whether the application has started
            return
        started, context = time.perf_counter(), self._context(scope)
        endpoint = self._plain.get(scope["path"])
        if endpoint is None:
            for folder, below in self._folders:
                if scope["path"].startswith(folder):
                    endpoint, context.parameter = below, scope["path"].removeprefix(folder)
        spec = None
        if endpoint is not None:
            context.route, spec = endpoint.path, endpoint.spec(scope["method"])
        try:
            if (error := self._access.refusal(context, spec)) is not None:
                await send_error(context, send, error)
            elif self._access.is_preflight(context):
                await send_bytes(context, send, 204, b"", _preflight(context.request_headers))
            elif endpoint is not None:
                await endpoint.answer(context, receive, send)
            else:
                error = HttpError(404, "there is no such path; see /docs", code="unknown_path")
                await send_error(context, send, error)
        finally:
            self._record(context, time.perf_counter() - started)

    def refuse(self, scope: Scope, url: bytes) -> Sequence[bytes] | None:
        """Return the answer to a POST request that is refused unread, as `__call__` would give it; None: it is read."""
        spec, scheduler = self._busy.get(url), self._service.scheduler
        if spec is None or not scheduler.is_full or self._service.draining:
            return None
        scope["method"], scope["path"] = spec.method, spec.path
        started, context = time.perf_counter(), self._context(scope)
        if self._access.refusal(context, spec) is not None or context.response_headers:
            return None
        context.route, context.status = spec.path, 429
        head, body = busy_answer(Overloaded(scheduler.retry_after).retry_after, spec.errors)
        self._record(context, time.perf_counter() - started)
        return head, b"x-request-id: %b\r\n\r\n" % context.request_id.encode(), body

    def _context(self, scope: Scope) -> Context:
        headers = dict(scope["headers"])
        sent = headers.get(b"x-request-id", b"")  # kept if it is harmless
        number = sent.decode() if REQUEST_ID.fullmatch(sent) else f"{_started}-{next(_numbers):x}"
        connection = scope["state"].get(CONNECTION) if "state" in scope else None
        return Context(self._service, scope, headers, number, connection)

    def _record(self, context: Context, seconds: float) -> None:
        status = context.status
        self._service.metrics.answered(context.route, status, seconds)
        if self._service.log.wants(status):
            self._service.log.write(
                "request",
                status=status,
                id=context.request_id,
                client=(context.scope.get("client") or [""])[0],
                method=context.scope["method"][:20],
                route=context.route,
                milliseconds=round(1000 * seconds, 2),
                tokens=context.tokens,
            )


def _preflight(headers: Mapping[bytes, bytes]) -> Mapping[str, str]:
    """Return the headers that let an allowed page send the request it asks for; clients have headers of their own."""
    asked = headers.get(b"access-control-request-headers", b"")
    allowed = asked.decode() if HEADER_NAMES.fullmatch(asked) else "authorization, content-type"
    return {**PREFLIGHT, "access-control-allow-headers": allowed}
