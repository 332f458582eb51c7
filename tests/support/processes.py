"""One server of child processes for all tests: it imports what is heavy once, and every child starts with it."""

import multiprocessing

PATIENCE = 1200  # seconds that a process may take on a slow and busy machine: after them it hangs
PROCESSES = multiprocessing.get_context("forkserver")
# There is one server per test process, so whoever starts it must load what every test needs.
PROCESSES.set_forkserver_preload(["tests.support.all_modules"])
