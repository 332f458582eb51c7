"""Start a server: the environment, the socket, one process or several.

A process computes with one torch thread in each of its compute threads. torch must know that before it is imported:
OMP_NUM_THREADS=1 in the environment makes small batches almost twice as fast as setting it later. Several worker
processes share one socket: they are started, get the signals, and are restarted if they die.
"""

import ctypes
import errno
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from bertree.engines.cores import available_cores
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
