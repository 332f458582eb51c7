"""A page that lists the routes: no script, nothing from elsewhere."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from bertree.report.html import render
from bertree.serve.http.openapi import openapi_document
from bertree.serve.http.table import RouteSpec


class _Route(NamedTuple):
    """A route as the page shows it."""

    method: str
    path: str
    summary: str
    fields: list[tuple[str, str, str]]  # name, kind, and whether it is required or where it is given


def docs_page(routes: Sequence[RouteSpec]) -> str:
    """Return the page."""
    document = openapi_document(routes)
    components = document["components"]["schemas"]
    shown = [
        _Route(method.upper(), path, operation["summary"], _fields(operation, components))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    return render("routes", routes=shown)


def _fields(operation: dict[str, Any], components: dict[str, Any]) -> list[tuple[str, str, str]]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    schema = components.get(body.get("$ref", "").rpartition("/")[2], {})
    required = schema.get("required", [])
    found = [
        (name, _kind(kind), "required" if name in required else "")
        for name, kind in schema.get("properties", {}).items()
    ]
    return found + [(p["name"], _kind(p["schema"]), f"in the {p['in']}") for p in operation.get("parameters", [])]


def _kind(schema: dict[str, Any]) -> str:
    """Return a schema in words."""
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))
