"""Masks and entities of a text."""

from typing import Any

import msgspec

from bertree.errors import UserError
from bertree.inference.inputs import check_finite
from bertree.serve.http.context import Context
from bertree.serve.http.table import route
from bertree.serve.models.served import unit_tokens
from bertree.serve.routes.inputs import SMALL, Count, about, check_text, check_units, note_cut
from bertree.serve.schedule.work import Job
from bertree.tasks.tagging.task import TaggingTask


class FillRequest(msgspec.Struct):
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


@route("POST", "/fill", body=FillRequest, reply=FillReply, does="fill", summary="Likely tokens for the masks of a text")
async def fill(context: Context, body: FillRequest) -> Any:
    """Return the masks of a text with their candidates, as `model.fill_masks` does."""
    served = context.registry.model(body.model, does="fill")
    check_text(body.text, "text")
    try:
        if len(body.text) <= SMALL:
            masked = served.model.prepare_masks(body.text, body.k)
        else:
            masked = await context.aside(served.model.prepare_masks, body.text, body.k)
    except UserError as error:
        raise about("text", error) from None
    (found,) = await context.run(served.lane("fill"), [Job(len(masked.encoded.ids), masked)])
    piece = served.model.required_tokenizer.backend.id_to_token
    masks = [
        {
            "start": mask.start,
            "end": mask.end,
            "candidates": [
                {"token": piece(one.id) or one.token, "text": one.token, "probability": one.probability}
                for one in mask.candidates
            ],
        }
        for mask in found
    ]
    dropped = masked.encoded.dropped
    return {"model": served.name, "masks": masks, "cut": note_cut(context, int(dropped > 0), dropped)}


class EntitiesRequest(msgspec.Struct):
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


@route(
    "POST",
    "/entities",
    body=EntitiesRequest,
    reply=EntitiesReply,
    does="entities",
    summary="Entities in a text, with their places",
)
async def entities(context: Context, body: EntitiesRequest) -> Any:
    """Return the entities of a text, as `model.predict` does."""
    served = context.registry.model(body.model, does="entities")
    check_text(body.text, "text")
    task, model = served.task, served.model
    assert isinstance(task, TaggingTask)
    example = task.parse({"text": body.text})

    def units() -> Any:
        return task.units([example], model.required_tokenizer, served.task_max_length)

    found, cut = await context.aside(units)
    check_units(context, found, "text")
    logits = await context.run(served.lane("task"), [Job(unit_tokens(unit), unit) for unit in found])
    for rows in logits:
        check_finite(rows, served.name)
    (line,) = task.predict([example], found, logits)
    named = [{"start": e["start"], "end": e["end"], "label": e["type"]} | _rest(e) for e in line["entities"]]
    return {"model": served.name, "entities": named, "cut": note_cut(context, *cut)}


def _rest(entity: dict[str, Any]) -> dict[str, Any]:
    return {"text": entity["text"], "score": entity["score"]}
