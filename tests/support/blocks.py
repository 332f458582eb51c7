"""What a worker computes in tests of engines; it imports little, because workers import it."""

import os
import signal
from collections.abc import Callable

from bertree.errors import UserError


def add_to(setup: int) -> Callable[[int], int]:
    """Return the function that adds a number, with some blocks on which it fails."""
    if setup == 404:
        raise FileNotFoundError(2, "No such file or directory", "/models/missing")

    def add(block: int) -> int:
        if block == 13:
            raise UserError("block 13: is unlucky")
        if block == 99:
            os.kill(os.getpid(), signal.SIGKILL)
        return setup + block

    return add
