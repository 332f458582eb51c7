"""A server in a background process, for tests and notebooks: `bertree.start_server`."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from bertree.errors import UserError

LAST_LINES = 20  # of the log, for the message of a server that does not start
OTHER = ("sources", "name", "cors", "api_key", "no_auth")  # keywords that are not `--flag=value`
PATIENCE = 10.0  # seconds beyond the drain time until a server that does not stop is killed


class Server(AbstractContextManager["Server"]):
    """A running server. It stops at the end of a `with` block, or with `stop()`."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], drain: float) -> None:
        self._drain = drain
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._log: deque[str] = deque(maxlen=LAST_LINES)
        self.url = self._wait_until_ready()
        self._reader = threading.Thread(target=lambda: deque(self._lines(), 0), daemon=True)
        self._reader.start()

    def _lines(self) -> Iterator[str]:
        """Yield what it writes to its log, and remember the last lines."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.append(line.strip())
            yield line

    def _wait_until_ready(self) -> str:
        for line in self._lines():
            if line.startswith("{") and (event := json.loads(line)).get("event") == "ready":
                return str(event["address"])
        self._process.wait()
        reason = self._log[-1].removeprefix("bertree: ") if self._log else "it ended without a message"
        raise UserError(reason)

    @property
    def log(self) -> list[str]:
        """The last lines of its log."""
        return list(self._log)

    def stop(self) -> None:
        """Let it answer what it has accepted, and end it."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(self._drain + PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def __exit__(self, *error: object) -> None:
        self.stop()


def start_server(
    sources: str | Path | Sequence[str | Path],
    *,
    name: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    workers: int = 1,
    threads: int = 0,
    api_key: str | None = None,
    no_auth: bool = False,
    device: str = "auto",
    precision: str = "float32",
    cors: Sequence[str] = (),
    max_body: int = 8,
    timeout: float = 60.0,
    queue: float = 10.0,
    drain: float = 30.0,
    watch: float = 5.0,
    schema: str = "public",
    table: str = "bertree",
    log: str = "requests",
) -> Server:
    """Serve models and indexes in a background process, on a free port unless `port` is given; wait until it listens.

    `sources` are model folders, `"default"`, or indexes; the other keywords are the options of `bertree serve`.

    >>> with bertree.start_server("default") as server:
    ...     print(server.url)  # http://127.0.0.1:PORT/, with the routes /v1/embeddings, /docs ...
    """
    values = dict(locals())
    paths = [sources] if isinstance(sources, str | Path) else sources
    options = [f"--{flag.replace('_', '-')}={value}" for flag, value in values.items() if flag not in OTHER]
    options += [f"--name={text}" for text in name] + [f"--cors={origin}" for origin in cors]
    options += ["--no-auth"] if no_auth else []
    environment = dict(os.environ) | ({"BERTREE_API_KEY": api_key} if api_key is not None else {})
    command = [sys.executable, "-m", "bertree", "serve", *options, "--", *map(str, paths)]
    return Server(command, environment, drain)
