"""One path of the server: decodes the input, calls the handler, sends the answer or the error.

When a client closes the connection before its answer, the rest of its work is cancelled.
"""

import asyncio
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Send

from bertree.errors import UserError
from bertree.serve.http.handlers import Context, RouteSpec, Service, call_route
from bertree.serve.http.messages import (
    ClientGone,
    HttpError,
    body_decoder,
    query_decoder,
    read_body,
    send_busy,
    send_error,
    send_json,
    send_response,
)
from bertree.serve.registry import NotServed
from bertree.serve.token_queue import DeadlineExceeded, Overloaded, TooLong


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
        connection.task = asyncio.current_task()
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
