"""Vectors of texts, for all routes that give them: checks, tokenizing, computing, and what is said of texts cut."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.inference.embedding import finish_vectors
from bertree.serve.http.context import Context
from bertree.serve.http.errors import HttpError
from bertree.serve.models.served import ServedModel
from bertree.serve.schedule.work import Job
from bertree.text.tokenizer import Encoded

SMALL = 4000  # characters that are tokenized at once on the event loop: about a millisecond


class Vectors(NamedTuple):
    """Vectors of texts, one each."""

    rows: list[NDArray[np.float32]]
    tokens: int  # that were read
    truncated: list[int]  # numbers of the texts that were cut


class TextOptions(NamedTuple):
    """How texts are read."""

    field: str = "input"  # name of the texts in the request, for messages
    prompt: str | None = None
    cut: str = "right"  # the end at which a text is cut
    truncate: bool = True  # False: refuse a text that is too long


async def embed_texts(
    context: Context,
    served: ServedModel,
    texts: Sequence[str],
    reading: TextOptions,
    dimensions: int | None = None,
    normalize: bool | None = None,
) -> Vectors:
    """Return the vectors of texts as `model.embed` does. `normalize`: None: as the model does."""
    check_texts(context, texts, reading.field)
    width = served.dimension
    if dimensions is not None and not 1 <= dimensions <= width:
        raise HttpError(422, f"dimensions: must be from 1 to {width}, not {dimensions}", param="dimensions")
    if sum(map(len, texts)) <= SMALL:
        encoded = await served.tokenize_together(texts, reading.prompt, reading.cut)
    else:
        encoded = await context.aside(served.tokenize, texts, reading.prompt, reading.cut)
    truncated = check_tokens(context, encoded, served.max_length, reading)
    jobs = [Job(len(e.ids), e) for e in encoded]
    rows = await context.run(served.lane("unscaled" if normalize is False else "embed"), jobs)
    scaled = served.vector.normalize if normalize is None else normalize
    if dimensions is not None or scaled is not served.vector.normalize:
        rows = list(finish_vectors(np.array(rows), dimensions, scaled))
    return Vectors(rows, sum([job.tokens for job in jobs]), truncated)


def check_texts(context: Context, texts: Sequence[str], field: str) -> None:
    """Refuse no texts, too many, and empty ones."""
    if not texts:
        raise HttpError(422, f"{field}: must not be empty", param=field, code="empty")
    if len(texts) > context.limits.texts:
        raise HttpError(
            422, f"{field}: has {len(texts):,} texts; at most {context.limits.texts:,} in a request", param=field
        )
    if "" in texts:
        place = f" {texts.index('') + 1}" if len(texts) > 1 else ""
        raise HttpError(422, f"{field}: text{place} is empty", param=field)


def check_tokens(context: Context, encoded: Sequence[Encoded], most: int, reading: TextOptions) -> list[int]:
    """Return the numbers of the texts that were cut, and say so in a header; refuse them if that is wanted."""
    tokens = sum([len(e.ids) for e in encoded])
    if tokens > context.limits.tokens:
        raise HttpError(
            422,
            f"{reading.field}: has {tokens:,} tokens; at most {context.limits.tokens:,} in a request",
            param=reading.field,
        )
    truncated = [number for number, e in enumerate(encoded) if e.dropped]
    if not truncated:
        return truncated
    if not reading.truncate:
        first = encoded[truncated[0]]
        raise HttpError(
            422,
            f"{reading.field}: text {truncated[0] + 1} has {len(first.ids) + first.dropped:,} tokens and the model "
            f"reads {most:,}; shorten it, or let it be cut (truncate)",
            param=reading.field,
            code="too_long",
        )
    context.headers["x-truncated-texts"] = str(len(truncated))
    context.headers["x-truncated-tokens"] = str(sum(e.dropped for e in encoded))
    context.service.metrics.truncated(len(truncated))
    return truncated


def check_prompt(served: ServedModel, name: str | None, field: str) -> None:
    """Refuse a prompt that the model does not have."""
    try:
        served.model.vector.prompt_text(name, served.name)
    except UserError as error:
        raise HttpError(422, f"{field}: {error}", param=field) from None
