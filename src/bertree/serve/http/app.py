"""The application: the routes behind what happens to every request."""

from collections import defaultdict

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from bertree.serve.http.context import Service
from bertree.serve.http.endpoint import Endpoint, send_error
from bertree.serve.http.errors import HttpError
from bertree.serve.http.middleware import AllowOrigins, Observe, RefuseForeignPages, RequireKey
from bertree.serve.http.table import ROUTES, RouteSpec
from bertree.serve.page import page
from bertree.serve.routes import answer, cohere, generate, layers, openai, operations, search, space, tei, text

# Importing the modules fills the table of routes.
__all__ = [
    "answer",
    "build_app",
    "cohere",
    "generate",
    "layers",
    "openai",
    "operations",
    "page",
    "search",
    "space",
    "tei",
    "text",
]


def build_app(service: Service) -> ASGIApp:
    """Return the ASGI application of a server."""
    by_path: dict[str, list[RouteSpec]] = defaultdict(list)
    for spec in ROUTES:
        by_path[spec.path].append(spec)
    endpoints: dict[str, ASGIApp] = {path: Endpoint(service, specs) for path, specs in by_path.items()}
    open_paths = [spec.path for spec in ROUTES if spec.open]
    app: ASGIApp = RequireKey(Paths(endpoints), service, open_paths)
    if service.settings.cors:
        app = AllowOrigins(app, service.settings.cors)
    app = RefuseForeignPages(app, service.settings.cors, service.settings.loopback)
    return Observe(app, service)


class Paths:
    """Finds the endpoint of a path: a plain one in a dictionary, one with parameters by Starlette's router."""

    def __init__(self, endpoints: dict[str, ASGIApp]) -> None:
        self._plain = {path: endpoint for path, endpoint in endpoints.items() if "{" not in path}
        others = [Route(path, endpoint) for path, endpoint in endpoints.items() if "{" in path]
        self._router = Router(others, redirect_slashes=False, default=_not_found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._plain.get(scope.get("path", ""), self._router)(scope, receive, send)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await send_error(send, HttpError(404, "there is no such path; see /docs", code="unknown_path"), "openai")
