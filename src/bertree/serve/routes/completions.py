"""OpenAI's completions by left-to-right models: several texts, stop sequences, log-probabilities, streaming."""

import random
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

import msgspec
import orjson
from msgspec import Meta

from bertree.errors import UserError
from bertree.inference.causal.generation import GenerationOptions, TextStream
from bertree.inference.causal.sampling import Sampling
from bertree.inference.causal.scoring import token_logs
from bertree.serve.http.handlers import Context, Input, route
from bertree.serve.routes.generate import MOST_PROMPT, event_stream, text_pieces
from bertree.serve.routes.inputs import TextOrIds, field_error, list_inputs
from bertree.serve.served import ServedModel

MOST_TEXTS = 64  # of one request
NoPenalty = Annotated[float, Meta(ge=0, le=0)]
One = Annotated[int, Meta(ge=1, le=1)]
Stop = Annotated[str, Meta(min_length=1)]


class StreamOptions(Input):
    """Whether a last event counts the tokens."""

    include_usage: bool = False


class CompletionRequest(Input):
    """A prompt, or several; texts or token ids. `best_of` and the penalties have no other value than these."""

    prompt: TextOrIds
    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=4096)] = 16
    temperature: float = 1.0
    top_p: float = 1.0
    n: Annotated[int, Meta(ge=1, le=MOST_TEXTS)] = 1
    stop: Stop | list[Stop] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    best_of: One | None = None
    frequency_penalty: NoPenalty = 0.0
    presence_penalty: NoPenalty = 0.0


class CompletionReply(msgspec.Struct):
    """The texts: for each prompt, its n continuations."""

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]  # text, index, logprobs, finish_reason: stop or length
    usage: dict[str, int]


class Completion:
    """A text as it is generated, without the stop sequence that ends it."""

    def __init__(self, text: TextStream, index: int, stop: Sequence[str]) -> None:
        self.text, self.index, self._stop = text, index, stop
        self._generated, self._shown = "", 0
        self.stopped = False
        self.offset = 0  # where the next token begins

    def add(self, piece: str, last: bool = False) -> str:
        """Add a piece; return what can be shown. The beginning of a stop sequence is kept back until the `last`."""
        self._generated += piece
        places = [place for stop in self._stop if (place := self._generated.find(stop)) >= 0]
        if places:
            self.stopped, self._generated = True, self._generated[: min(places)]
        kept = 0 if self.stopped or last else self._beginning()
        shown = self._generated[self._shown : len(self._generated) - kept]
        self._shown += len(shown)
        return shown

    def _beginning(self) -> int:
        """Return how many characters at the end of the text may begin a stop sequence."""
        lengths = [n for stop in self._stop for n in range(1, len(stop)) if self._generated.endswith(stop[:n])]
        return max(lengths, default=0)

    @property
    def reason(self) -> str:
        """Why it ended."""
        return "stop" if self.stopped or self.text.result.ended else "length"


@route("POST", "/v1/completions", reply=CompletionReply, ability="generate")
async def completions(context: Context, body: CompletionRequest) -> Any:
    """Return texts that continue prompts, in OpenAI's form; without a seed it is a random one."""
    served = context.model(body.model)
    prompts = list_inputs(body.prompt, "prompt")
    if not 1 <= len(prompts) * body.n <= MOST_TEXTS:
        raise field_error("prompt", f"{len(prompts)} prompts x {body.n} texts: from 1 to {MOST_TEXTS} in a request")
    options = GenerationOptions(
        tokens=body.max_tokens,
        seed=random.getrandbits(31) if body.seed is None else body.seed,
        sampling=Sampling(body.temperature, 0, body.top_p),
    )
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []

    def begin() -> list[Completion]:
        streams = [TextStream(served.model, prompt, options, n) for prompt in prompts for n in range(body.n)]
        return [Completion(stream, index, stop) for index, stream in enumerate(streams)]

    try:
        texts = await context.call_in_helper(begin)
    except UserError as error:
        raise field_error("max_tokens" if str(error).startswith("tokens") else "prompt", str(error)) from None
    if (longest := max(len(completion.text.prompt_ids) for completion in texts)) > MOST_PROMPT:
        raise field_error("prompt", f"has {longest:,} tokens; at most {MOST_PROMPT:,} in a request")
    head = {"id": f"cmpl-{uuid4().hex}", "object": "text_completion", "created": int(time.time()), "model": served.name}
    choices = _choices(context, served, texts, body.logprobs)
    if body.stream:
        first = await anext(choices)  # so that a refusal has its own status
        count = body.stream_options is not None and body.stream_options.include_usage
        return event_stream(_events(head, first, choices, (texts, body.n) if count else None))
    whole: dict[int, dict[str, Any]] = {}
    async for choice in choices:
        before = whole.setdefault(choice["index"], choice)
        if before is not choice:
            before |= {"text": before["text"] + choice["text"], "finish_reason": choice["finish_reason"]}
            for name, values in (choice["logprobs"] or {}).items():
                before["logprobs"][name] += values
    return head | {"choices": list(whole.values()), "usage": _usage(texts, body.n)}


async def _choices(
    context: Context, served: ServedModel, texts: Sequence[Completion], logprobs: int | None
) -> AsyncIterator[dict[str, Any]]:
    """Yield the texts one after another, slice by slice, as OpenAI's choices."""
    for completion in texts:
        scored = 0
        async for piece, more in text_pieces(context, served, completion.text):
            shown, done = completion.add(piece, last=not more), not more or completion.stopped
            logs = None
            if logprobs is not None:
                kind, begin = served.job_kind("generate"), scored
                score = partial(_logs, served, completion, begin, logprobs)
                logs = await context.call(kind, completion.text.tokens, score)
                scored = completion.text.tokens
            reason = completion.reason if done else None
            if shown or logs or done:
                yield {"text": shown, "index": completion.index, "logprobs": logs, "finish_reason": reason}
            if done:
                break


def _logs(served: ServedModel, completion: Completion, begin: int, k: int) -> dict[str, Any]:
    """Return the log-probabilities of the tokens of a text from one of them on."""
    prompt, ids = completion.text.prompt_ids, completion.text.result.ids
    decode, new = served.model.required_tokenizer.backend.decode, ids[begin:]
    names = [decode([token], skip_special_tokens=False) for token in new]
    first = len(prompt) + begin
    logs: list[Any] = token_logs(served.model, [*prompt, *ids], max(1, first), k) if new else []
    logs = [(None, None)] * (len(new) - len(logs)) + logs  # nothing comes before the first token of all
    offsets = []
    for name in names:
        offsets.append(completion.offset)
        completion.offset += len(name)
    best = [top and {decode([token], skip_special_tokens=False): value for token, value in top} for _, top in logs]
    return {"tokens": names, "token_logprobs": [own for own, _ in logs], "top_logprobs": best, "text_offset": offsets}


def _usage(texts: Sequence[Completion], n: int) -> dict[str, int]:
    prompt = sum(len(completion.text.prompt_ids) for completion in texts[::n])
    new = sum(completion.text.tokens for completion in texts)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


async def _events(
    head: dict[str, Any],
    first: dict[str, Any],
    choices: AsyncIterator[dict[str, Any]],
    counted: tuple[Sequence[Completion], int] | None,
) -> AsyncIterator[Any]:
    """Yield the events of a stream."""
    yield head | {"choices": [first]}
    async for choice in choices:
        yield head | {"choices": [choice]}
    if counted is not None:
        yield head | {"choices": [], "usage": _usage(*counted)}
    yield orjson.Fragment(b"[DONE]")
