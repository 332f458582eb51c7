"""Text that continues a prompt, in one answer or streamed (server-sent events).

A generation is computed in slices of a few tokens. Between them it goes to the end of the queue, so that short requests
wait for a slice, not for a text. When its client has gone, no further slice is computed.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
import orjson
from msgspec import Meta
from starlette.responses import StreamingResponse

from bertree.errors import UserError
from bertree.inference.causal.generation import TextStream
from bertree.serve.http.handlers import Context, Input, InputsForm, InputsRequest, route
from bertree.serve.http.messages import HttpError, error_body
from bertree.serve.routes.inputs import field_error
from bertree.serve.served import ServedModel
from bertree.serve.token_queue import DeadlineExceeded, Overloaded

MOST_PROMPT = 4096  # tokens, which are read at once
SLICE = 0.05  # seconds of computing
SLICE_TOKENS = 256  # tokens of a text that take about as long to read
PAUSE = 0.25  # seconds before a generation that has begun tries a full queue again
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class GenerateRequest(Input):
    """A prompt. `tokens`: at most so many follow; without it 100, or as many as fit. The other fields are those of
    `model.generate`. `stream`: send the text as it comes."""

    prompt: str
    model: str | None = None
    tokens: Annotated[int, Meta(ge=1, le=4096)] | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    penalty: float = 1.0
    seed: int = 0
    control: str | None = None
    stream: bool = False


class GenerateReply(msgspec.Struct):
    """The text that follows the prompt, its tokens, and whether the model has ended it."""

    model: str
    text: str
    tokens: int
    ended: bool


def _write_text(context: Context, request: InputsRequest, reply: Any) -> Any:
    before = request.inputs if request.parameters.get("return_full_text") else ""
    return [{"generated_text": f"{before}{reply['text']}"}]


# Hugging Face's form of the request and of the answer, as its clients send and read them.
GENERATE = InputsForm(
    "prompt",
    {
        "max_new_tokens": "tokens",
        "repetition_penalty": "penalty",
        **{name: name for name in ("temperature", "top_k", "top_p", "seed")},
        **dict.fromkeys(("return_full_text", "details", "decoder_input_details", "watermark"), ""),
    },
    _write_text,
)


@route("POST", "/generate", reply=GenerateReply, ability="generate", inputs=GENERATE)
async def generate(context: Context, body: GenerateRequest) -> Any:
    """Return the text that continues a prompt; with `stream`, as server-sent events."""
    served = context.model(body.model)
    options = {name: value for name, value in msgspec.structs.asdict(body).items() if name not in ("model", "stream")}
    text = await context.call_in_helper(lambda: served.model.stream(**options))
    if len(text.prompt_ids) > MOST_PROMPT:
        raise field_error("prompt", f"has {len(text.prompt_ids):,} tokens; at most {MOST_PROMPT:,} in a request")
    pieces = text_pieces(context, served, text)
    first, _ = await anext(pieces)  # so that a refusal has its own status
    if body.stream:
        return event_stream(_events(text, first, pieces))
    async for _ in pieces:
        pass
    result = text.result
    return {"model": served.name, "text": result.text, "tokens": len(result.ids), "ended": result.ended}


async def text_pieces(context: Context, served: ServedModel, text: TextStream) -> AsyncIterator[tuple[str, bool]]:
    """Yield the text slice by slice, each with whether more may follow."""
    tokens, begun, kind = SLICE_TOKENS + len(text.prompt_ids), False, served.job_kind("generate")
    while True:
        try:
            piece, more = await context.call(kind, tokens, lambda: _compute_slice(text))
        except Overloaded:
            if not begun:
                raise
            if context.service.scheduler.now() + PAUSE > context.deadline:
                raise DeadlineExceeded from None
            await asyncio.sleep(PAUSE)
            continue
        begun, tokens = True, SLICE_TOKENS
        context.tokens = len(text.prompt_ids) + text.tokens  # for the log; `tokens` is an estimate of the work
        yield piece, more
        if not more:
            return


def _compute_slice(text: TextStream) -> tuple[str, bool]:
    """Return the next piece of a text, and whether more may follow."""
    until, pieces = time.perf_counter() + SLICE, []
    for piece in text:
        pieces.append(piece)
        if time.perf_counter() >= until:
            return "".join(pieces), True
    return "".join(pieces), False


async def _events(text: TextStream, first: str, pieces: AsyncIterator[tuple[str, bool]]) -> AsyncIterator[Any]:
    """Yield the events of a stream."""
    if first:
        yield {"text": first}
    async for piece, _ in pieces:
        if piece:
            yield {"text": piece}
    yield {"done": True, "tokens": text.tokens, "ended": text.result.ended}


def event_stream(events: AsyncIterator[Any]) -> StreamingResponse:
    """Return the response that sends events as they come. The status is sent before, so an error is an event too."""

    async def lines() -> AsyncIterator[bytes]:
        try:
            async for event in events:
                yield b"data: " + orjson.dumps(event) + b"\n\n"
        except (DeadlineExceeded, Overloaded, UserError) as problem:
            error = HttpError(429 if isinstance(problem, Overloaded) else 422, str(problem))
            if isinstance(problem, DeadlineExceeded):
                error = HttpError(504, "the text was not done in its time (X-Timeout)")
            yield b"data: " + orjson.dumps(error_body(error, "openai")) + b"\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream", headers=HEADERS)
