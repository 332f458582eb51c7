"""What a server is told: what to serve, where, for whom, and within which limits."""

import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path

from bertree.errors import UserError
from bertree.search.postgres.place import SCHEMA, TABLE

ORIGIN = re.compile(r"https?://[^/\s*?#]+")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Serving:
    """What to serve, and how."""

    sources: tuple[str, ...] = field(repr=False)  # an address may have a password in it
    names: tuple[str, ...] = ()  # of the sources, in their order; empty: their own
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    threads: int = 0  # of each process; 0: as many as there are cores for it
    device: str = "auto"
    precision: str = "float32"
    keys: tuple[str, ...] = field(default=(), repr=False)
    no_auth: bool = False
    cors: tuple[str, ...] = ()
    body_megabytes: int = 8
    request_seconds: float = 60.0
    queue_seconds: float = 10.0  # work that may wait before requests are refused
    drain_seconds: float = 30.0
    watch_seconds: float = 5.0  # between looks for changed folders; 0: only at SIGHUP
    log_requests: bool = True
    schema: str = SCHEMA  # of indexes in PostgreSQL
    table: str = TABLE

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and not self.keys and not self.no_auth:
            raise UserError(
                f"--host {self.host}: others could use this server; give a key (--api-key, --api-key-file or the "
                "variable BERTREE_API_KEY), or --no-auth if that is what you want"
            )
        if self.names and len(self.names) != len(self.sources):
            count = f"{len(self.names)} {'name' if len(self.names) == 1 else 'names'} for {len(self.sources)} given"
            raise UserError(f"--name: give one for each model and index, in their order ({count})")
        if "" in self.keys:
            raise UserError("--api-key: is empty")
        if wrong := next((origin for origin in self.cors if not ORIGIN.fullmatch(origin)), None):
            raise UserError(f"--cors {wrong}: must be an origin without a path, such as https://example.org")


def read_keys(given: str | None, file: Path | None) -> tuple[str, ...]:
    """Return the keys of an option, of a file (one a line), or of the environment."""
    if given is not None and file is not None:
        raise UserError("give --api-key or --api-key-file, not both")
    if given is not None:
        return (given.strip(),)
    if file is None:
        known = os.environ.get("BERTREE_API_KEY", "").strip()
        return (known,) if known else ()
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--api-key-file {file}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})"
        ) from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise UserError(f"--api-key-file {file}: has no key; write one on a line")
    return keys


def address(listener: socket.socket) -> str:
    """Return the address of a server for a browser."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}/"


def cores() -> int:
    """Return how many cores this process may use, also where a container has a part of them."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return found if quota == "max" else max(1, min(found, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return found
