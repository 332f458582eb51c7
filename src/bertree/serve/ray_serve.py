"""The same application on a Ray cluster: replicas behind the HTTP proxy of Ray Serve (https://docs.ray.io)."""

import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from bertree.engines.ray_cluster import RayCluster
from bertree.errors import UserError, install_hint
from bertree.serve.launch import THREADS, check_installed, set_allocator
from bertree.serve.settings import ServerSettings

NAME = "bertree"  # of the application in the cluster
MOST_REQUESTS = 4096  # at once in a replica: its own scheduler decides which are too many


def ray_application(settings: ServerSettings, replicas: int = 1) -> Any:
    """Return the application for `ray.serve.run`: replicas that each load the models and compute in their own threads.

    The models must have the same paths on all machines. A replica takes `settings.threads` CPUs, and a GPU if the
    device is cuda.
    """
    serve = _import_serve()
    threads = settings.threads or 1
    options = {
        "num_cpus": threads,
        "num_gpus": 1 if settings.device.startswith("cuda") else 0,
        "runtime_env": {"env_vars": THREADS},
    }
    settings = replace(settings, threads=threads, workers=1)

    def build() -> Any:
        """Build the application, within a replica."""
        from bertree.serve.http.app import build_app
        from bertree.serve.http.telemetry import Log
        from bertree.serve.worker import load_service

        set_allocator(max(2, threads))
        service = load_service(settings, Log(requests=settings.log == "requests"))
        service.scheduler.start()
        return build_app(service)

    deployment = serve.deployment(
        serve.ingress(build)(),
        name=NAME,
        num_replicas=replicas,
        max_ongoing_requests=MOST_REQUESTS,
        graceful_shutdown_timeout_s=settings.drain,
        ray_actor_options=options,
    )
    return deployment.bind()


def serve_on_ray(settings: ServerSettings, replicas: int, address: str | None, ready: Callable[[], None]) -> None:
    """Deploy on the cluster at an address, or on one that is started here, and wait for a signal; then remove it.

    `ready` is called when all replicas answer."""
    check_installed()
    stopped = threading.Event()
    cluster = RayCluster(address)
    serve = _import_serve()
    with cluster.connected():
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        serve.start(http_options={"host": settings.host, "port": settings.port})
        try:
            serve.run(ray_application(settings, replicas), name=NAME, route_prefix="/")
        except RuntimeError as error:
            serve.delete(NAME)
            raise UserError(f"Ray Serve could not start the replicas ({' '.join(str(error).split())[-300:]})") from None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        ready()
        stopped.wait()
        serve.delete(NAME)


def _import_serve() -> Any:
    try:
        return import_module("ray.serve")
    except ImportError:
        raise UserError(f"deploy ray: needs Ray Serve: pip install 'ray[serve]', and {install_hint('serve')}") from None
