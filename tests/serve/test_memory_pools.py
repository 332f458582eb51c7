"""Threads of a server share few pools of memory."""

import ctypes
import os
import subprocess
import sys

import pytest

COUNT = """
import ctypes, sys, threading
from bertree.serve.launch import limit_arenas
if len(sys.argv) > 1:
    limit_arenas(int(sys.argv[1]))
together = threading.Barrier(9)
def allocate():
    kept = [bytes(100_000) for _ in range(20)]
    together.wait()
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
together.wait()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
libc.malloc_info(0, ctypes.c_void_p(libc.fdopen(1, b"w")))
libc.fflush(None)
together.wait()
"""


def arenas(*limit: str, **environment: str) -> int:
    usual = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    command = [sys.executable, "-c", COUNT, *limit]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=usual | environment)
    return done.stdout.count("<heap nr=")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library than glibc")
def test_threads_share_as_many_pools_as_allowed() -> None:
    assert arenas() > 2, "more than are allowed below, or the test shows nothing"
    assert arenas("2") <= 2
    assert arenas("2", MALLOC_ARENA_MAX="4") > 2, "the environment's number holds"
