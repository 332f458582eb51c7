"""Text over HTTP: what `generate` gives, as it comes, and no longer than somebody reads it."""

import asyncio
import json
import time
from typing import Any

import pytest

from bertree.serve.routes import generate
from bertree.serve.scheduler import Scheduler
from bertree.serve.token_queue import Overloaded
from tests.support.asking import Answer, Asker, refused

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
    found = own.post("/generate", BODY).json
    assert found == {"model": "gpt", "text": wanted.text, "tokens": len(wanted.ids), "ended": wanted.ended}
    for control in ("boat", "river"):
        wanted = own.service.registry.model("ctrl").model.generate("a", tokens=5, control=control)[0]
        assert own.post("/generate", {"prompt": "a", "tokens": 5, "model": "ctrl", "control": control}).json[
            "text"
        ] == (wanted.text)


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
        found = "".join(e.get("text", "") for e in events(answer)) if body["stream"] else answer.json["text"]
        assert found == model.generate("the boat", **options)[0].text


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_more_is_computed_for_a_client_that_has_gone(
    own: Asker, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    slices = []
    compute = generate._compute_slice

    def slow(text: Any) -> tuple[str, bool]:
        slices.append(1)
        time.sleep(0.01)
        return compute(text)

    monkeypatch.setattr(generate, "SLICE", 0.0)
    monkeypatch.setattr(generate, "_compute_slice", slow)
    body = json.dumps(BODY | {"tokens": 40, "stream": stream}).encode()
    asyncio.run(own.send("POST", "/generate", body, gone=True))
    computed = len(slices)
    assert computed < 25, "of 40: a client is watched after a tenth of a second"
    time.sleep(0.1)
    assert len(slices) <= computed + 1, "the slice that was being computed"
    assert own.service.scheduler.queued_requests == 0


def test_short_requests_are_answered_between_the_slices_of_a_long_text(
    own: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "SLICE", 0.0)
    done: list[str] = []

    async def ask(path: str, body: dict[str, Any]) -> None:
        await own.send("POST", path, json.dumps(body).encode())
        done.append(path)

    async def both() -> None:
        long = [asyncio.create_task(ask("/generate", BODY | {"tokens": 40, "seed": seed})) for seed in range(4)]
        await asyncio.sleep(0.02)
        await ask("/fill", {"text": "the <mask>"})
        await asyncio.gather(*long)

    asyncio.run(both())
    assert done.index("/fill") < 4, "before the last text"


def test_a_full_queue_refuses_a_text_at_its_beginning_and_never_in_the_middle(
    own: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "SLICE", 0.0)
    monkeypatch.setattr(generate, "PAUSE", 0.01)
    run, calls = Scheduler.run, []

    async def sometimes(self: Scheduler, *given: Any) -> list[Any]:
        calls.append(1)
        if len(calls) in refusals:
            raise Overloaded(3)
        return await run(self, *given)

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
    compute = generate._compute_slice
    monkeypatch.setattr(generate, "SLICE", 0.0)
    monkeypatch.setattr(generate, "_compute_slice", lambda text: (time.sleep(0.1), compute(text))[1])
    assert own.post("/generate", BODY, x_timeout="0.25").status == 504
    late = 0.0  # seconds: the first piece comes in time even on a busy machine, and the next ones never

    def compute_until_late(text: Any) -> tuple[str, bool]:
        nonlocal late
        found, late = compute(text), 3600.0
        return found

    monkeypatch.setattr(own.service.scheduler, "_clock", lambda: time.monotonic() + late)
    monkeypatch.setattr(generate, "_compute_slice", compute_until_late)
    *pieces, last = events(own.post("/generate", BODY | {"stream": True}, x_timeout="600"))
    assert len(pieces) <= 1, "none if the first has no letters"
    assert "not done in its time" in last["error"]["message"]


def test_mistakes_in_a_prompt(own: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
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
