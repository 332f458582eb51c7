"""Connections: a bound for each client, and time limits, so that no client can keep others out.

uvicorn closes a connection that is idle after an answer. It waits without limit for the headers of a request and for a
client that does not read its answer. Here all connections are looked at once a second, which costs a request nothing.
A client with too many connections loses those on which nothing happens, the oldest first; only if all of them have a
request is a further one refused.
"""

import asyncio
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from fcntl import ioctl
from termios import FIONREAD
from types import SimpleNamespace
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

HEADER_SECONDS = 10.0  # for the headers of a request
WRITE_SECONDS = 10.0  # for a client to read an answer, and one more for each:
BYTES_PER_SECOND = 65536
PER_CLIENT = 4096  # connections of one address
WRITE_BYTES = 256 << 20  # of answers that wait for their readers, all together
REST = 0.005  # seconds without reading after requests were refused before they were read, so that more come together
CLOSED_AT_ONCE = 64  # idle connections that a client with too many loses, so that not each new one looks for another
BACKLOG = 65535  # connections that may wait to be accepted; the system allows less (net.core.somaxconn)
LAST_RECEIVED = slice(52, 56)  # of Linux's tcp_info: milliseconds since the last bytes came
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s"
)
MESSAGE = b'{"error": {"message": "too many connections from this address", "type": "unavailable_error"}}'

CONNECTION = "bertree.connection"  # key in the state of an ASGI scope
REFUSED: Any = SimpleNamespace(response_complete=True, message_event=asyncio.Event())  # the cycle of such a request
Refuse = Callable[[Any, bytes], Sequence[bytes] | None]  # scope without its path, URL -> lines of the answer


class ClientConnections:
    """All connections of a server."""

    def __init__(self, per_client: int = PER_CLIENT) -> None:
        self.per_client = per_client
        self.by_client: dict[str, set[BoundedProtocol]] = defaultdict(set)
        self.refuse: Refuse = lambda scope, url: None
        self.resting = False
        self.accepting = False  # a connection has come since the last rest

    def protocol(self) -> type["BoundedProtocol"]:
        """Return uvicorn's class of a connection, with these bounds."""
        return type("Protocol", (BoundedProtocol,), {"all": self})

    def make_room(self, client: str) -> bool:
        """Close idle connections of a client that has too many; return whether it may have one more."""
        own = self.by_client[client]
        if len(own) < self.per_client:
            return True
        idle = [connection for connection in own if connection.phase() in ("headers", "idle")]
        oldest = sorted(idle, key=lambda connection: connection.since)[:CLOSED_AT_ONCE]
        for connection in (silent := [connection for connection in oldest if not connection.has_sent()]):
            connection.transport.abort()
        return bool(silent)

    def rest(self) -> None:
        """Read nothing for a moment: each turn of the loop disturbs the threads that compute.

        While connections come it does not rest: uvloop accepts one in each turn, so others would wait for seconds."""
        if not self.accepting:
            time.sleep(REST)
        self.resting = self.accepting = False

    async def look(self) -> None:
        """Close the connections whose time is over."""
        now, writing = time.monotonic(), list[BoundedProtocol]()
        for own in list(self.by_client.values()):
            for connection in list(own):
                if connection.is_late(now):
                    connection.transport.abort()
                elif connection.state == "writing":
                    writing.append(connection)
        waiting = sum(connection.unread() for connection in writing)
        for connection in sorted(writing, key=lambda connection: connection.since):
            if waiting <= WRITE_BYTES:
                return
            waiting -= connection.unread()
            connection.transport.abort()


