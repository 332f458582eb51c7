"""Health, readiness, metrics, and the documentation of the interface."""

from functools import cache
from typing import Any

import orjson
from starlette.responses import Response

from bertree.serve.http.handlers import ROUTES, Context, route
from bertree.serve.http.messages import HttpError
from bertree.serve.http.openapi import openapi_document

TEXT = "text/plain; version=0.0.4; charset=utf-8"


@route("GET", "/health", open=True, errors="tei")
async def health(context: Context) -> Any:
    """Return that the server is alive."""
    return {"status": "ok"}


@route("GET", "/ready", open=True)
async def ready(context: Context) -> Any:
    """Return whether the server takes requests: 503 when it is about to stop."""
    if context.service.draining:
        raise HttpError(503, "stopping")
    return {"status": "ready"}


@route("GET", "/metrics")
async def prometheus_metrics(context: Context) -> Response:
    """Return the metrics for Prometheus."""
    metrics, scheduler = context.service.metrics, context.service.scheduler
    metrics.queue_tokens.set(scheduler.queued_tokens)
    metrics.queue_requests.set(scheduler.queued_requests)
    metrics.wait_seconds.set(scheduler.wait)
    return Response(await context.call_in_helper(metrics.text), media_type=TEXT)


@route("GET", "/openapi.json", open=True)
async def openapi(context: Context) -> Any:
    """Return this interface as an OpenAPI document."""
    return _document()


@cache
def _document() -> orjson.Fragment:
    return orjson.Fragment(orjson.dumps(openapi_document(ROUTES)))
