"""A path of the server: reads the input, calls the handler, sends the answer or the error."""

import asyncio
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bertree.errors import UserError
from bertree.serve.http.context import Context, Service
from bertree.serve.http.decoding import ClientGone, body_decoder, query_decoder, read_body
from bertree.serve.http.errors import HttpError, error_body
from bertree.serve.http.table import RouteSpec
from bertree.serve.models.registry import NotServed
from bertree.serve.schedule.work import DeadlineExceeded, Overloaded

JSON = b"application/json"
WATCHED_AFTER = 0.05  # seconds from which on it is watched whether the client has gone


class Endpoint:
    """The routes of one path: an ASGI application."""

    def __init__(self, service: Service, specs: Sequence[RouteSpec]) -> None:
        self.service = service
        self.specs = {spec.method: spec for spec in specs}
        self._decoders: dict[str, Callable[[bytes], Any] | None] = {
            spec.method: body_decoder(spec.body) if spec.body else query_decoder(spec.query) if spec.query else None
            for spec in specs
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        spec = self.specs.get(method)
        scope["bertree.route"] = next(iter(self.specs.values())).path
        if spec is None:
            allowed = ", ".join(sorted(self.specs))
            error = HttpError(405, f"{method[:20]} is not possible here, only {allowed}", headers={"allow": allowed})
            await send_error(send, error, next(iter(self.specs.values())).errors)
            return
        context = Context(self.service, scope["bertree.id"], 0.0, scope.get("path_params") or {})
        scope["bertree.context"] = context
        try:
            result = await self._call(spec, context, scope, receive)
        except ClientGone:
            scope["bertree.gone"] = True
        except asyncio.CancelledError:
            if scope.get("bertree.gone"):
                asyncio.current_task().uncancel()  # type: ignore[union-attr]
                return
            with suppress(Exception):
                await send_error(send, HttpError(503, "the server is stopping"), spec.errors)
            raise
        except Exception as error:
            await send_error(send, self._to_http(error, spec, context), spec.errors, context.headers)
        else:
            if isinstance(result, Response):
                for name, value in context.headers.items():
                    result.headers[name] = value
                await result(scope, receive, send)
            else:
                await send_json(send, 200, result, context.headers)

    async def _call(self, spec: RouteSpec, context: Context, scope: Scope, receive: Receive) -> Any:
        service = self.service
        if spec.computes and service.scheduler.is_full:  # before its body is read: a refusal must be cheap
            raise Overloaded(service.scheduler.retry_after)
        context.deadline = service.scheduler.now() + self._seconds(scope)
        decode = self._decoders[spec.method]
        if spec.body is None:
            return await (spec.handler(context, decode(scope["query_string"])) if decode else spec.handler(context))
        assert decode is not None
        value = decode(await read_body(scope, receive, service.settings.limits.body_bytes))
        watch = ClientWatch(scope, receive)
        try:
            return await spec.handler(context, value)
        finally:
            watch.stop()

    def _seconds(self, scope: Scope) -> float:
        """Return how long a request may take."""
        limits = self.service.settings.limits
        for name, value in scope["headers"]:
            if name == b"x-timeout":
                try:
                    seconds = float(value)
                except ValueError:
                    seconds = -1.0
                if not 0 < seconds <= limits.most_seconds:
                    raise HttpError(
                        422, f"X-Timeout: must be a number of seconds up to {limits.most_seconds:g}", param="X-Timeout"
                    )
                return seconds
        return limits.seconds

    def _to_http(self, error: Exception, spec: RouteSpec, context: Context) -> HttpError:
        """Return the answer to what a handler raised."""
        if isinstance(error, HttpError):
            return error
        if isinstance(error, NotServed):
            return HttpError(404, str(error), param=str(error).partition(":")[0], code="model_not_found")
        if isinstance(error, Overloaded):
            wait = str(error.retry_after)
            return HttpError(429, f"the server is busy; try again in {wait} s", headers={"retry-after": wait})
        if isinstance(error, DeadlineExceeded):
            return HttpError(504, "the request was not done in its time (X-Timeout)")
        if isinstance(error, UserError):
            field, colon, _ = str(error).partition(":")
            return HttpError(422, str(error), param=field if colon and field.isidentifier() else None)
        # No text of the request may get into the log, so only the kind of the error and where it happened.
        place = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-3:]]
        self.service.log.write("error", id=context.request_id, route=spec.path, error=type(error).__name__, place=place)
        return HttpError(500, f"the server failed; its log has more under the id {context.request_id}")


class ClientWatch:
    """Cancels a task when its client closes the connection. It begins after a moment, when most requests are done."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        """The task is the one that runs."""
        task = asyncio.current_task()
        assert task is not None
        self._scope, self._receive, self._task = scope, receive, task
        self._watcher: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(WATCHED_AFTER, self._begin)

    def stop(self) -> None:
        """Watch no longer."""
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def _begin(self) -> None:
        self._watcher = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._scope["bertree.gone"] = True
        self._task.cancel()


async def send_json(send: Send, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
    """Send a value as JSON."""
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    lines = [(b"content-type", JSON), (b"content-length", str(len(body)).encode())]
    for name, text in (headers or {}).items():
        lines.append((name.lower().encode("latin-1"), text.encode("latin-1", "replace")))
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: HttpError, form: str, headers: dict[str, str] | None = None) -> None:
    """Send an error in a form."""
    await send_json(send, error.status, error_body(error, form), {**(headers or {}), **error.headers})
