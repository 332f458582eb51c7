"""What a handler is given beside its input."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.types import Scope

from bertree.serve.http.logs import Log
from bertree.serve.http.metrics import Metrics
from bertree.serve.models.registry import Registry
from bertree.serve.schedule.scheduler import Scheduler
from bertree.serve.schedule.work import Job, Lane
from bertree.serve.settings import Limits, RequestSettings

Result = TypeVar("Result")
CLIENT_CLOSED = 499  # status in logs and metrics of a request whose client has gone
CONTEXT = "bertree.context"  # where an ASGI scope has the context of its request


class Service:
    """All that the routes of one server share."""

    def __init__(
        self, registry: Registry, scheduler: Scheduler, settings: RequestSettings, metrics: Metrics, log: Log
    ) -> None:
        self.registry, self.scheduler, self.settings = registry, scheduler, settings
        self.metrics, self.log = metrics, log
        self.draining = False  # the server is about to stop
        self.helpers = ThreadPoolExecutor(2, "helper")  # tokenizing and encoding of large requests


@dataclass(slots=True)
class Context:
    """One request."""

    service: Service
    scope: Scope
    given: Mapping[bytes, bytes]  # headers of the request
    request_id: str
    deadline: float = 0.0  # on the scheduler's clock
    headers: dict[str, str] = field(default_factory=dict)  # of the answer
    route: str = "none"  # path in the table of routes
    status: int = CLIENT_CLOSED  # of the answer
    tokens: int = 0  # computed for it

    @property
    def path(self) -> Mapping[str, str]:
        """Parameters of the path."""
        found: Mapping[str, str] = self.scope.get("path_params") or {}
        return found

    @property
    def registry(self) -> Registry:
        """The models and indexes."""
        return self.service.registry

    @property
    def scheduler(self) -> Scheduler:
        """What computes."""
        return self.service.scheduler

    @property
    def limits(self) -> Limits:
        """What a request may ask for."""
        return self.service.settings.limits

    async def run(self, lane: Lane, jobs: Sequence[Job]) -> list[Any]:
        """Compute jobs before the deadline; return their results in order."""
        self.tokens += sum([job.tokens for job in jobs])
        return await self.service.scheduler.run(lane, jobs, self.deadline)

    async def call(self, lane: Lane, tokens: int, function: Callable[[], Result]) -> Result:
        """Compute a function in a compute thread; `tokens`: an estimate of its work."""
        (found,) = await self.run(lane, [Job(tokens, function)])
        return found

    async def aside(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function in a helper thread, so that the event loop goes on meanwhile. Not for computing."""
        return await asyncio.get_running_loop().run_in_executor(self.service.helpers, function, *arguments)
