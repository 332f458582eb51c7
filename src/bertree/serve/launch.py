"""Start a server: the environment, the socket, one process or several; or, for tests and notebooks, a server in a
background process (`bertree.start_server`).

A process computes with one torch thread in each of its compute threads. torch must know that before it is imported:
OMP_NUM_THREADS=1 in the environment makes small batches almost twice as fast as setting it later. Several worker
processes share one socket: they are started, get the signals, and are started again if they die.
"""

import ctypes
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from bertree.engines.local import available_cores
from bertree.errors import UserError, install_hint
from bertree.serve.settings import ServerSettings

NEEDED = ("uvicorn", "httptools", "starlette", "msgspec", "orjson", "prometheus_client")
THREADS = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of glibc's mallopt
FROM_POOLS = 32 << 20  # bytes of the largest block that comes from a pool: glibc allows no more
KEPT = 256 << 20  # free bytes at the end of the main pool


def check_installed() -> None:
    """Say what to install if a library is missing."""
    from importlib.util import find_spec

    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UserError(f"serve: needs {', '.join(missing)}; {install_hint('serve')}")


def set_threads() -> None:
    """Set the environment for torch; start this program again if it was imported already."""
    wanted = {name: value for name, value in THREADS.items() if name not in os.environ}
    os.environ.update(wanted)
    if wanted and "torch" in sys.modules:
        os.execv(sys.executable, [sys.executable, "-m", "bertree", *sys.argv[1:]])


def set_allocator(arenas: int) -> None:
    """Set glibc's allocator so that memory stays flat under mixed load, unless the environment has set it.

    Threads share at most this number of memory pools (arenas). By default there are up to eight for each core, and
    memory that one thread has freed is of no use to another. Blocks come from the pools, which keep freed memory;
    otherwise it would go back to the system and be requested again all the time."""
    wanted = {
        "MALLOC_ARENA_MAX": (M_ARENA_MAX, arenas),
        "MALLOC_MMAP_THRESHOLD_": (M_MMAP_THRESHOLD, FROM_POOLS),
        "MALLOC_TRIM_THRESHOLD_": (M_TRIM_THRESHOLD, KEPT),
    }
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with suppress(OSError, AttributeError, TypeError):  # another system, or another C library
        mallopt = ctypes.CDLL(None).mallopt
        for name, (parameter, value) in wanted.items():
            if name not in os.environ:
                mallopt(parameter, value)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        setting = "`port`" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "`host`"
        raise UserError(
            f"{host}:{port}: cannot be listened on ({error.strerror or error}); give another {setting}"
        ) from None
    listener.set_inheritable(True)
    return listener


