"""The table of routes: a decorator puts a function into it; the application and the OpenAPI document are made of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True)
class RouteSpec:
    """A method and path, what answers it, and what it takes."""

    method: str
    path: str  # may have parameters: /page/{name}
    handler: Callable[..., Awaitable[Any]]
    body: Any = None  # type of the JSON body (msgspec), given to the handler
    query: Any = None  # type of the query parameters, given to the handler
    reply: Any = None  # type of the answer, for the documentation
    does: str | None = None  # ability of the model that it needs; such a route is refused when too much waits
    errors: str = "openai"  # form of errors: openai, tei or cohere
    open: bool = False  # needs no key
    summary: str = ""
    hidden: bool = False  # not in the documentation


ROUTES: list[RouteSpec] = []


def route(
    method: str,
    path: str,
    *,
    body: Any = None,
    query: Any = None,
    reply: Any = None,
    does: str | None = None,
    errors: str = "openai",
    open: bool = False,
    summary: str = "",
    hidden: bool = False,
) -> Callable[[Handler], Handler]:
    """Register a route. The handler is `async def handler(context)` or, with a body or a query,
    `async def handler(context, value)`; it returns what is sent as JSON, or a response of Starlette."""

    def register(handler: Handler) -> Handler:
        ROUTES.append(RouteSpec(method, path, handler, body, query, reply, does, errors, open, summary, hidden))
        return handler

    return register
