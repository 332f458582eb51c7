"""Start a server: the environment, the socket, one process or several.

A process computes with one torch thread in each of its compute threads. torch must know that before it is imported:
OMP_NUM_THREADS=1 in the environment makes small batches almost twice as fast as setting it later.
"""

import ctypes
import errno
import os
import socket
import sys
from contextlib import suppress

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
    from bertree.serve.supervisor import supervise

    return supervise(settings, listener)
