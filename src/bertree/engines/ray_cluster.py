"""Workers as tasks of a Ray cluster (https://docs.ray.io): the one at an address, or one started on this machine.

This process reads the input and writes the results; setups and blocks travel as data, so machines share no files. Each
must have the same bertree installed. Ray runs a block again if its worker or its machine is lost.
"""

import os
import platform
import re
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import IO, Any, NamedTuple

from bertree.engines.engine import Block, Result, Setup, Workers
from bertree.errors import UserError, install_hint
from bertree.version import __version__

RETRIES = 5  # of a block whose worker was lost
MOST_AHEAD = 2048  # blocks
PATIENCE = 5.0  # seconds for an address to answer
FRESH = 5.0  # seconds after which the size of the cluster is read again: machines may join and leave
# The first bytes of a connection by HTTP/2, which Ray's own protocol is built on: its greeting and a frame of settings.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
SETTINGS_FRAME = 4


class BlockAnswer(NamedTuple):
    """The answer of a worker for a block."""

    result: Any
    mistake: str = ""  # one line for the user, instead of a result


class RayCluster:
    """Computes blocks on a Ray cluster; with no address, on one that is started on this machine for the work."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        """`workers`: blocks computed at once at most; None: as many as the cluster has CPUs or, for cuda, GPUs."""
        if find_spec("ray") is None:
            raise UserError(f"engine ray: Ray is not installed; {install_hint('ray')}")
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        self.address, self.workers = None if address == "local" else address, workers
        if self.address is not None:
            _check_address(self.address)
        self.ray = _import_ray(self.address)

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """Connect to the cluster while the block runs; yields the module ray."""
        with _connected(self.ray, self.address, self.workers) as ray:
            yield ray

    @contextmanager
    def start(
        self, make: Callable[[Setup], Callable[[Block], Result]], setup: Setup, device: str = "cpu"
    ) -> Iterator[Workers[Block, Result]]:
        """Connect to the cluster, and send it the setup."""
        with self.connected() as ray:
            kind = "GPU" if device.startswith("cuda") else "CPU"
            if ray.cluster_resources().get(kind, 0) < 1:
                raise UserError(f"{self.address or 'engine ray'}: this Ray cluster has no {kind} for `device={device}`")
            # What still runs at the end is not cancelled: Ray aborts this process if a task ends just then (its issue
            # 54785). Leaving the cluster ends it; where the caller stays connected, at most `ahead` blocks run on.
            yield _Tasks(ray, make, setup, kind, self.workers)


class _Tasks:
    """Blocks as tasks of Ray."""

    def __init__(self, ray: Any, make: Any, setup: Any, kind: str, workers: int | None) -> None:
        self.ray, self.kind, self.workers = ray, kind, workers
        self.make, self.setup, self.key = f"{make.__module__}:{make.__qualname__}", ray.put(setup), uuid.uuid4().hex
        self.compute = ray.remote(compute_block).options(
            num_cpus=1, num_gpus=1 if kind == "GPU" else 0, max_retries=RETRIES
        )
        self._counted = -FRESH

    @property
    def ahead(self) -> int:
        """Twice as many blocks as are computed at once, so that no worker waits for the next."""
        if self.workers is not None:
            return self.workers - 1
        now = time.monotonic()
        if now - self._counted >= FRESH:
            self._counted = now
            self._slots = int(self.ray.cluster_resources().get(self.kind, 0))
        return min(max(2 * self._slots, 2), MOST_AHEAD)

    def submit(self, block: Any) -> Callable[[], Any]:
        # The setup's reference is inside a list: Ray then leaves it to the worker to fetch it, which it does once.
        task = self.compute.remote(__version__, self.make, self.key, [self.setup], block)

        def wait() -> Any:
            answer = self._answer(task)
            if answer.mistake:
                raise UserError(answer.mistake)
            return answer.result

        return wait

    def _answer(self, task: Any) -> BlockAnswer:
        errors = self.ray.exceptions
        try:
            return self.ray.get(task)
        except errors.RayTaskError as error:
            if "No module named 'bertree" in str(error):
                (where,) = re.findall(r"\bip=([\w.:]+)", str(error))[:1] or ["unknown"]
                raise UserError(
                    f"the machine {where} of the Ray cluster lacks bertree, or has another version; install the same"
                ) from None
            raise
        except (errors.WorkerCrashedError, errors.OutOfMemoryError):
            raise UserError(
                f"Ray lost the same block {RETRIES + 1} times; does it need more memory than a worker has?"
            ) from None
        except errors.RayError as error:
            raise UserError(f"Ray cannot compute a block ({str(error).splitlines()[0]})") from None


_functions: dict[str, Callable[[Any], Any]] = {}  # of a worker: the key of a setup, and the function made of it


def compute_block(version: str, make: str, key: str, setup: list[Any], block: Any) -> BlockAnswer:
    """Compute a block, in a worker."""
    if version != __version__:
        return BlockAnswer(
            None, f"{_node()}: has bertree {__version__}, this machine {version}; install the same on all"
        )
    try:
        if key not in _functions:
            module, name = make.split(":")
            _functions.clear()
            _functions[key] = getattr(import_module(module), name)(import_module("ray").get(setup[0]))
        return BlockAnswer(_functions[key](block))
    except UserError as error:
        return BlockAnswer(None, str(error))
    except OSError as error:
        return BlockAnswer(None, f"{error.filename or 'system'}: {error.strerror or error} (on {_node()})")


def _node() -> str:
    return f"the machine {platform.node()} of the Ray cluster"


def _import_ray(address: str | None) -> Any:
    """Import Ray, which reads its settings then: no usage statistics, and a token for a cluster that is started here.

    Ray itself would write such a token to the home folder. This one exists only in this run. Settings of the
    user are not changed.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address is None and "ray" not in sys.modules and not any(name.startswith("RAY_AUTH_") for name in os.environ):
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return import_module("ray")


@contextmanager
def _connected(ray: Any, address: str | None, workers: int | None) -> Iterator[Any]:
    """Connect to Ray, unless this process is connected already, and leave it afterwards."""
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {"address": "local", "include_dashboard": False}
        options |= {"num_cpus": workers} if workers else {}
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if main else None
    try:
        with _captured_stderr() as captured:
            try:
                ray.init(**options)
            except Exception as error:
                why = (str(error).splitlines() or [type(error).__name__])[0]
                raise UserError(
                    f"{address or 'engine ray'}: cannot be used ({_token_advice(captured) or why})"
                ) from None
        yield ray
    finally:
        ray.shutdown()
        if main:
            signal.signal(signal.SIGTERM, handler)  # Ray installs its own


@contextmanager
def _captured_stderr() -> Iterator[IO[bytes]]:
    """Redirect standard error to a file: Ray's core repeats its reasons every second."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield captured
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def _token_advice(captured: IO[bytes]) -> str:
    """Return what to do if the cluster asked for a token."""
    captured.seek(0)
    if b"InvalidAuthToken" not in captured.read():
        return ""
    return "it asks for a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH as there"


def _check_address(address: str) -> None:
    """Refuse an address where nothing answers as Ray does; Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "//" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(
            f"address {address}: must be HOST:PORT of the head of a Ray cluster, such as 10.0.0.1:6379, or auto"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PATIENCE) as connection:
            connection.sendall(HELLO)
            answer = connection.recv(9)
    except OSError as error:
        raise UserError(f"{address}: no Ray cluster answers there ({error.strerror or error})") from None
    if len(answer) < 4 or answer[3] != SETTINGS_FRAME:
        raise UserError(f"{address}: what answers there is not a Ray cluster")
