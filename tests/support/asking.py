"""A server in this process: its ASGI application is asked without a socket."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import uvicorn

from bertree.serve.http.app import build_app
from bertree.serve.http.connections import ClientConnections
from bertree.serve.http.handlers import Service
from bertree.serve.http.telemetry import Log, Metrics
from bertree.serve.loading import ServedSource, load_sources
from bertree.serve.scheduler import Scheduler
from bertree.serve.served import Registry
from bertree.serve.settings import RequestSettings
from bertree.serve.worker import server_config


@dataclass(frozen=True)
class Answer:
    """What a server has answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """The line of an error, in whichever form."""
        body_json = self.json
        error = body_json.get("error", body_json)
        text = error if isinstance(error, str) else error["message"]
        assert isinstance(text, str)
        return text


class Asker:
    """A service whose routes can be asked, one request at a time or many at once."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.app = build_app(service)

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End its threads."""
        self.service.scheduler.stop()
        self.service.helpers.shutdown()

    async def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        """Send a request."""
        path, _, query = path.partition("?")
        fields = {"host": "localhost:8080", "content-length": str(len(body)), **(headers or {})}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in fields.items()],
        }
        sent: list[dict[str, Any]] = []
        received = False
        forever = asyncio.Event()

        async def receive() -> dict[str, Any]:
            nonlocal received
            if received:
                await forever.wait()
            received = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        if not sent:
            return Answer(499, {}, b"")
        lines = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], lines, b"".join(message.get("body", b"") for message in sent[1:]))

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        """Send an object as JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return asyncio.run(self.send("POST", path, data, {name.replace("_", "-"): v for name, v in headers.items()}))

    def get(self, path: str, **headers: str) -> Answer:
        """Send a request without a body."""
        return asyncio.run(self.send("GET", path, b"", {name.replace("_", "-"): v for name, v in headers.items()}))

    def post_all(self, requests: Sequence[tuple[str, Any]]) -> list[Answer]:
        """Send requests at the same time."""

        async def send() -> list[Answer]:
            return await asyncio.gather(*(self.send("POST", p, json.dumps(b).encode()) for p, b in requests))

        return asyncio.run(send())


def curl(asker: Asker, words: Sequence[str]) -> Answer:
    """Send what a command line of curl would: an address, -d BODY, -H HEADER; -s and -N are as nothing."""
    body, headers, address = b"", {}, ""
    rest = iter(words[1:])
    for word in rest:
        if word in ("-d", "--data"):
            body = next(rest).encode()
        elif word in ("-H", "--header"):
            name, _, value = next(rest).partition(": ")
            headers[name] = value
        elif not word.startswith("-"):
            address = word
        else:
            assert word in ("-s", "-N", "-sN"), f"curl {word}"
    _, _, path = (address.partition("//")[2] or address).partition("/")
    return asyncio.run(asker.send("POST" if body else "GET", f"/{path}", body, headers))


def start(
    sources: Sequence[tuple[str, Path | str]], settings: RequestSettings | None = None, threads: int = 2
) -> Asker:
    """Load models and indexes by name, and start the threads that compute; a `with` block ends them."""
    registry = load_sources([ServedSource(path=str(path), name=name, device="cpu") for name, path in sources])
    return with_registry(registry, settings, threads)


def with_registry(registry: Registry, settings: RequestSettings | None = None, threads: int = 2) -> Asker:
    """Serve what is loaded, with settings."""
    metrics = Metrics()
    scheduler = Scheduler(threads, 60, metrics)
    scheduler.start()
    return Asker(
        Service(
            registry=registry,
            scheduler=scheduler,
            settings=settings or RequestSettings(),
            metrics=metrics,
            log=Log(requests=False),
        )
    )


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Return an asynchronous test as one that pytest can run."""

    @wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


def refused(asker: Asker, path: str, body: Any, field: str, status: int = 422) -> str:
    """Send what must be refused; return the line of the refusal, which names the field at fault."""
    answer = asker.post(path, body)
    assert answer.status == status, answer.body
    assert answer.json["error"]["param"] == field, answer.json
    assert answer.message.startswith((f"{field}:", f"{field}[")), answer.message
    assert "\n" not in answer.message
    return answer.message


@contextmanager
def listening(asker: Asker, connections: ClientConnections | None = None) -> Iterator[str]:
    """Let an application listen on a socket of this machine; return its address."""
    config = server_config(asker.app, connections or ClientConnections())
    server, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
