"""Limits and keys of a server."""

import hashlib
import hmac
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """What a single request may ask for."""

    body_bytes: int = 8 * 2**20
    texts: int = 4096
    tokens: int = 1_000_000
    seconds: float = 60.0  # until a request is given up, unless it says so itself (X-Timeout)
    most_seconds: float = 600.0  # that it may ask for


class ApiKeys:
    """The keys that a client may send; empty: none is needed. Only their hashes are kept."""

    def __init__(self, keys: tuple[str, ...] = ()) -> None:
        self._hashes = [_hash(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def allow(self, authorization: str) -> bool:
        """Return whether a header `Authorization: Bearer KEY` has one of the keys. Takes the same time for any key."""
        kind, _, key = authorization.partition(" ")
        given = _hash(key.strip())
        found = False
        for known in self._hashes:
            found |= hmac.compare_digest(given, known)
        return found and kind.lower() == "bearer"


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True)
class ServerSettings:
    """How requests are treated."""

    limits: Limits = field(default_factory=Limits)
    keys: ApiKeys = field(default_factory=ApiKeys)
    cors: tuple[str, ...] = ()  # origins whose pages may ask; empty: none
    loopback: bool = False  # it listens on the loopback alone
