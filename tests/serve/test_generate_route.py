"""Text over HTTP: what `generate` gives, as it comes, and no longer than somebody reads it."""

import asyncio
import json
import socket
import threading
from typing import Any

import pytest

from bertree.serve.http.connections import ClientConnections
from bertree.serve.routes import generate
from bertree.serve.scheduler import Scheduler
from bertree.serve.token_queue import JobKind, Overloaded
from tests.support.asking import Answer, Asker, in_event_loop, listening, refused
from tests.support.processes import PATIENCE, wait_until

BODY: dict[str, Any] = {"prompt": "the boat", "tokens": 20, "temperature": 0.9, "top_p": 0.9, "seed": 4, "model": "gpt"}


def events(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.body.decode().split("\n\n")
    assert blocks.pop() == ""
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def test_the_text_is_that_of_the_model(own: Asker) -> None:
    options = {key: value for key, value in BODY.items() if key not in ("prompt", "model")}
    wanted = own.service.registry.model("gpt").model.generate("the boat", **options)[0]
    report = own.post("/generate", BODY).json
    assert report == {"model": "gpt", "text": wanted.text, "tokens": len(wanted.ids), "ended": wanted.ended}
    for control in ("boat", "river"):
        wanted = own.service.registry.model("ctrl").model.generate("a", tokens=5, control=control)[0]
        body = {"prompt": "a", "tokens": 5, "model": "ctrl", "control": control}
        assert own.post("/generate", body).json["text"] == wanted.text


def test_a_stream_has_the_same_text_in_pieces(own: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "SLICE", 0.0)
    whole = own.post("/generate", BODY).json
    *pieces, last = events(own.post("/generate", BODY | {"stream": True}))
    assert len(pieces) > 3
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    assert last == {"done": True, "tokens": whole["tokens"], "ended": whole["ended"]}


def test_texts_that_are_generated_at_the_same_time_are_as_alone(own: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "SLICE", 0.0)
    bodies = [BODY | {"seed": seed, "temperature": seed % 2, "stream": seed > 2} for seed in range(6)]
    model = own.service.registry.model("gpt").model
    for body, answer in zip(bodies, own.post_all([("/generate", body) for body in bodies]), strict=True):
        options = {key: body[key] for key in ("tokens", "temperature", "top_p", "seed")}
        text = "".join(e.get("text", "") for e in events(answer)) if body["stream"] else answer.json["text"]
        assert text == model.generate("the boat", **options)[0].text


class SliceGate:
    """Lets the compute threads compute the first slices of texts, and then wait until the gate is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.slices, self.free, self.opened, self.compute = 0, free, threading.Event(), generate._compute_slice
        monkeypatch.setattr(generate, "SLICE", 0.0)
        monkeypatch.setattr(generate, "_compute_slice", self)

    def __call__(self, text: Any) -> tuple[str, bool]:
        self.slices += 1
        if self.slices > self.free:
            assert self.opened.wait(PATIENCE)
        return self.compute(text)


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_more_is_computed_for_a_client_that_has_gone(
    own: Asker, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    gate = SliceGate(monkeypatch, free=1)
    body = json.dumps(BODY | {"tokens": 40, "stream": stream}).encode()
    bounds = ClientConnections()
    with listening(own, bounds) as address:
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as client:
            head = f"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            wait_until(lambda: gate.slices > gate.free)
        wait_until(lambda: not bounds.by_client)
        gate.opened.set()
    scheduler = own.service.scheduler
    wait_until(lambda: scheduler.idle_threads == scheduler.threads)
    assert gate.slices <= 3, "of 40: the first, and those that were being computed when the client had gone"
    assert scheduler.queued_requests == 0


@in_event_loop
async def test_short_requests_are_answered_between_the_slices_of_a_long_text(
    own: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, scheduler = SliceGate(monkeypatch, free=0), own.service.scheduler
    done: list[str] = []

    async def ask(path: str, body: dict[str, Any]) -> None:
        await own.send("POST", path, json.dumps(body).encode())
        done.append(path)

    tasks = [asyncio.create_task(ask("/generate", BODY | {"tokens": 40, "seed": seed})) for seed in range(4)]
    while gate.slices < scheduler.threads:
        await asyncio.sleep(0.001)
    tasks.append(asyncio.create_task(ask("/fill", {"text": "the <mask>"})))
    while scheduler.queued_requests < 5 - scheduler.threads:
        await asyncio.sleep(0.001)
    gate.opened.set()
    await asyncio.gather(*tasks)
    assert done[0] == "/fill", "before all texts, though it came last"


def test_a_full_queue_refuses_a_text_at_its_beginning_and_never_in_the_middle(
    own: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "SLICE", 0.0)
    monkeypatch.setattr(generate, "PAUSE", 0.01)
    run, calls = Scheduler.run, []

    async def sometimes(self: Scheduler, *arguments: Any) -> list[Any]:
        calls.append(1)
        if len(calls) in refusals:
            raise Overloaded(3)
        return await run(self, *arguments)

    monkeypatch.setattr(Scheduler, "run", sometimes)
    refusals = {1}
    first = own.post("/generate", BODY)
    assert (first.status, first.headers["retry-after"]) == (429, "3")
    calls.clear()
    refusals = {3, 4, 7}
    later = own.post("/generate", BODY)
    assert later.status == 200
    refusals = set()
    assert own.post("/generate", BODY).json == later.json


def test_a_text_that_takes_too_long_ends_with_an_error(own: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    compute, now = generate._compute_slice, 0.0

    def compute_until_late(text: Any) -> tuple[str, bool]:
        nonlocal now
        result, now = compute(text), now + 3600.0
        return result

    monkeypatch.setattr(own.service.scheduler, "_clock", lambda: now)
    monkeypatch.setattr(JobKind, "measure", lambda *_: None)  # what it costs is not to be believed
    monkeypatch.setattr(generate, "SLICE", 0.0)
    monkeypatch.setattr(generate, "_compute_slice", compute_until_late)
    assert own.post("/generate", BODY, x_timeout="600").status == 504
    *pieces, last = events(own.post("/generate", BODY | {"stream": True}, x_timeout="600"))
    assert len(pieces) <= 1, "none if the first has no letters"
    assert "not done in its time" in last["error"]["message"]


def test_a_wrong_field_of_generate_is_named(own: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "at most 46 fit" in refused(own, "/generate", BODY | {"tokens": 100}, "tokens")
    for tokens in (0, -1, 5000, 1.5, "3"):
        refused(own, "/generate", BODY | {"tokens": tokens}, "tokens")
    for field, values in (("temperature", (-1, "x")), ("top_p", (0, 2)), ("top_k", (-1,)), ("penalty", (0,))):
        for value in values:
            refused(own, "/generate", BODY | {field: value}, field)
    assert own.post("/generate", BODY | {"control": "x"}).status == 422
    assert own.post("/generate", BODY | {"prompt": "boat " * 60}).status == 422
    refused(own, "/generate", BODY | {"model": "words"}, "model")
    for seed in (-1, 2**63, 10**30):
        assert own.post("/generate", BODY | {"seed": seed}).status in (200, 422)
    monkeypatch.setattr(generate, "MOST_PROMPT", 3)
    refused(own, "/generate", BODY | {"prompt": "the boat on a river"}, "prompt")
