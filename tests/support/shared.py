"""Folders that are made once for all test processes: what is slow to make and never changed. Cases that are proofs."""

import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest


def common_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder of the whole test run; under pytest-xdist each process has its own below it."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def make_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return the folder; the first process that asks for it makes it, the others wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = folder.with_name(f"{folder.name}.done")
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(folder)
            done.touch()
    return folder


def suite_has(kept: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Parameters of a test: the suite has those that are kept, the others are proofs (`make proofs`)."""
    kept, proof = list(kept), pytest.mark.proof
    cases = [(value, value if type(value) is tuple else (value,)) for value in values]
    return [value if value in kept else pytest.param(*case, marks=proof) for value, case in cases]
