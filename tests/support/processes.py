"""One server of child processes for all tests: it imports what is heavy once, and every child starts with it."""

import multiprocessing
import time
from collections.abc import Callable

PATIENCE = 1200  # seconds that a process may take on a slow and busy machine: after them it hangs
PROCESSES = multiprocessing.get_context("forkserver")
# There is one server per test process, so whoever starts it must load what every test needs.
PROCESSES.set_forkserver_preload(["tests.support.all_modules"])


def wait_until(holds: Callable[[], object], pause: float = 0.01) -> None:
    """Wait until something holds that another process or thread brings about."""
    for _ in range(int(PATIENCE / pause)):
        if holds():
            return
        time.sleep(pause)
    raise AssertionError("it did not happen")