def serve(settings: ServerSettings) -> int:
    """Serve until a signal comes; return the exit code."""
    check_installed()
    set_threads()
    set_allocator(max(2, settings.threads or available_cores() // settings.workers))
    listener = bind(settings.host, settings.port)
    if settings.workers == 1:
        from bertree.serve.worker import run_worker

        return run_worker(settings, listener)

    return supervise(settings, listener)


PAUSE = 1.0  # seconds before a worker that died is started again


def supervise(settings: ServerSettings, listener: socket.socket) -> int:
    """Run the workers until a signal comes; return the exit code.

    The workers are forked before torch is imported and load the models by themselves. Each reads from
    a pipe that nobody writes to: it is closed when this process ends, for whatever reason, and then the worker stops.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = shared = tempfile.mkdtemp(prefix="bertree-metrics-")
    from prometheus_client import multiprocess  # it reads the variable when it is imported

    workers: dict[int, int] = {}  # process id -> number of the worker
    stopping: list[int] = []
    pipe = os.pipe()

    def pass_on(number: int, frame: object) -> None:
        if number != signal.SIGHUP:
            stopping.append(number)
        for pid in workers:
            os.kill(pid, signal.SIGTERM if number == signal.SIGINT else number)

    handlers = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    code = 0
    try:
        for number in range(settings.workers):
            workers[_start(settings, listener, handlers, pipe)] = number
        while workers:
            pid, status = os.wait()
            number = workers.pop(pid)
            exit_code = os.waitstatus_to_exitcode(status)
            multiprocess.mark_process_dead(pid)
            if stopping:
                code = max(code, 1 if exit_code else 0)
            elif exit_code == 2:  # an error of the user, which the worker has reported
                code = 2
                pass_on(signal.SIGTERM, None)
            else:
                line = {"time": round(time.time(), 3), "event": "worker restarted", "worker": number, "code": exit_code}
                print(json.dumps(line), file=sys.stderr, flush=True)
                time.sleep(PAUSE)
                if not stopping:
                    workers[_start(settings, listener, handlers, pipe)] = number
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for end in pipe:
            os.close(end)
        shutil.rmtree(shared, ignore_errors=True)
    return code


def _start(
    settings: ServerSettings, listener: socket.socket, handlers: Mapping[signal.Signals, Any], pipe: tuple[int, int]
) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(pipe[1])
        threading.Thread(target=_stop_with_parent, args=(pipe[0],), daemon=True).start()
        from bertree.errors import UserError
        from bertree.serve.worker import run_worker

        try:
            code = run_worker(settings, listener)
        except UserError as error:
            print(f"bertree: {' '.join(str(error).split())}", file=sys.stderr)
            code = 2
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _stop_with_parent(end: int) -> None:
    """Wait until the parent's end of a pipe is closed, then end this process as SIGTERM does."""
    os.read(end, 1)
    os.kill(os.getpid(), signal.SIGTERM)


LAST_LINES = 20  # of the log, for the message of a server that does not start
OTHER = ("sources", "name", "cors", "api_key", "no_auth")  # keywords that are not `--flag=value`
PATIENCE = 10.0  # seconds beyond the drain time until a server that does not stop is killed


class Server(AbstractContextManager["Server"]):
    """A running server. It stops at the end of a `with` block, or with `stop()`."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], drain: float) -> None:
        self._drain = drain
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._log: deque[str] = deque(maxlen=LAST_LINES)
        self.url = self._wait_until_ready()
        self._reader = threading.Thread(target=lambda: deque(self._lines(), 0), daemon=True)
        self._reader.start()

    def _lines(self) -> Iterator[str]:
        """Yield what it writes to its log, and remember the last lines."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.append(line.strip())
            yield line

    def _wait_until_ready(self) -> str:
        for line in self._lines():
            if line.startswith("{") and (event := json.loads(line)).get("event") == "ready":
                return str(event["address"])
        self._process.wait()
        reason = self._log[-1].removeprefix("bertree: ") if self._log else "it ended without a message"
        raise UserError(reason)

    @property
    def log(self) -> list[str]:
        """The last lines of its log."""
        return list(self._log)

    def stop(self) -> None:
        """Let it answer what it has accepted, and end it."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(self._drain + PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def __exit__(self, *error: object) -> None:
        self.stop()


def start_server(
    sources: str | Path | Sequence[str | Path],
    *,
    name: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    workers: int = 1,
    threads: int = 0,
    api_key: str | None = None,
    no_auth: bool = False,
    device: str = "auto",
    precision: str = "float32",
    cors: Sequence[str] = (),
    max_body: int = 8,
    timeout: float = 60.0,
    queue: float = 10.0,
    drain: float = 30.0,
    watch: float = 5.0,
    schema: str = "public",
    table: str = "bertree",
    log: str = "requests",
) -> Server:
    """Serve models and indexes in a background process, on a free port unless `port` is given; wait until it listens.

    `sources` are model folders, `"default"`, or indexes; the other keywords are the options of `bertree serve`.

    >>> with bertree.start_server("default") as server:
    ...     print(server.url)  # http://127.0.0.1:PORT/, with the routes /v1/embeddings, /docs ...
    """
    values = dict(locals())
    paths = [sources] if isinstance(sources, str | Path) else sources
    options = [f"--{flag.replace('_', '-')}={value}" for flag, value in values.items() if flag not in OTHER]
    options += [f"--name={text}" for text in name] + [f"--cors={origin}" for origin in cors]
    options += ["--no-auth"] if no_auth else []
    environment = dict(os.environ) | ({"BERTREE_API_KEY": api_key} if api_key is not None else {})
    command = [sys.executable, "-m", "bertree", "serve", *options, "--", *map(str, paths)]
    return Server(command, environment, drain)
