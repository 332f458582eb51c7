"""Threads of a server share few pools of memory, which keep what is freed."""

import ctypes
import os
import subprocess
import sys

import pytest

COUNT = """
import ctypes, sys, threading
from bertree.serve.launch import set_allocator
if len(sys.argv) > 1:
    set_allocator(int(sys.argv[1]))
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

FREE = """
import resource, sys
from bertree.serve.launch import set_allocator
if len(sys.argv) > 1:
    set_allocator(2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    blocks = [bytearray(b"x") * (12 << 20) for _ in range(6)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library than glibc")


def run(program: str, *arguments: str, **environment: str) -> str:
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=usual | environment).stdout


def arenas(*limit: str, **environment: str) -> int:
    return run(COUNT, *limit, **environment).count("<heap nr=")


@glibc
def test_threads_share_as_many_pools_as_allowed() -> None:
    assert arenas() > 2, "more than are allowed below, or the test shows nothing"
    assert arenas("2") <= 2
    assert arenas("2", MALLOC_ARENA_MAX="4") > 2, "the environment's number holds"


@glibc
def test_pools_keep_what_is_freed() -> None:
    usual, kept = int(run(FREE)), int(run(FREE, "keep"))  # pages that the system had to give
    if not usual:
        pytest.skip("this system does not count page faults")
    assert kept < usual / 4
    assert int(run(FREE, "keep", MALLOC_TRIM_THRESHOLD_="1000000")) > usual / 2, "the environment's number holds"
