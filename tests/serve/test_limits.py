"""Bad input, keys, overload, deadlines: every answer is one line with a fitting status."""

import asyncio
import io
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bertree.serve.http.telemetry import Log
from bertree.serve.served import Registry
from bertree.serve.settings import ApiKeys, Limits, RequestSettings
from tests.support import asking
from tests.support.asking import Asker, in_event_loop, listening
from tests.support.processes import wait_until

SECRET = "a text that must not be logged"


def again(asker: Asker, settings: RequestSettings) -> Asker:
    """The same models with other settings."""
    return asking.with_registry(asker.service.registry, settings, threads=1)


@pytest.fixture(scope="module")
def small(asker: Asker) -> Iterator[Asker]:
    """A server with small limits."""
    with again(asker, RequestSettings(Limits(body_bytes=10_000, texts=20, tokens=500))) as server:
        yield server


@pytest.mark.parametrize(
    ("body", "status", "start"),
    [
        (b"", 400, "the body is not JSON"),
        (b"{", 400, "the body is not JSON"),
        (b'{"input": NaN}', 400, "the body is not JSON"),
        (b'{"input": "a", "dimensions": NaN}', 400, "the body is not JSON"),
        (b'{"input": "\xff"}', 400, "the body is not JSON"),
        (b"[" * 100_000, 400, "expected `object`"),
        (b'{"input": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "input"),
        (b"null", 400, "expected `object`"),
        (b"[]", 400, "expected `object`"),
        (b"{}", 400, "object missing required field `input`"),
        (b'{"input": null}', 400, "input"),
        (b'{"input": {"a": 1}}', 400, "input"),
        (b'{"input": ["a", null]}', 400, "input"),
        (b'{"input": ["a", 1.5]}', 400, "input"),
        (b'{"input": ["a", 1]}', 400, "input: must be texts, or token ids"),
        (b'{"input": []}', 400, "input: must not be empty"),
        (b'{"input": ""}', 400, "input: is empty"),
        (b'{"input": ["a", ""]}', 400, "input: the text at index 1 is empty"),
        (b'{"input": "a", "encoding_format": "hex"}', 400, "encoding_format"),
        (b'{"input": "a", "dimensions": "many"}', 400, "dimensions"),
        (b'{"input": "a", "dimensions": 1e400}', 400, "dimensions"),
        (b'{"input": "a", "prompt_name": "query"}', 400, "prompt_name: minilm: has no prompt"),
        (b'{"input": "a", "prompt": "query"}', 400, "prompt: unknown field; did you mean 'prompt_name'?"),
        (b'{"input": "a", "model": "../../etc/passwd"}', 404, "model: '../../etc/passwd' is not served"),
        (b'{"input": "a", "model": 7}', 400, "model"),
    ],
)
def test_a_wrong_body_is_answered_in_one_line(asker: Asker, body: bytes, status: int, start: str) -> None:
    response = asker.post("/v1/embeddings", body)
    assert (response.status, response.message[: len(start)]) == (status, start)
    assert "\n" not in response.message
    assert len(response.message) < 500


def test_texts_of_control_characters_and_surrogates_are_embedded(asker: Asker) -> None:
    texts = [" ", "\x00", "\n\t", "🐋" * 50, "a" * 5000, "é" * 10, "\u202e", "\\ud800"]
    response = asker.post("/embed", {"inputs": texts})
    assert response.status == 200
    assert len(response.json) == len(texts)
    lone = asker.post("/embed", b'{"inputs": "lone \\ud800 surrogate"}')
    assert lone.status in (200, 400)


def test_limits_are_named(small: Asker) -> None:
    large = small.post("/embed", {"inputs": "word " * 3000})
    assert large.status == 413
    assert "10,000 bytes" in large.message
    assert large.headers["connection"] == "close"
    assert small.post("/embed", b"\x1f\x8b", content_encoding="gzip").status == 415
    many = small.post("/embed", {"inputs": ["a"] * 21})
    assert (many.status, many.message) == (422, "inputs: has 21 texts; at most 20 in a request")
    tokens = small.post("/embed", {"inputs": ["word " * 100] * 10})
    assert tokens.status == 422
    assert "1,020 tokens; at most 500" in tokens.message


def test_a_body_that_is_longer_than_it_says_or_has_ten_megabytes_is_refused(small: Asker, asker: Asker) -> None:
    assert small.post("/embed", json.dumps({"inputs": "word " * 3000}).encode(), content_length="10").status == 413
    assert asker.post("/v1/embeddings", {"input": "a" * 10_000_000}).status == 413


def test_a_key_is_needed_where_the_server_has_one(asker: Asker) -> None:
    body = {"inputs": "a"}
    with again(asker, RequestSettings(keys=ApiKeys(("right", "other")))) as server:
        assert server.post("/embed", body).status == 401
        for wrong in ("Bearer wrong", "Basic right", "right"):
            response = server.post("/embed", body, authorization=wrong)
            assert response.status == 401
            assert response.headers["www-authenticate"] == "Bearer"
        for right in ("Bearer right", "bearer other"):
            assert server.post("/embed", body, authorization=right).status == 200
        assert server.get("/metrics").status == server.get("/v1/models").status == server.get("/nowhere").status == 401
        assert server.post("/", body).status == 401, "the page of this path is open"
        assert server.get("/health").status == server.get("/ready").status == server.get("/docs").status == 200


def test_pages_of_other_sites_are_refused_unless_allowed(asker: Asker) -> None:
    body = {"inputs": "a"}
    with again(asker, RequestSettings(cors=("https://mine.example",), loopback=True)) as server:
        assert server.post("/embed", body, origin="https://evil.example").status == 403
        assert server.post("/embed", body, host="rebound.example:8080").status == 403
        assert server.post("/embed", body, host="127.0.0.1:8080", origin="http://127.0.0.1:8080").status == 200
        allowed = server.post("/embed", body, origin="https://mine.example")
        assert allowed.headers["access-control-allow-origin"] == "https://mine.example"
        assert "access-control-allow-origin" not in server.post("/embed", body).headers
        assert "Retry-After" in allowed.headers["access-control-expose-headers"]
        asks = {"origin": "https://mine.example", "access-control-request-headers": "authorization,x-stainless-os"}
        asked = asyncio.run(server.send("OPTIONS", "/embed", b"", asks))
        assert (asked.status, asked.headers["access-control-allow-headers"]) == (204, "authorization,x-stainless-os")
        bad = asyncio.run(server.send("OPTIONS", "/embed", b"", asks | {"access-control-request-headers": "a\u00e9 b"}))
        assert bad.headers["access-control-allow-headers"] == "authorization, content-type"


@in_event_loop
async def test_a_full_queue_is_answered_with_the_time_to_wait(asker: Asker) -> None:
    with asking.with_registry(asker.service.registry, threads=0) as server:  # nothing is computed
        first = asyncio.create_task(server.send("POST", "/embed", b'{"inputs": "one two three"}'))
        await asyncio.sleep(0)
        second = await server.send("POST", "/embed", b'{"inputs": "one"}', {"x-timeout": "0.0001"})
        assert (second.status, second.json["error_type"]) == (429, "Overloaded"), "it cannot be done in time"
        server.service.scheduler.queue_seconds = 1e-9
        second = await server.send("POST", "/embed", json.dumps({"inputs": ["word " * 30]}).encode())
        assert (second.status, second.json["error_type"]) == (429, "Overloaded")
        assert int(second.headers["retry-after"]) >= 1
        third = await server.send("POST", "/v1/embeddings", b"not even JSON")
        assert third.status == 429, "refused before it is read"
        assert (await server.send("GET", "/ready")).status == 200
        server.service.scheduler.compute_next()
        assert (await first).status == 200


def test_a_request_is_given_up_after_its_time(asker: Asker) -> None:
    with asking.with_registry(asker.service.registry, threads=0) as server:
        assert server.post("/embed", {"inputs": "a"}, x_timeout="0.01").status == 504
        assert server.service.scheduler.queued_tokens == 0
        for wrong in ("-1", "0", "nan", "soon", "1e9"):
            assert server.post("/embed", {"inputs": "a"}, x_timeout=wrong).message.startswith("X-Timeout")


def test_clients_that_have_gone_leave_nothing_in_the_queue(asker: Asker) -> None:
    with asking.with_registry(asker.service.registry, threads=0) as server, listening(server) as address:
        scheduler, place = server.service.scheduler, ("127.0.0.1", int(address.rpartition(":")[2]))
        with ExitStack() as stack:
            for _ in range(100):
                client = stack.enter_context(socket.create_connection(place))
                head = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 22\r\n\r\n"
                client.sendall(head + b'{"inputs": ["a", "b"]}')
            wait_until(lambda: scheduler.queued_requests == 100)
        wait_until(lambda: scheduler.queued_tokens == scheduler.queued_requests == 0)


def logged(server: Asker) -> io.StringIO:
    """Let a server write its log into a text."""
    log = io.StringIO()
    server.service.log = Log(log)
    return log


def test_an_error_of_ours_is_logged_without_the_text_and_told_without_a_trace(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(payloads: object) -> list[object]:
        raise RuntimeError(f"in the middle of: {SECRET}")

    monkeypatch.setattr(asker.service.registry.model("minilm").job_kind("embed"), "compute", fail)
    with again(asker, RequestSettings()) as server:
        log = logged(server)
        answer = server.post("/embed", {"inputs": SECRET}, x_request_id="abc.1")
    assert (answer.status, answer.headers["x-request-id"]) == (500, "abc.1")
    assert "abc.1" in answer.message
    assert "RuntimeError" not in answer.message
    events = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["error", "request"]
    assert (events[0]["error"], events[1]["id"], events[1]["status"]) == ("RuntimeError", "abc.1", 500)
    assert SECRET not in log.getvalue()


def test_a_line_in_the_log_has_no_text_and_no_key(asker: Asker) -> None:
    with again(asker, RequestSettings(keys=ApiKeys(("topsecret",)))) as server:
        log = logged(server)
        server.post("/embed", {"inputs": SECRET}, authorization="Bearer topsecret", x_request_id="no spaces allowed")
    (event,) = [json.loads(line) for line in log.getvalue().splitlines()]
    assert (event["route"], event["status"], event["method"]) == ("/embed", 200, "POST")
    assert event["tokens"] > 5
    assert event["id"] != "no spaces allowed"
    assert SECRET not in log.getvalue()
    assert "topsecret" not in log.getvalue()


def test_nothing_is_served_by_an_empty_server() -> None:
    with asking.with_registry(Registry(), threads=0) as server:
        assert server.post("/embed", {"inputs": "a"}).status == 422
        assert server.get("/v1/models").json["data"] == []
