"""Health, readiness, metrics, and the documentation of the interface: the OpenAPI document, which the page `/docs`
shows."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import orjson
from starlette.responses import Response

from bertree.serve.http.handlers import ROUTES, Context, RouteSpec, route
from bertree.serve.http.messages import HttpError, error_body
from bertree.version import __version__

MEANINGS = {
    400: "the body is not JSON",
    401: "the key is missing or wrong",
    404: "no such model or index",
    413: "the body is too large",
    422: "a field is wrong; the message names it",
    429: "the server is busy; Retry-After says when to try again",
    504: "not done in the time given by X-Timeout",
}
REFERENCE = "#/components/schemas/{name}"


def openapi_document(routes: Sequence[RouteSpec]) -> dict[str, Any]:
    """Return the OpenAPI document."""
    shown = [spec for spec in routes if not spec.hidden]
    kinds = [kind for spec in shown for kind in [spec.body, spec.query, spec.reply] if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    schema_of = dict(zip(map(id, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for spec in shown:
        methods = paths.setdefault(spec.path.replace(":path}", "}"), {})
        methods[spec.method.lower()] = _operation(spec, schema_of, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "bertree",
            "version": __version__,
            "description": "Vectors, ranking, classes and search by the models that this server was started with.",
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(spec: RouteSpec, schema_of: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    name = spec.path.replace(":path", "").translate(str.maketrans("/", "_", "{}"))
    content = {"application/json": {"schema": schema_of[id(spec.reply)]}} if spec.reply is not None else {}
    operation: dict[str, Any] = {
        "operationId": f"{spec.method.lower()}{name}",
        "summary": spec.summary,
        "responses": {"200": {"description": "the answer"} | ({"content": content} if content else {})},
    }
    if not spec.open:
        operation["security"] = [{"key": []}, {}]
    parameters = [
        {"name": name.rstrip("}").removesuffix(":path"), "in": "path", "required": True, "schema": {"type": "string"}}
        for name in spec.path.split("{")[1:]
    ]
    if spec.query is not None:
        schema = components[schema_of[id(spec.query)]["$ref"].rpartition("/")[2]]
        parameters += [
            {"name": name, "in": "query", "required": name in schema.get("required", []), "schema": kind}
            for name, kind in schema["properties"].items()
        ]
    if parameters:
        operation["parameters"] = parameters
    if spec.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[id(spec.body)]}},
        }
        error = {"application/json": {"schema": _schema_of(error_body(HttpError(422, "k: is wrong"), spec.errors))}}
        operation["responses"] |= {
            str(status): {"description": meaning, "content": error} for status, meaning in MEANINGS.items()
        }
    return operation


def _schema_of(value: Any) -> dict[str, Any]:
    """Return the schema of the values that look like this one; a field without a value is a text, or null."""
    if isinstance(value, dict):
        fields = {name: _schema_of(inner) for name, inner in value.items()}
        return {"type": "object", "required": list(fields), "properties": fields}
    return {"type": "string" if value else ["string", "null"]}


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
