"""One process of a server: loads the models, listens, drains at a signal."""

import asyncio
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

from bertree.engines.local import available_cores
from bertree.errors import UserError
from bertree.serve.http.app import Application, build_app
from bertree.serve.http.connections import BACKLOG, ClientConnections
from bertree.serve.http.handlers import Service
from bertree.serve.http.telemetry import Log, LogHandler, Metrics
from bertree.serve.loading import ServedSource, Swapper, load_sources
from bertree.serve.scheduler import Scheduler
from bertree.serve.served import Registry
from bertree.serve.settings import LOOPBACK, ApiKeys, Limits, RequestSettings, ServerSettings, url_of

LINGER = 0.3  # seconds in which a request that was on its way when the signal came may still arrive
KEEP_ALIVE = 75  # seconds that an idle connection is kept
LOOK = 1  # seconds between looks at all connections


class DrainingServer(uvicorn.Server):
    """Stops without losing a request: accepted requests are answered, within the drain time."""

    def __init__(
        self,
        service: Service,
        swapper: Swapper,
        watch_seconds: float,
        drain: float,
        ready: Callable[[], None],
    ) -> None:
        """`ready` is called when it listens."""
        super().__init__(server_config(build_app(service), ClientConnections(), drain))
        self._service, self._swapper, self._watch_seconds, self._ready = service, swapper, watch_seconds, ready
        self.signal: int | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self._ready()

    async def main_loop(self) -> None:
        """Serve until a signal comes; check for changed folders meanwhile."""
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError, ValueError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(signal.SIGHUP, self._swapper.request)
        watching = asyncio.create_task(self._swapper.watch(self._watch_seconds))
        try:
            await super().main_loop()
        finally:
            watching.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer the accepted requests, close the connections."""
        self._service.draining = True
        for server in self.servers:
            server.close()
        await asyncio.sleep(LINGER)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals; the exit code reports them, so they are not raised again."""
        handlers = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            self.signal = self._captured_signals[0] if self._captured_signals else None


def server_config(app: Application, connections: ClientConnections, drain: float = 30) -> uvicorn.Config:
    """Return uvicorn's settings. `drain`: seconds for accepted requests when it stops."""
    connections.refuse = app.refuse
    return uvicorn.Config(
        app,
        http=connections.protocol(),
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # an address that a client names is not believed
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, int(drain)),
        backlog=BACKLOG,
        ws="none",
        callback_notify=connections.look,
        timeout_notify=LOOK,
    )


def build_service(settings: ServerSettings, registry: Registry, log: Log) -> Service:
    """Build a service with the limits of the settings."""
    metrics = Metrics()
    devices = {served.model.device.type for served in registry.models.values()}
    # On a GPU one thread prepares a batch while another waits for its results.
    threads = settings.threads or (2 if "cuda" in devices else max(1, available_cores() // settings.workers))
    scheduler = Scheduler(threads, settings.queue, metrics)
    limits = Limits(body_bytes=settings.max_body * 2**20, seconds=settings.timeout)
    loopback = settings.host in LOOPBACK and not settings.keys
    checks = RequestSettings(limits, ApiKeys(settings.keys), settings.cors, loopback)
    return Service(registry=registry, scheduler=scheduler, settings=checks, metrics=metrics, log=log)


def find_sources(settings: ServerSettings) -> list[ServedSource]:
    """Return the sources of the settings, each with its name."""
    names = settings.names or ("",) * len(settings.sources)
    shared: dict[str, Any] = {name: getattr(settings, name) for name in ("device", "precision", "schema", "table")}
    return [ServedSource(path=path, name=name, **shared) for name, path in zip(names, settings.sources, strict=True)]


def load_service(settings: ServerSettings, log: Log) -> Service:
    """Load the models and indexes of the settings."""
    return build_service(settings, load_sources(find_sources(settings)), log)


def freeze_imports() -> None:
    """Exclude the objects of the imported libraries from garbage collection: they live as long as the process.

    There are 300,000 of them. While thousands of requests wait, each collection that looks at all of them stops
    every thread for a third of a second. Models are loaded later, so that one that was replaced can be freed."""
    gc.collect()
    gc.freeze()


def run_worker(settings: ServerSettings, listener: socket.socket) -> int:
    """Load the models and indexes, then serve until a signal comes; return the exit code."""
    started = time.perf_counter()
    freeze_imports()
    log = Log(requests=settings.log == "requests")
    logging.getLogger().handlers = [LogHandler(log)]
    sources = find_sources(settings)
    if sys.stdout.isatty():
        print(f"bertree: loading {', '.join(source.shown for source in sources)}", flush=True)
    service = build_service(settings, load_sources(sources), log)
    registry = service.registry

    def report(event: str, **values: str) -> None:
        log.write(event, **values)
        if "name" in values:
            service.metrics.swaps.labels(values["name"], "ok" if event == "swapped" else "failed").inc()

    def ready() -> None:
        log.write(
            "ready",
            address=url_of(listener),
            listens=":".join(map(str, listener.getsockname()[:2])),
            models=list(registry.models),
            indexes=list(registry.indexes),
            threads=service.scheduler.threads,
            seconds=round(time.perf_counter() - started, 2),
        )
        if sys.stdout.isatty():
            print(f"bertree: serving at {url_of(listener)} (Ctrl-C stops it)", flush=True)

    swapper = Swapper(registry, sources, report)
    server = DrainingServer(service, swapper, settings.watch, settings.drain, ready)
    service.scheduler.start()
    try:
        server.run(sockets=[listener])
    except OSError as error:
        raise UserError(f"the server cannot listen ({error.strerror or error})") from None
    service.scheduler.stop()
    log.write("stopped", signal=server.signal)
    return 130 if server.signal == signal.SIGINT else 0
