"""Several worker processes on one socket: start them, pass signals on, restart those that die."""

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
from typing import Any

from bertree.serve.settings import ServerSettings

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
