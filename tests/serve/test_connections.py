"""Connections on a socket: those that do nothing, send half a request, do not read, or are closed halfway."""

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from bertree.serve.http import connections
from bertree.serve.http.app import Application
from bertree.serve.http.connections import ClientConnections
from bertree.serve.scheduler import Scheduler
from bertree.serve.settings import ApiKeys, RequestSettings
from tests.support import asking
from tests.support.asking import Asker, listening
from tests.support.processes import PATIENCE, wait_until

ASK = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n"
BODY = b'{"inputs": "a"}'


@pytest.fixture(scope="module")
def bounds() -> ClientConnections:
    return ClientConnections(per_client=4)


@pytest.fixture(scope="module")
def port(asker: Asker, bounds: ClientConnections) -> Iterator[int]:
    with listening(asker, bounds) as address:
        yield int(address.rpartition(":")[2])


def connect(port: int, sent: bytes = b"") -> socket.socket:
    """Open a connection and send something."""
    client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    client.sendall(sent)
    return client


def read(client: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    pieces = []
    try:
        while piece := client.recv(65536):
            pieces.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(pieces)


def wait_for(bounds: ClientConnections, count: int) -> None:
    """Wait until the server has so many connections."""
    wait_until(lambda: sum(map(len, bounds.by_client.values())) == count)


def pass_time(bounds: ClientConnections, state: str) -> int:
    """Let the time of connections in a state be over; return how many there are."""
    late = [connection for own in bounds.by_client.values() for connection in own if connection.phase() == state]
    for connection in late:
        connection.state, connection.since = state, 0.0
    return len(late)


@contextmanager
def standing_still(bounds: ClientConnections) -> Iterator[None]:
    """Let the server's event loop stand still; it must have a connection."""
    (connection, *_), stands, goes_on = bounds.by_client["127.0.0.1"], Event(), Event()

    def wait() -> None:
        stands.set()
        goes_on.wait(PATIENCE)

    connection.loop.call_soon_threadsafe(wait)
    stands.wait(PATIENCE)
    try:
        yield
    finally:
        goes_on.set()


def test_idle_and_half_sent_requests_are_closed_after_their_time(port: int, bounds: ClientConnections) -> None:
    with ExitStack() as stack:
        half = [stack.enter_context(connect(port, sent)) for sent in (b"", b"POST /em", b"GET / HTTP/1.1\r\nA:")]
        answered = stack.enter_context(connect(port, ASK + BODY))
        assert answered.recv(65536).startswith(b"HTTP/1.1 200")
        wait_for(bounds, 4)
        assert pass_time(bounds, "headers") == 3
        assert [read(client) for client in half] == [b""] * 3
        wait_for(bounds, 1)
        assert pass_time(bounds, "idle") == 1, "after an answer it may stay for longer"
        answered.sendall(ASK + BODY)
        assert answered.recv(65536).startswith(b"HTTP/1.1 200")
        answered.sendall(ASK[:20])  # the beginning of another request
        wait_until(lambda: pass_time(bounds, "headers"))
        assert read(answered) == b""
    wait_for(bounds, 0)


def test_requests_that_are_sent_at_once_are_answered_in_their_order(port: int, bounds: ClientConnections) -> None:
    def post(body: bytes, version: str = "1.1") -> bytes:
        head = f"POST /tokenize HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    texts = ["a", "a" * 100_000, "b", "c"]  # the second is longer than what is read at once
    bodies = [json.dumps({"inputs": text}).encode() for text in texts]
    head = b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(port, b"".join([*map(post, bodies[:3]), head, post(bodies[3], "1.0")])) as client:
        answers = read(client).split(b"HTTP/1.1 200 OK\r\n")[1:]  # HTTP 1.0 ends with the first answer
    read_texts = [json.loads(answer.partition(b"\r\n\r\n")[2] or b"null") for answer in answers]
    assert [rows and rows[0][1]["text"] for rows in read_texts] == ["a", "a" * 100_000, "b", None, "c"]
    assert answers[3].lower().count(b"content-length: 15\r\n") == 1, "what GET would answer"
    wait_for(bounds, 0)


def test_a_client_with_too_many_connections_loses_idle_ones(port: int, bounds: ClientConnections) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(port)) for _ in range(4)]
        wait_for(bounds, 4)
        fifth = stack.enter_context(connect(port, ASK + BODY))
        assert fifth.recv(65536).startswith(b"HTTP/1.1 200")
        assert [read(client) for client in idle] == [b""] * 4
    wait_for(bounds, 0)


def test_requests_that_came_while_the_server_stood_still_are_not_lost(asker: Asker) -> None:
    bounds = ClientConnections(per_client=3)
    with listening(asker, bounds) as address, ExitStack() as stack:
        port = int(address.rpartition(":")[2])
        clients = [stack.enter_context(connect(port, sent)) for sent in (ASK + BODY, ASK + BODY, b"")]
        assert [client.recv(65536)[9:12] for client in clients[:2]] == [b"200"] * 2
        wait_for(bounds, 3)
        with standing_still(bounds):
            fourth = stack.enter_context(connect(port, ASK + BODY))
            for client in clients:
                client.sendall(ASK + BODY)
            assert pass_time(bounds, "headers") == 1
            assert not any(connection.is_late(time.monotonic()) for connection in bounds.by_client["127.0.0.1"])
        assert [client.recv(65536)[9:12] for client in clients] == [b"200"] * 3
        assert fourth.recv(65536)[9:12] in (b"503", b"200")


