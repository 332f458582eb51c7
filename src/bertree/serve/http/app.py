"""The ASGI application: access checks, then the endpoint of the path; every request gets an id and a log line.

The endpoint decodes the input, calls the handler, and sends the answer or the error. When a client closes the
connection before its answer, the rest of its work is cancelled.
"""

import asyncio
import re
import secrets
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import count
from pkgutil import iter_modules
from typing import Any

from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from bertree.errors import UserError
from bertree.serve import routes
from bertree.serve.http.connections import CONNECTION
from bertree.serve.http.handlers import ROUTES, Context, RouteSpec, Service, call_route
from bertree.serve.http.messages import (
    ClientGone,
    HttpError,
    body_decoder,
    busy_answer,
    query_decoder,
    read_body,
    send_busy,
    send_bytes,
    send_error,
    send_json,
    send_response,
)
from bertree.serve.served import NotServed
from bertree.serve.settings import RequestSettings
from bertree.serve.token_queue import DeadlineExceeded, Overloaded, TooLong

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

    def __init__(self, service: Service, endpoints: Mapping[str, "Endpoint"]) -> None:
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


class Endpoint:
    """The routes of one path."""

    def __init__(self, service: Service, specs: Sequence[RouteSpec]) -> None:
        self.service = service
        self.specs = {spec.method: spec for spec in specs}
        self.path, self._errors = specs[0].path, specs[0].errors
        self._decoders: dict[str, Callable[[bytes], Any] | None] = {
            spec.method: body_decoder(spec.body, spec.inputs)
            if spec.body
            else query_decoder(spec.query)
            if spec.query
            else None
            for spec in specs
        }

    def spec(self, method: str) -> RouteSpec | None:
        """Return the route of a method."""
        return self.specs.get("GET" if method == "HEAD" else method)

    async def answer(self, context: Context, receive: Receive, send: Send) -> None:
        """Answer a request."""
        method = context.scope["method"]
        if (spec := self.spec(method)) is None:
            allowed = ", ".join(sorted(self.specs))
            error = HttpError(405, f"{method[:20]} is not possible here, only {allowed}", headers={"allow": allowed})
            await send_error(context, send, error, self._errors)
            return
        context.ability, scheduler = spec.ability, self.service.scheduler
        if spec.ability is not None and scheduler.is_full:  # before its body is read: a refusal must be cheap
            await send_busy(context, send, Overloaded(scheduler.retry_after).retry_after, spec.errors)
            return
        try:
            result = await self._call(spec, context, receive)
        except ClientGone:
            return
        except asyncio.CancelledError:
            if context.connection is not None and context.connection.transport.is_closing():
                asyncio.current_task().uncancel()  # type: ignore[union-attr]
                return
            with suppress(Exception):
                await send_error(context, send, HttpError(503, "the server is stopping"), spec.errors)
            raise
        except Overloaded as error:
            await send_busy(context, send, error.retry_after, spec.errors)
        except Exception as error:
            problem = self._to_http(error, spec, context)
            if problem.status == 422 and spec.path.startswith("/v1/"):  # OpenAI's status of a wrong field
                problem.status = 400
            await send_error(context, send, problem, spec.errors)
        else:
            if isinstance(result, Response):
                await send_response(context, receive, send, result)
            else:
                await send_json(context, send, 200, result)

    async def _call(self, spec: RouteSpec, context: Context, receive: Receive) -> Any:
        context.deadline = self.service.scheduler.now() + self._seconds(context)
        decode, arguments = self._decoders[spec.method], []
        if decode is not None:
            has_body = spec.body is not None
            arguments = [decode(await read_body(context, receive) if has_body else context.scope["query_string"])]
        connection = context.connection
        if connection is None:
            return await call_route(spec, context, *arguments)
        connection.task, context.waited = asyncio.current_task(), connection.since_sent()
        try:
            if connection.transport.is_closing():
                raise ClientGone
            return await call_route(spec, context, *arguments)
        finally:
            connection.task = None

    def _seconds(self, context: Context) -> float:
        """Return how long a request may take."""
        timeout, most = context.request_headers.get(b"x-timeout"), context.limits.most_seconds
        if timeout is None:
            return context.limits.seconds
        try:
            seconds = float(timeout)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds <= most:
            raise HttpError(422, f"X-Timeout: must be a number of seconds up to {most:g}", param="X-Timeout")
        return seconds

    def _to_http(self, error: Exception, spec: RouteSpec, context: Context) -> HttpError:
        """Return the answer to what a handler raised."""
        if isinstance(error, HttpError):
            return error
        if isinstance(error, NotServed):
            return HttpError(404, str(error), param=str(error).partition(":")[0], code="model_not_found")
        if isinstance(error, TooLong):
            seconds, limit = f"{error.seconds:.0f} s", "send fewer texts, or give it more time (X-Timeout)"
            return HttpError(413, f"the request would take about {seconds} even on an idle server; {limit}")
        if isinstance(error, DeadlineExceeded):
            return HttpError(504, "the request was not done in its time (X-Timeout)")
        if isinstance(error, UserError):
            field, colon, _ = str(error).partition(":")
            return HttpError(422, str(error), param=field if colon and field.isidentifier() else None)
        # The log must not contain text of the request, so only the type of the error and where it was raised.
        place = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-3:]]
        self.service.log.write("error", id=context.request_id, route=spec.path, error=type(error).__name__, place=place)
        return HttpError(500, f"the server failed; its log has more under the id {context.request_id}")
