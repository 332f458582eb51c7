"""Structured logs: one JSON object a line. They hold no text of a request and no key."""

import sys
import time
from typing import Any, TextIO

import orjson


class Log:
    """Writes events to a stream, by default standard error."""

    def __init__(self, stream: TextIO | None = None, requests: bool = True) -> None:
        """`requests`: also write a line for each request that went well."""
        self._stream, self._requests = stream, requests

    def write(self, event: str, **values: Any) -> None:
        """Write an event."""
        line = {"time": round(time.time(), 3), "event": event, **values}
        stream = self._stream or sys.stderr
        try:
            stream.write(orjson.dumps(line, default=str).decode() + "\n")
            stream.flush()
        except (OSError, ValueError):  # the reader of the log has gone
            return

    def wants(self, status: int) -> bool:
        """Return whether it has a line for a request that was answered so."""
        return self._requests or status >= 500
