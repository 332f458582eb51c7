"""SIGINT and SIGTERM during a run: finish the step at hand, save, then stop.

`timeout`, terminals and schedulers often send a signal twice within a millisecond, to the process and to its group. So
a second signal counts only after a moment; then it ends the run at once.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from bertree.console import is_showing

GRACE = 2.0  # seconds in which a second signal is taken for the first
SIGNALS = (signal.SIGINT, signal.SIGTERM)
NOTE = b"\nbertree: stopping as soon as the run is saved; interrupt again to stop at once\n"


class Signals:
    """The signal that was caught, if any."""

    def __init__(self) -> None:
        self.caught: int | None = None
        self._at = 0.0
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Catch signals from now on."""
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}

    def uninstall(self) -> None:
        """Restore the earlier handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if self.caught is None:
            self.caught, self._at = number, now
            if is_showing():
                os.write(2, NOTE)  # print() could be in the middle of a line
        elif now - self._at >= GRACE:
            self.uninstall()
            signal.raise_signal(number)


_current: Signals | None = None


@contextmanager
def catch_signals() -> Iterator[Signals]:
    """Catch SIGINT and SIGTERM while the block runs, so that it can stop cleanly.

    Within another such block the same signals are returned. Outside the main thread nothing is caught: the calling
    program handles signals.
    """
    global _current
    if _current is not None or threading.current_thread() is not threading.main_thread():
        yield _current or Signals()
        return
    _current = Signals()
    _current.install()
    try:
        yield _current
    finally:
        _current.uninstall()
        _current = None


@contextmanager
def interrupt_once() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt as usual, but ignore a second one that follows at once.

    While a module is being imported or the command line is parsed, the process ends instead: third-party
    modules would swallow the exception, or stay half imported.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last = -GRACE

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if _is_starting(frame):
            os._exit(128 + number)
        if time.monotonic() - last >= GRACE:
            last = time.monotonic()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _is_starting(frame: FrameType | None) -> bool:
    """Return whether code is running because of an import, or because Typer parses the command line."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == "<frozen importlib._bootstrap>" or code.co_name == "make_context":
            return True
        frame = frame.f_back
    return False
