"""A path of the server: reads the input, calls the handler, sends the answer or the error."""

import asyncio
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bertree.errors import UserError
from bertree.serve.http.answers import send_busy, send_error, send_json, send_response
from bertree.serve.http.client_watch import ClientWatch, ClientWatches
from bertree.serve.http.context import CONTEXT, Context, Service
from bertree.serve.http.decoding import ClientGone, body_decoder, query_decoder, read_body
from bertree.serve.http.errors import HttpError
from bertree.serve.http.table import RouteSpec
from bertree.serve.models.registry import NotServed
from bertree.serve.schedule.work import DeadlineExceeded, Overloaded


class Endpoint:
    """The routes of one path: an ASGI application."""

    def __init__(self, service: Service, specs: Sequence[RouteSpec]) -> None:
        self.service = service
        self._watches = ClientWatches()
        self.specs = {spec.method: spec for spec in specs}
        self._path, self._errors = specs[0].path, specs[0].errors
        self._decoders: dict[str, Callable[[bytes], Any] | None] = {
            spec.method: body_decoder(spec.body) if spec.body else query_decoder(spec.query) if spec.query else None
            for spec in specs
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that Starlette's router has found."""
        await self.answer(scope[CONTEXT], receive, send)

    async def answer(self, context: Context, receive: Receive, send: Send) -> None:
        """Answer a request."""
        method = context.scope["method"]
        spec = self.specs.get("GET" if method == "HEAD" else method)
        context.route = self._path
        if spec is None:
            allowed = ", ".join(sorted(self.specs))
            error = HttpError(405, f"{method[:20]} is not possible here, only {allowed}", headers={"allow": allowed})
            await send_error(context, send, error, self._errors)
            return
        scheduler = self.service.scheduler
        if spec.does is not None and scheduler.is_full:  # before its body is read: a refusal must be cheap
            await send_busy(context, send, Overloaded(scheduler.retry_after).retry_after, spec.errors)
            return
        watch = ClientWatch(receive, self._watches)
        try:
            result = await self._call(spec, context, receive, watch)
        except ClientGone:
            return
        except asyncio.CancelledError:
            if watch.gone:
                asyncio.current_task().uncancel()  # type: ignore[union-attr]
                return
            with suppress(Exception):
                await send_error(context, send, HttpError(503, "the server is stopping"), spec.errors)
            raise
        except Overloaded as error:
            await send_busy(context, send, error.retry_after, spec.errors)
        except Exception as error:
            await send_error(context, send, self._to_http(error, spec, context), spec.errors)
        else:
            if isinstance(result, Response):
                await send_response(context, receive, send, result)
            else:
                await send_json(context, send, 200, result)

    async def _call(self, spec: RouteSpec, context: Context, receive: Receive, watch: "ClientWatch") -> Any:
        service = self.service
        context.deadline = service.scheduler.now() + self._seconds(context)
        decode = self._decoders[spec.method]
        if spec.body is None:
            return await (
                spec.handler(context, decode(context.scope["query_string"])) if decode else spec.handler(context)
            )
        assert decode is not None
        value = decode(await read_body(context.given, receive, service.settings.limits.body_bytes))
        watch.start()
        try:
            return await spec.handler(context, value)
        finally:
            watch.stop()

    def _seconds(self, context: Context) -> float:
        """Return how long a request may take."""
        limits = self.service.settings.limits
        wanted = context.given.get(b"x-timeout")
        if wanted is None:
            return limits.seconds
        try:
            seconds = float(wanted)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds <= limits.most_seconds:
            raise HttpError(
                422, f"X-Timeout: must be a number of seconds up to {limits.most_seconds:g}", param="X-Timeout"
            )
        return seconds

    def _to_http(self, error: Exception, spec: RouteSpec, context: Context) -> HttpError:
        """Return the answer to what a handler raised."""
        if isinstance(error, HttpError):
            return error
        if isinstance(error, NotServed):
            return HttpError(404, str(error), param=str(error).partition(":")[0], code="model_not_found")
        if isinstance(error, DeadlineExceeded):
            return HttpError(504, "the request was not done in its time (X-Timeout)")
        if isinstance(error, UserError):
            field, colon, _ = str(error).partition(":")
            return HttpError(422, str(error), param=field if colon and field.isidentifier() else None)
        # No text of the request may get into the log, so only the kind of the error and where it happened.
        place = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-3:]]
        self.service.log.write("error", id=context.request_id, route=spec.path, error=type(error).__name__, place=place)
        return HttpError(500, f"the server failed; its log has more under the id {context.request_id}")
