"""Masks and entities of a text."""

from typing import Any

import msgspec

from bertree.errors import UserError
from bertree.inference.mask_filling import Candidate
from bertree.serve.http.handlers import Context, Input, InputsForm, InputsRequest, route
from bertree.serve.routes.inputs import SMALL, Count, check_text, field_error, report_truncation
from bertree.serve.routes.scores import task_logits
from bertree.serve.token_queue import Job
from bertree.tasks.tagging.task import TaggingTask


class FillRequest(Input):
    """A text with masks ([MASK] or <mask>), and how many candidates are wanted for each."""

    text: str
    k: Count = 5
    model: str | None = None


class MaskCandidate(msgspec.Struct):
    """A token for a mask, as the tokenizer writes it and as text."""

    token: str
    text: str
    probability: float


class Mask(msgspec.Struct):
    """A mask of the text and its candidates, the likeliest first."""

    start: int
    end: int
    candidates: list[MaskCandidate]


class FillReply(msgspec.Struct):
    """The masks in their order. `cut`: the text was too long, and its end was not read."""

    model: str
    masks: list[Mask]
    cut: bool


def _write_masks(context: Context, request: InputsRequest, reply: Any) -> Any:
    """Return the candidates of the mask, or of each mask."""
    identify = context.service.registry.model(reply["model"]).model.required_tokenizer.backend.token_to_id
    text: Any = request.inputs

    def describe(mask: Any, candidate: Any) -> dict[str, Any]:
        word, token = candidate["text"], identify(candidate["token"])
        sequence = text[: mask["start"]] + word + text[mask["end"] :]
        return {"score": candidate["probability"], "token": token, "token_str": word, "sequence": sequence}

    masks = [[describe(mask, candidate) for candidate in mask["candidates"]] for mask in reply["masks"]]
    return masks[0] if len(masks) == 1 else masks


def _write_entities(context: Context, request: InputsRequest, reply: Any) -> Any:
    return [
        {"entity_group": e["label"], "word": e["text"], "score": e["score"], "start": e["start"], "end": e["end"]}
        for e in reply["entities"]
    ]


# Hugging Face's forms of the requests and of the answers, as its clients send and read them.
FILL = InputsForm("text", {"top_k": "k"}, _write_masks)
ENTITIES = InputsForm("text", {"aggregation_strategy": ""}, _write_entities)


@route("POST", "/fill", reply=FillReply, ability="fill", inputs=FILL)
async def fill(context: Context, body: FillRequest) -> Any:
    """Return likely tokens for the masks of a text."""
    served = context.model(body.model)
    check_text(body.text, "text")
    try:
        if len(body.text) <= SMALL:
            masked = served.model.prepare_masks(body.text, body.k)
        else:
            masked = await context.call_in_helper(served.model.prepare_masks, body.text, body.k)
    except UserError as error:
        raise field_error("text", error) from None
    (filled,) = await context.run(served.job_kind("fill"), [Job(len(masked.encoded.ids), masked)])
    piece = served.model.required_tokenizer.backend.id_to_token

    def describe(each: Candidate) -> dict[str, Any]:
        return {"token": piece(each.id) or each.token, "text": each.token, "probability": each.probability}

    masks = [{"start": m.start, "end": m.end, "candidates": [*map(describe, m.candidates)]} for m in filled]
    dropped = masked.encoded.dropped
    return {"model": served.name, "masks": masks, "cut": report_truncation(context, int(dropped > 0), dropped)}


class EntitiesRequest(Input):
    """A text to find entities in."""

    text: str
    model: str | None = None


class FoundEntity(msgspec.Struct):
    """An entity, text[start:end]. `score`: the mean probability of its words; null if a CRF decoded them."""

    start: int
    end: int
    label: str
    text: str
    score: float | None


class EntitiesReply(msgspec.Struct):
    """Entities in the order of the text. `cut`: a word was too long, and its end was not read."""

    model: str
    entities: list[FoundEntity]
    cut: bool


@route("POST", "/entities", reply=EntitiesReply, ability="entities", inputs=ENTITIES)
async def entities(context: Context, body: EntitiesRequest) -> Any:
    """Return the entities in a text, with their places."""
    served = context.model(body.model)
    check_text(body.text, "text")
    task = served.task
    assert isinstance(task, TaggingTask)
    example = task.parse({"text": body.text})

    units, dropped, logits = await task_logits(context, served, [example], "text")
    (line,) = task.predict([example], units, logits)
    named = [
        {"start": e["start"], "end": e["end"], "label": e["type"], "text": e["text"], "score": e["score"]}
        for e in line["entities"]
    ]
    return {"model": served.name, "entities": named, "cut": report_truncation(context, *dropped)}