def test_connections_that_wait_are_accepted_without_a_rest(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds, rests = ClientConnections(), list[float]()
    monkeypatch.setattr(Scheduler, "is_full", property(lambda _: True))
    monkeypatch.setattr(connections, "time", SimpleNamespace(sleep=rests.append, monotonic=time.monotonic))
    with listening(asker, bounds) as address, ExitStack() as stack:
        port = int(address.rpartition(":")[2])
        stack.enter_context(connect(port))
        wait_for(bounds, 1)
        with standing_still(bounds):
            clients = [stack.enter_context(connect(port, ASK + BODY)) for _ in range(100)]
        assert [client.recv(65536)[9:12] for client in clients] == [b"429"] * 100
        assert len(rests) < 20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says when bytes came")
def test_the_wait_of_a_request_begins_when_it_comes(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds, waits, run = ClientConnections(), list[float](), Scheduler.run

    async def noted(self: Scheduler, kind: Any, jobs: Any, deadline: float, waited: float = 0.0) -> list[Any]:
        waits.append(waited)
        return await run(self, kind, jobs, deadline, waited)

    monkeypatch.setattr(Scheduler, "run", noted)
    with listening(asker, bounds) as address, connect(int(address.rpartition(":")[2])) as client:
        wait_for(bounds, 1)
        with standing_still(bounds):
            client.sendall(ASK + BODY)
            time.sleep(0.5)
        assert client.recv(65536)[9:12] == b"200"
    assert waits[0] >= 0.4


def test_a_client_is_refused_when_all_its_connections_have_requests(asker: Asker) -> None:
    bounds = ClientConnections(per_client=2)
    with (
        asking.with_registry(asker.service.registry, threads=0) as server,
        listening(server, bounds) as address,
        ExitStack() as stack,
    ):
        port = int(address.rpartition(":")[2])
        first, second = (stack.enter_context(connect(port, ASK + BODY)) for _ in range(2))
        wait_until(lambda: server.service.scheduler.queued_requests == 2)
        third = stack.enter_context(connect(port, ASK + BODY))
        refused = read(third)
        assert refused.startswith(b"HTTP/1.1 503")
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"]["message"].startswith("too many connections")
        first.shutdown(socket.SHUT_WR)  # as a client that has gone
        assert read(first) == b""
        second.close()
        wait_for(bounds, 0)
        # Nobody waits for them, so they are not computed.
        wait_until(lambda: not server.service.scheduler.queued_requests)


def test_requests_are_refused_unread_while_the_queue_is_full(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, bounds = RequestSettings(keys=ApiKeys(("right",))), ClientConnections()
    head = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer right\r\nContent-Length: 15\r\n"
    full, called = True, list[bytes]()
    monkeypatch.setattr(Scheduler, "is_full", property(lambda _: full))
    answer = Application.__call__

    async def call(app: Application, scope: Any, receive: Any, send: Any) -> None:
        called.append(scope["raw_path"])
        await answer(app, scope, receive, send)

    monkeypatch.setattr(Application, "__call__", call)
    with (
        asking.with_registry(asker.service.registry, settings, threads=1) as server,
        listening(server, bounds) as address,
        connect(int(address.rpartition(":")[2]), head + b"X-Request-Id: mine\r\n\r\n") as client,
    ):
        lines, _, body = client.recv(65536).decode().partition("\r\n\r\n")  # while its body is awaited
        assert lines.startswith("HTTP/1.1 429 ")
        assert {"retry-after: 1", "x-request-id: mine", f"content-length: {len(body)}"} < set(lines.split("\r\n"))
        assert json.loads(body)["error_type"] == "Overloaded"
        client.sendall(BODY + 2 * (head + b"\r\n" + BODY))
        refused = b""
        while refused.count(b"try again") < 2:
            refused += client.recv(65536)
        assert refused.count(b"HTTP/1.1 429 ") == 2
        assert not called
        assert b'status="429"} 3.0' in server.service.metrics.text()
        for field, status in (b"Origin: http://other.example", b"403"), (b"Expect: 100-continue", b"429"):
            client.sendall(head + field + b"\r\n\r\n" + BODY)
            assert client.recv(65536)[9:12] == status
        client.sendall(ASK + BODY)
        assert client.recv(65536)[9:12] == b"401"
        full = False
        client.sendall(head + b"\r\n" + BODY)
        assert client.recv(65536)[9:12] == b"200"
        assert len(called) == 4


def test_a_client_that_does_not_read_is_dropped(port: int, bounds: ClientConnections) -> None:
    texts = {"input": ["a"] * 4000, "model": "minilm"}
    body = json.dumps(texts).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nX-Timeout: 600\r\nContent-Length: {len(body)}\r\n\r\n"
    with connect(port, head.encode() + body) as client:
        wait_for(bounds, 1)
        (connection,) = next(iter(bounds.by_client.values()))
        wait_until(lambda: connection.phase() == "writing")
        now = time.monotonic()
        assert not connection.is_late(now)
        assert connection.limit > connections.WRITE_SECONDS + 10, "a large answer has more time"
        assert not connection.is_late(now + connection.limit - 1)
        assert connection.is_late(now + connection.limit + 1)
        connection.since -= connection.limit + 1
        wait_for(bounds, 0)
        assert len(read(client)) < 20_000_000


def test_a_body_that_is_too_large_is_answered_not_reset(port: int) -> None:
    for size in (9_000_000, 30_000_000):
        client = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        client.request("POST", "/embed", b" " * size)
        assert client.getresponse().status == 413
        client.close()
