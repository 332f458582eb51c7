"""Workers as processes of this machine, and the choice of an engine by its name.

Processes are spawned: forking a process in which other libraries have thread pools can hang. They do not import the
script that starts them, which `multiprocessing` would do: workers need nothing of it, and a script without
`if __name__ == "__main__":` would run again in each of them.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.queues import Queue
from typing import Any

from bertree.engines.engine import HERE, Block, Engine, Result, Setup, Workers
from bertree.engines.ray_cluster import RayCluster
from bertree.errors import UserError, suggest

DIED = "a worker process died (out of memory?); run again, perhaps with fewer `workers`"
DIED_AT_START = "a worker process died at its start (out of memory?); run again, perhaps with workers=1"

_function: Callable[[Any], Any] | None = None  # of a worker process
ENGINES = ("local", "ray")
MOST_WORKERS = 4096


class Processes:
    """Computes blocks in several processes."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    @contextmanager
    def start(
        self, make: Callable[[Setup], Callable[[Block], Result]], setup: Setup, device: str = "cpu"
    ) -> Iterator[Workers[Block, Result]]:
        """Start a pool, whose processes begin with the first blocks.

        The setup goes through a queue. As an argument of the process it would fill the pipe from which a new process
        reads its arguments, and if that process dies first, the writing end waits for ever.
        """
        context = multiprocessing.get_context("spawn")
        setups = context.Queue()
        for _ in range(self.workers):
            setups.put(setup)
        pool = ProcessPoolExecutor(self.workers, context, initializer=_start_worker, initargs=(make, setups))
        try:
            yield _Pool(pool, self.workers + 2)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            setups.cancel_join_thread()
            setups.close()


class _Pool:
    def __init__(self, pool: ProcessPoolExecutor, ahead: int) -> None:
        self.pool, self.ahead, self.started = pool, ahead, False

    def submit(self, block: Any) -> Callable[[], Any]:
        with self._errors(), _main_hidden():
            future = self.pool.submit(_compute, block)

        def wait() -> Any:
            with self._errors():
                result = future.result()
            self.started = True
            return result

        return wait

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenProcessPool:
            raise UserError(DIED if self.started else DIED_AT_START) from None


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Hide where the script of this process lies from processes that are started now."""
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name, None) for name in ("__spec__", "__file__")}
    try:
        for name in hidden:
            setattr(main, name, None)
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)


def _start_worker(make: Callable[[Any], Callable[[Any], Any]], setups: "Queue[Any]") -> None:
    """Set up a worker: SIGINT ignored (its parent handles it), gone when its parent is."""
    global _function
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    _function = make(setups.get())


def _compute(block: Any) -> Any:
    assert _function is not None, "workers are started first"
    return _function(block)


def choose_engine(name: str, address: str | None = None, workers: int | None = None) -> Engine:
    """Return an engine: "local" (this machine) or "ray" (a Ray cluster; `address`: where it is).

    `workers`: processes; None: this one, or of a cluster, all.
    """
    if name not in ENGINES:
        raise UserError(f"engine '{name}': {suggest(name, ENGINES)}")
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise UserError(f"workers {workers}: must lie between 1 and {MOST_WORKERS}")
    if name == "ray":
        return RayCluster(address, workers)
    if address is not None:
        raise UserError(f"address {address}: is that of a Ray cluster; it needs `engine=ray`")
    return HERE if workers is None or workers == 1 else Processes(workers)
