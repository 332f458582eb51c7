"""Runs and studies of the served folders: the list, the curves of a run, the table of a study."""

from contextlib import suppress
from typing import Any

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.report.run_folders import RunFolder, describe, find_runs, read_run, read_study
from bertree.serve.http.handlers import Context, Input, route
from bertree.serve.http.messages import HttpError
from bertree.serve.served import NotServed


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