class BoundedProtocol(HttpToolsProtocol):
    """A connection. Its requests find it in their scope, and so do without tasks and timers that they need elsewhere.

    `state`: when it was last looked at: `headers` (of a request are awaited), `request` (it has one
    that is not answered), `writing` (its client is slow to read) or `idle`."""

    all: ClientConnections
    task: "asyncio.Task[Any] | None" = None  # that answers a request; it is cancelled when the client has gone
    accepted = False  # whether it is counted
    address, state = "", "headers"
    since = 0.0  # when it came into this state
    limit = HEADER_SECONDS

    def connection_made(self, transport: Any) -> None:
        """Count a connection, or refuse it."""
        super().connection_made(transport)
        self.since, self.all.accepting = time.monotonic(), True
        self.address = self.client[0] if self.client else ""
        if not self.all.make_room(self.address):
            transport.write(REFUSAL % (len(MESSAGE), MESSAGE))
            transport.close()
            return
        self.accepted = True
        self.all.by_client[self.address].add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        super().connection_lost(exc)
        own = self.all.by_client.get(self.address)
        if own is not None:
            own.discard(self)
            if not own:
                del self.all.by_client[self.address]
        if self.task is not None:
            self.task.cancel()

    def on_message_begin(self) -> None:
        """Begin to read a request."""
        super().on_message_begin()
        self.scope["state"][CONNECTION] = self

    def on_headers_complete(self) -> None:
        """Begin to answer a request. One that is refused before it is read needs no task: there may be many."""
        parser, ready = self.parser, self.cycle is None or self.cycle.response_complete
        lasting = parser.should_keep_alive() and parser.get_http_version() == "1.1" and not self.expect_100_continue
        plain = ready and lasting and parser.get_method() == b"POST" and not self.flow.write_paused
        if not plain or (answer := self.all.refuse(self.scope, self.url)) is None:
            super().on_headers_complete()
            return
        self.cycle = REFUSED
        self._write(429, answer)
        self.on_response_complete()
        if not self.all.resting:
            self.all.resting = True
            self.loop.call_soon(self.all.rest)

    def whole_body(self, most: int) -> bytes | None:
        """Return the body of the request that is being answered; None: a part is missing, or it is larger."""
        cycle: Any = self.cycle
        if cycle.more_body or self.pipeline or len(cycle.body) > most:  # in a pipeline, the cycle is a later request's
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def send_whole(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send an answer by one write, at half the cost of ASGI's two messages; return whether that is possible."""
        cycle: Any = self.cycle
        if self.pipeline or self.flow.write_paused or not cycle.keep_alive or cycle.disconnected:
            return False
        self._write(status, [*[b"%b: %b\r\n" % header for header in headers], b"\r\n", body])
        cycle.response_started = cycle.response_complete = True
        cycle.on_response()
        return True

    def _write(self, status: int, answer: Sequence[bytes]) -> None:
        lines = [b"%b: %b\r\n" % header for header in self.server_state.default_headers]
        self.transport.write(b"".join((STATUS_LINE[status], *lines, *answer)))

    def data_received(self, data: bytes) -> None:
        """Read what a client sends, unless the connection was refused."""
        if self.accepted:
            super().data_received(data)

    def unread(self) -> int:
        """Return the bytes that its client has not read."""
        return self.transport.get_write_buffer_size()

    def has_sent(self) -> bool:
        """Return whether its client has sent something that was not read: this process may have stood still."""
        none = bytes(4)
        if self.transport.is_closing():
            return False
        return ioctl(self.transport.get_extra_info("socket").fileno(), FIONREAD, none) != none

    def since_sent(self) -> float:
        """Return the seconds since the last bytes came; they are not read while this process stands still."""
        if sys.platform != "linux" or self.transport.is_closing():
            return 0.0
        info = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 56)
        return int.from_bytes(info[LAST_RECEIVED], sys.byteorder) / 1000

    def phase(self) -> str:
        """Return the state that it is in now."""
        cycle: Any = self.cycle
        if cycle is None:
            return "headers"
        if self.unread():
            return "writing"
        if not cycle.response_complete:
            return "request"
        return "headers" if self.timeout_keep_alive_task is None else "idle"

    def is_late(self, now: float) -> bool:
        """Note the state; return whether it has lasted too long."""
        phase = self.phase()
        if phase != self.state:
            self.state, self.since = phase, now
            self.limit = HEADER_SECONDS if phase == "headers" else WRITE_SECONDS + self.unread() / BYTES_PER_SECOND
        late = phase in ("headers", "writing") and now - self.since > self.limit
        return late and not (phase == "headers" and self.has_sent())
