"""Workers as processes of this machine, its cores, and the choice of an engine by its name.

Processes are spawned: forking a process in which other libraries have thread pools can hang. They do not import the
script that starts them, which `multiprocessing` would do: workers need nothing of it, and a script without
`if __name__ == "__main__":` would run again in each of them.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.queues import Queue
from pathlib import Path
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


def available_cores() -> int:
    """Return how many cores this process may use, also where a container is limited to some of them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return cores


def busy_cores(seconds: float = 0.25) -> float:
    """Return how many of the cores this process may use are busy now, measured for some seconds; the load average
    if the system does not report it."""
    before = _core_times()
    if before is None:
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    time.sleep(seconds)
    after = _core_times() or before
    total, idle = (sum(later) - sum(earlier) for later, earlier in zip(after, before, strict=True))
    return len(before[0]) * (1 - idle / total) if total > 0 else 0.0


def _core_times() -> tuple[list[int], list[int]] | None:
    """Return total and idle time of each core since the system started; None if the system does not report them."""
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]
        usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        times = [[int(value) for value in values] for name, *values in lines if name in usable]
        return [sum(row) for row in times], [row[3] + row[4] for row in times]
    except (OSError, ValueError, IndexError, AttributeError):
        return None
