"""The playground: a fixed set of static files, served with a strict content security policy, and what it shows: the
design space with the costs of presets and points, the runs and studies of served folders.

The files are read once and held in memory; no part of a request's path is ever opened as a file. The page is open to
everyone who reaches the server: it holds no data, and asks for the API key where the server wants one.
"""

from contextlib import suppress
from functools import cache, lru_cache
from hashlib import sha256
from importlib.resources import files
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.model import space
from bertree.model.presets import PRESETS, preset
from bertree.report.history import RunFolder, describe, find_runs, read_run, read_study
from bertree.serve.http.handlers import Context, Input, route
from bertree.serve.http.messages import HttpError
from bertree.serve.routes.inputs import field_error
from bertree.serve.served import NotServed

STATIC = files("bertree.serve").joinpath("page", "static")
TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
SHARED = files("bertree.report").joinpath("assets", "parts")  # what pages of reports use too
FOLDERS = (("", STATIC), ("parts/", STATIC / "parts"), ("parts/", SHARED), ("views/", STATIC / "views"))
FILES = {
    f"{name}{file.name}": file
    for name, folder in FOLDERS
    for file in folder.iterdir()
    if file.name.rpartition(".")[2] in TYPES
}
PAGES = {"/": "index.html", "/docs": "docs.html", "/favicon.ico": "icon.svg"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"  # no text can become HTML or a script
)


class StaticFile(Response):
    """A file of the page. A browser that has it already is told so (304)."""

    def __init__(self, name: str) -> None:
        body = FILES[name].read_bytes()
        self.etag = f'"{sha256(body).hexdigest()[:32]}"'
        self.kept_headers = {
            "etag": self.etag,
            "cache-control": "no-cache",
            "content-security-policy": POLICY,
            "referrer-policy": "no-referrer",
            "cross-origin-opener-policy": "same-origin",
        }
        super().__init__(body, headers={**self.kept_headers, "content-type": TYPES[name.rpartition(".")[2]]})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, or 304."""
        cached = Headers(scope=scope).get("if-none-match", "").split(",")
        if self.etag in (tag.strip().removeprefix("W/") for tag in cached):
            await Response(status_code=304, headers=self.kept_headers)(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


static_file = cache(StaticFile)  # a file is read once


@route("GET", "/", open=True, hidden=True)
@route("GET", "/docs", open=True, hidden=True)
@route("GET", "/favicon.ico", open=True, hidden=True)
@route("GET", "/page/{name:path}", open=True, hidden=True)
async def page(context: Context) -> Any:
    """Return the playground, the page of all routes, or one of their files."""
    name = PAGES.get(context.route) or context.parameter
    if name not in FILES:
        raise HttpError(404, "the playground has no such file", code="unknown_path")
    return static_file(name)


class RunQuery(Input):
    """The name of a run or of a study, as `GET /runs` has it."""

    name: str


@route("GET", "/runs")
async def runs(context: Context) -> Any:
    """Return the runs and studies in the served folders."""

    def find() -> list[Json]:
        lines = []
        for run in _all(context):
            with suppress(UserError, OSError):
                lines.append(describe(run))
        return lines

    return {"runs": await context.call_in_helper(find)}


@route("GET", "/run")
@route("GET", "/study")
async def run(context: Context, query: RunQuery) -> Any:
    """Return the curves of a run, also while it trains; or the table of a study, and how far it is."""
    return await context.call_in_helper(_read, context, query.name, context.route.removeprefix("/"))


def _all(context: Context) -> list[RunFolder]:
    return [run for name, root in context.service.registry.runs.items() for run in find_runs(name, root)]


def _read(context: Context, name: str, kind: str) -> Json:
    """Read what a client has named. Errors name the folder, which it must not see; they are logged."""
    listed = {run.name: run for run in _all(context) if run.kind == kind}
    if name not in listed:
        raise NotServed(f"name: '{name[:60]}' is no {kind} that is served here; {suggest(name[:60], listed)}")
    try:
        read = read_run if kind == "run" else read_study
        return {"run": describe(listed[name])} | read(listed[name].path)
    except (UserError, OSError) as error:
        context.service.log.write("run failed", id=context.request_id, run=name, reason=str(error))
        raise HttpError(503, f"the files of '{name}' cannot be read; the server's log says why") from None


class PointRequest(Input):
    """A preset with other values on some axes, and the batch of a training step."""

    preset: str
    changes: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)
    length: Annotated[int, Meta(ge=1)] | None = None
    batch: Annotated[int, Meta(ge=1)] = 1


class SpaceQuery(Input):
    """The batch that the presets' memory and operations are computed for; texts are no longer than a preset reads."""

    length: Annotated[int, Meta(ge=1, le=2**20)] = 512
    batch: Annotated[int, Meta(ge=1, le=2**20)] = 1


@route("GET", "/space")
async def design_space(context: Context, query: SpaceQuery) -> Any:
    """Return the presets, what they cost, and the axes of the design space."""
    return await context.call_in_helper(_space, tuple(PRESETS), query.length, query.batch)


@lru_cache(maxsize=32)
def _space(names: tuple[str, ...], length: int, batch: int) -> dict[str, Any]:
    return {"presets": space.describe_presets(length, batch), "axes": space.describe_axes()}


@route("POST", "/space")
async def design_point(context: Context, body: PointRequest) -> Any:
    """Return parameters, memory and operations of a point, or why there is no such point."""
    try:
        preset(body.preset)
    except UserError as error:
        raise field_error("preset", error) from None
    try:
        point = await context.call_in_helper(space.describe_point, body.preset, body.changes, body.length, body.batch)
        return {"valid": True} | point
    except UserError as error:
        return {"valid": False, "message": str(error)}
