"""One server of child processes for all tests: it imports what is heavy once, and every child starts with it."""

import multiprocessing
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker, util
from unittest import mock

PATIENCE = 1200  # seconds that a process may take on a slow and busy machine: after them it hangs
PROCESSES = multiprocessing.get_context("forkserver")
# There is one server per test process, so whoever starts it must load what every test needs.
PROCESSES.set_forkserver_preload(["tests.support.all_modules"])


@contextmanager
def forked_server(prepare: Callable[[], object]) -> Iterator[None]:
    """Make the server a fork of this process, which has imported most already, instead of a new interpreter.

    Call it before any test has run: the server keeps the state of this moment. It prepares itself and imports the
    rest when the first child is wanted.
    """

    pipes: list[tuple[int, int]] = []
    pipe = os.pipe

    def make_pipe() -> tuple[int, int]:
        pipes.append(pipe())
        return pipes[-1]

    def fork(path: bytes, arguments: Sequence[str], files: Sequence[int]) -> int:
        process = os.fork()
        if process == 0:
            os.close(dict(pipes)[files[1]])  # it ends when nobody else has this end of the pipe
            with suppress(SystemExit):
                _serve(arguments[-1], files, prepare)
            os._exit(0)
        return process

    resource_tracker.ensure_running()  # which is no fork
    with mock.patch.object(util, "spawnv_passfds", fork), mock.patch.object(os, "pipe", make_pipe):
        forkserver.ensure_running()
    yield
    util._run_finalizers()  # type: ignore[attr-defined]  # the folder of its socket goes before pytest removes it


def _serve(program: str, files: Sequence[int], prepare: Callable[[], object]) -> None:
    """Be the server, with the standard files of a new process."""
    sys.stdin, sys.stdout, sys.stderr = (open(file, mode, 1, closefd=False) for file, mode in enumerate("rww"))  # noqa: SIM115
    forkserver._forkserver._lock = threading.Lock()  # type: ignore[attr-defined]  # it was held when this was forked
    listener, alive = files[:2]
    if listener in select.select([listener, alive], [], [])[0]:
        prepare()
        exec(program)


def wait_until(holds: Callable[[], object], pause: float = 0.01) -> None:
    """Wait until something holds that another process or thread brings about."""
    for _ in range(int(PATIENCE / pause)):
        if holds():
            return
        time.sleep(pause)
    raise AssertionError("it did not happen")
