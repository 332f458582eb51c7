"""Settings of a server: what it serves, where it listens, who may use it, and its limits."""

import hashlib
import hmac
import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path

from bertree.errors import UserError
from bertree.search.postgres.location import SCHEMA, TABLE

ORIGIN = re.compile(r"https?://[^/\s*?#]+")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of `bertree serve` and `bertree deploy`, checked. Times are in seconds."""

    sources: tuple[str, ...] = field(repr=False)  # models and indexes; an address may contain a password
    names: tuple[str, ...] = ()  # of the sources, in their order; empty: their own
    host: str = "127.0.0.1"
    port: int = 8080  # 0: any free port
    workers: int = 1  # processes
    threads: int = 0  # compute threads of each process; 0: one for each core available to it
    device: str = "auto"
    precision: str = "float32"
    keys: tuple[str, ...] = field(default=(), repr=False)  # API keys
    no_auth: bool = False
    cors: tuple[str, ...] = ()
    max_body: int = 8  # megabytes of a request
    timeout: float = 60.0  # of a request without X-Timeout
    queue: float = 10.0  # work that may wait before requests are refused
    drain: float = 30.0  # for accepted requests after SIGTERM
    watch: float = 5.0  # between checks for changed models; 0: only at SIGHUP
    log: str = "requests"  # a line for each request; "errors": only for those that failed
    schema: str = SCHEMA  # of indexes in PostgreSQL
    table: str = TABLE

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and not self.keys and not self.no_auth:
            raise UserError(
                f"`host={self.host}`: others could use this server; give a key (`api_key`, `api_key_file` or the "
                "variable BERTREE_API_KEY), or `no_auth=True` if that is what you want"
            )
        if self.names and len(self.names) != len(self.sources):
            count = f"{len(self.names)} {'name' if len(self.names) == 1 else 'names'} for {len(self.sources)} given"
            raise UserError(f"`name`: give one for each model and index, in their order ({count})")
        if "" in self.keys:
            raise UserError("`api_key`: is empty")
        if wrong := next((origin for origin in self.cors if not ORIGIN.fullmatch(origin)), None):
            raise UserError(f"`cors={wrong}`: must be an origin without a path, such as https://example.org")
        if self.log not in ("requests", "errors"):
            raise UserError(f"`log={self.log}`: must be requests or errors")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a single request."""

    body_bytes: int = 8 * 2**20
    texts: int = 4096
    tokens: int = 1_000_000
    seconds: float = 60.0  # unless the request sets its own (X-Timeout)
    most_seconds: float = 600.0  # that a request may set


class ApiKeys:
    """The keys that clients may send; empty: none is needed. Only their hashes are stored."""

    def __init__(self, keys: tuple[str, ...] = ()) -> None:
        self._hashes = [_hash(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def allow(self, authorization: str) -> bool:
        """Return whether a header `Authorization: Bearer KEY` has one of the keys. Takes the same time for any key."""
        scheme, _, key = authorization.partition(" ")
        sent, matches = _hash(key.strip()), False
        for accepted in self._hashes:
            matches |= hmac.compare_digest(sent, accepted)
        return matches and scheme.lower() == "bearer"


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True)
class RequestSettings:
    """How requests are checked before a route handles them."""

    limits: Limits = field(default_factory=Limits)
    keys: ApiKeys = field(default_factory=ApiKeys)
    cors: tuple[str, ...] = ()  # origins whose pages may send requests
    loopback: bool = False  # the server listens on the loopback interface only


def read_keys(key: str | None, file: Path | None) -> tuple[str, ...]:
    """Return the API keys of the option, of the file (one a line), or of the environment."""
    if key is not None and file is not None:
        raise UserError("give `api_key` or `api_key_file`, not both")
    if key is not None:
        return (key.strip(),)
    if file is None:
        key = os.environ.get("BERTREE_API_KEY", "").strip()
        return (key,) if key else ()
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"`api_key_file={file}`: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})"
        ) from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise UserError(f"`api_key_file={file}`: has no key; write one on a line")
    return keys


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket, for a browser on this machine."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}/"
