"""What a handler of requests is written with: the decorator `route`, and the `Context` of its request.

The decorator puts the function into the table `ROUTES`; the application and the OpenAPI document are built from it.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from starlette.types import Scope

from bertree.errors import suggest
from bertree.serve.http.connections import BoundedProtocol
from bertree.serve.http.telemetry import Log, Metrics
from bertree.serve.scheduler import Scheduler
from bertree.serve.served import Registry, ServedModel
from bertree.serve.settings import Limits, RequestSettings
from bertree.serve.token_queue import Job, JobKind, Overloaded

CLIENT_CLOSED = 499  # status in logs and metrics of a request whose client has closed the connection
MOST_HELPING = 256  # calls that may wait for a helper thread
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])
Result = TypeVar("Result")


class Input(msgspec.Struct, forbid_unknown_fields=True):
    """The body or the query of a request. A field that it does not have is refused by its name."""


class InputsRequest(Input):
    """A body in Hugging Face's form."""

    inputs: str | dict[str, str]
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    model: str | None = None
    stream: Literal[False] = False


class InputsForm(NamedTuple):
    """How a route reads and answers such a body: names -> those of its own form. An empty name: not needed."""

    inputs: str | Mapping[str, str]
    parameters: Mapping[str, str]
    write: Callable[["Context", InputsRequest, Any], Any]  # the route's own answer -> the answer in this form

    def read(self, request: InputsRequest) -> dict[str, Any]:
        """Return the fields of the route's own form; ValueError names one that is unknown or missing."""
        is_text = isinstance(self.inputs, str)
        if is_text != isinstance(request.inputs, str):
            raise ValueError("inputs: must be " + ("a text" if is_text else "an object"))
        texts: Any = {self.inputs: request.inputs} if is_text else request.inputs
        names: Any = {self.inputs: self.inputs} if is_text else self.inputs
        fields: dict[str, Any] = {"model": request.model}
        for part, own in ((texts, names), (request.parameters, self.parameters)):
            if unknown := next((name for name in part if name not in own), None):
                raise ValueError(f"{unknown}: unknown field; {suggest(unknown, own)}")
            fields |= {own[name]: value for name, value in part.items() if own[name]}
        if missing := next((name for name in names if names[name] not in fields), None):
            raise ValueError(f"inputs: {missing} is missing")
        return fields


@dataclass(eq=False)
class RouteSpec:
    """A method and a path, its handler, and how its requests are treated.

    It is the decorator `route` of a handler: `async def handler(context)` or `async def handler(context, body: Type)`;
    the body, or the query of a GET request, is decoded to that type. The handler returns a value for JSON or a
    Starlette response; its docstring is the summary in the documentation."""

    method: str
    path: str  # may have parameters: /page/{name}
    _: KW_ONLY
    reply: Any = None  # type of the answer, for the documentation
    ability: str | None = None  # that the model needs; such a route answers 429 while the queue is full
    errors: str = "openai"  # form of errors: openai, tei or cohere
    open: bool = False  # needs no key
    hidden: bool = False  # not in the documentation
    inputs: InputsForm | None = None  # for a body with `inputs`
    handler: Callable[..., Awaitable[Any]] = field(init=False)
    body: Any = field(init=False, default=None)  # msgspec type of the JSON body; None: there is none
    query: Any = field(init=False, default=None)  # type of the query parameters; None: there are none

    def __call__(self, handler: Handler) -> Handler:
        """Put a handler into the table of routes."""
        _, *parameters = inspect.signature(handler).parameters.values()
        if parameters:
            setattr(self, "query" if self.method == "GET" else "body", parameters[0].annotation)
        self.handler = handler
        ROUTES.append(self)
        return handler

    @property
    def summary(self) -> str:
        """What it does, in a line."""
        return " ".join((self.handler.__doc__ or "").split())


ROUTES: list[RouteSpec] = []
route = RouteSpec


async def call_route(spec: RouteSpec, context: "Context", *body: Any) -> Any:
    """Call the handler of a route. A body with `inputs` comes as a pair, and is answered in that form."""
    if spec.inputs is None or not isinstance(body[0], tuple):
        return await spec.handler(context, *body)
    own, request = body[0]
    return spec.inputs.write(context, request, await spec.handler(context, own))


@dataclass(kw_only=True)
class Service:
    """What all routes of one server share."""

    registry: Registry
    scheduler: Scheduler
    settings: RequestSettings
    metrics: Metrics
    log: Log
    draining: bool = False  # the server is about to stop
    body_bytes: int = 0  # of the bodies that are arriving
    helping: int = 0  # calls of helper threads
    helpers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "helper"))


@dataclass(slots=True)
class Context:
    """One request."""

    service: Service
    scope: Scope
    request_headers: Mapping[bytes, bytes]
    request_id: str
    connection: BoundedProtocol | None  # None: another server than ours reads the requests
    _: KW_ONLY
    deadline: float = 0.0  # on the scheduler's clock
    waited: float = 0.0  # seconds until it was read
    response_headers: dict[str, str] = field(default_factory=dict)
    route: str = "none"  # path in the table of routes
    parameter: str = ""  # of the path
    ability: str | None = None  # that the route needs of a model
    status: int = CLIENT_CLOSED  # of the answer
    tokens: int = 0  # computed for the request

    @property
    def limits(self) -> Limits:
        """Limits of a request."""
        return self.service.settings.limits

    def model(self, name: str | None) -> ServedModel:
        """Return the model of a name, or the first with the ability of this route."""
        return self.service.registry.model(name, self.ability)

    async def run(self, kind: JobKind, jobs: Sequence[Job]) -> list[Any]:
        """Compute jobs before the deadline; return their results in order."""
        self.tokens += sum([job.tokens for job in jobs])
        return await self.service.scheduler.run(kind, jobs, self.deadline, self.waited)

    async def call(self, kind: JobKind, tokens: int, function: Callable[[], Result]) -> Result:
        """Call a function in a compute thread; `tokens`: an estimate of its work."""
        (result,) = await self.run(kind, [Job(tokens, function)])
        return result

    async def call_in_helper(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function in a helper thread, without blocking the event loop: for tokenizing and writing of large
        requests, not for computing. Overloaded if too many calls wait."""
        if self.service.helping >= MOST_HELPING:
            raise Overloaded(1)
        self.service.helping += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.service.helpers, function, *arguments)
        finally:
            self.service.helping -= 1
