"""A page that lists the routes: no script, nothing from elsewhere."""

from collections.abc import Sequence
from html import escape
from typing import Any

from bertree.serve.http.openapi import openapi_document
from bertree.serve.http.table import RouteSpec

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font-family: ui-monospace, monospace; font-size: .9em }
summary { cursor: pointer; padding: .4rem 0 } summary code { font-weight: 600 }
table { border-collapse: collapse; margin: .5rem 0 1rem } td, th { text-align: left; padding: .2rem .8rem .2rem 0 }
details { border-top: 1px solid color-mix(in srgb, currentColor 20%, transparent) }
"""


def docs_page(routes: Sequence[RouteSpec]) -> str:
    """Return the page."""
    document = openapi_document(routes)
    components = document["components"]["schemas"]
    parts = [
        _route(method.upper(), path, operation, components)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>bertree: routes</title><style>{STYLE}</style><h1>Routes</h1>"
        f"<p>For programs: <a href='/openapi.json'>/openapi.json</a></p>{''.join(parts)}</html>"
    )


def _route(method: str, path: str, operation: dict[str, Any], components: dict[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    fields = components.get(body.get("$ref", "").rpartition("/")[2], {})
    required = fields.get("required", [])
    rows = [
        f"<tr><td><code>{escape(name)}</code><td>{escape(_kind(kind))}<td>{'required' if name in required else ''}"
        for name, kind in fields.get("properties", {}).items()
    ]
    rows += [
        f"<tr><td><code>{escape(p['name'])}</code><td>{escape(_kind(p['schema']))}<td>in the {p['in']}"
        for p in operation.get("parameters", [])
    ]
    table = f"<table>{''.join(rows)}</table>" if rows else "<p>No input."
    return (
        f"<details><summary><code>{method} {escape(path)}</code> {escape(operation['summary'])}</summary>"
        f"{table}</details>"
    )


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
