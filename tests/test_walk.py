"""The walk in docs/architecture.md is that of real calls, and stays short."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import call_trace

MOST_FILES = 20  # from the verb to the loss and to the student


def test_the_walk_in_the_documentation_is_that_of_the_calls() -> None:
    root = Path(__file__).parents[1]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (root / "src", root)))}
    command = [sys.executable, "-m", "tests.support.call_trace"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = done.stdout.removesuffix("\n")
    assert table == call_trace.written_walk(), "run: python -m tests.support.call_trace --write"
    assert int(table.split()[0]) <= MOST_FILES
