"""Checks of the texts in requests, and their vectors, for all routes that read texts."""

from binascii import b2a_base64
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import orjson
import torch
from msgspec import Meta
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.inference.embedding import shorten
from bertree.serve.http.handlers import Context
from bertree.serve.http.messages import HttpError
from bertree.serve.served import ServedModel
from bertree.serve.token_queue import Job
from bertree.text.tokenizer import Encoded

SMALL = 4000  # characters that are tokenized on the event loop, in about a millisecond
Texts = list[Any]  # texts, or lists of token ids
Rows = list[NDArray[np.float32]]
TextOrIds = str | list[str | int | list[int]]  # one text or several, or the token ids of one or several
Count = Annotated[int, Meta(ge=1, le=1000)]  # number of results


def field_error(field: str, message: object, code: str | None = None) -> HttpError:
    """Return the answer to an invalid field of a request; the message may begin with the field already."""
    return HttpError(422, f"{field}: {str(message).removeprefix(f'{field}: ')}", param=field, code=code)


def check_text(text: str, field: str) -> None:
    """Refuse a blank text."""
    if not text.strip():
        raise field_error(field, "is empty", "empty")


def check_texts(context: Context, texts: Texts, field: str) -> None:
    """Refuse an empty list, too many texts, and empty texts."""
    if not texts:
        raise field_error(field, "must not be empty", "empty")
    if len(texts) > context.limits.texts:
        raise field_error(field, f"has {len(texts):,} texts; at most {context.limits.texts:,} in a request")
    empties: Texts = ["", []]
    for empty in empties:
        if empty in texts:
            raise field_error(
                field, f"the text at index {texts.index(empty)} is empty" if len(texts) > 1 else "is empty"
            )


def list_inputs(inputs: str | Sequence[str | int | list[int]], field: str) -> Texts:
    """Return the texts of a request, or the lists of token ids; a single one as a list of one."""
    if isinstance(inputs, str):
        return [inputs]
    for kind in (str, list):
        if all(isinstance(item, kind) for item in inputs):
            return list(inputs)
    if not all(isinstance(item, int) for item in inputs):
        raise field_error(field, "must be texts, or token ids, or lists of token ids, and all of one kind")
    return [inputs]


async def encode_inputs(context: Context, served: ServedModel, inputs: Texts, options: "TextOptions") -> list[Encoded]:
    """Return the tokens of texts, or of lists of token ids, as the model reads them."""
    check_texts(context, inputs, options.field)
    check_prompt(served, options.prompt)
    size = served.model.required_tokenizer.size
    if isinstance(inputs[0], str):
        if sum(map(len, inputs)) <= SMALL:
            return await served.gatherer.encode(inputs, options.prompt, options.cut)
        return await context.call_in_helper(served.tokenize, inputs, options.prompt, options.cut)
    if wrong := next((token for row in inputs for token in row if not 0 <= token < size), None):
        raise field_error(
            options.field,
            f"{wrong} is not a token id of '{served.name}', which has {size:,}; ids must be those of its own tokenizer "
            "(LangChain sends those of OpenAI's, unless check_embedding_ctx_length=False)",
        )
    return await context.call_in_helper(served.encode_ids, inputs, options.prompt, options.cut)


def check_token_count(context: Context, tokens: int, field: str) -> None:
    """Refuse texts of more tokens than a request may have."""
    if tokens > context.limits.tokens:
        raise field_error(field, f"has {tokens:,} tokens; at most {context.limits.tokens:,} in a request")


def check_prompt(served: ServedModel, name: str | None) -> None:
    """Refuse a prompt that the model does not have."""
    try:
        if name is not None:
            served.model.vector.prompt_text(name, served.name)
    except UserError as error:
        raise HttpError(422, f"prompt_name: {error}", param="prompt_name") from None


def report_truncation(context: Context, texts: int, tokens: int) -> bool:
    """Report in headers and metrics how many texts were truncated, and by how many tokens; return whether any was."""
    if texts:
        context.response_headers["x-truncated-texts"] = str(texts)
        context.response_headers["x-truncated-tokens"] = str(tokens)
        context.service.metrics.truncated.inc(texts)
    return texts > 0


class TextOptions(NamedTuple):
    """How texts are read."""

    field: str = "input"  # name of the texts in the request, for messages
    prompt: str | None = None
    cut: str = "right"  # the end at which a text is cut
    truncate: bool = True  # False: refuse a text that is too long


def check_tokens(context: Context, encoded: Sequence[Encoded], most: int, options: TextOptions) -> list[int]:
    """Return the numbers of the texts that were truncated, and report them; refuse them if the options say so."""
    check_token_count(context, sum([len(e.ids) for e in encoded]), options.field)
    truncated = [number for number, e in enumerate(encoded) if e.dropped]
    if not truncated:
        return truncated
    if not options.truncate:
        first = encoded[truncated[0]]
        raise field_error(
            options.field,
            f"the text at index {truncated[0]} has {len(first.ids) + first.dropped:,} tokens and the model reads "
            f"{most:,}; shorten it, or let it be cut (truncate)",
            "too_long",
        )
    report_truncation(context, len(truncated), sum(e.dropped for e in encoded))
    return truncated


class Vectors(NamedTuple):
    """Vectors of texts, one each."""

    rows: Rows
    tokens: int  # that were read
    truncated: list[int]  # numbers of the texts that were truncated


async def embed_texts(
    context: Context,
    served: ServedModel,
    texts: Texts,
    options: TextOptions,
    *,
    dimensions: int | None = None,
    normalize: bool | None = None,
) -> Vectors:
    """Return the vectors of texts, or of token ids, as `model.embed` does. `normalize`: None: as the model does."""
    width, default = served.dimension, served.vector.normalize
    if dimensions is not None and not 1 <= dimensions <= width:
        raise field_error("dimensions", f"must be from 1 to {width}, not {dimensions}")
    encoded = await encode_inputs(context, served, texts, options)
    truncated = check_tokens(context, encoded, served.max_length, options)
    jobs = [Job(len(e.ids), e) for e in encoded]
    rows = await context.run(served.job_kind("unscaled" if normalize is False else "embed"), jobs)
    normalize = default if normalize is None else normalize
    if dimensions is not None or normalize is not default:
        rows = list(shorten(torch.from_numpy(np.array(rows)), dimensions, normalize).numpy())
    return Vectors(rows, sum([job.tokens for job in jobs]), truncated)


def write_base64(rows: Rows) -> list[str]:
    """Return each vector as base64 of little-endian float32."""
    return [b2a_base64(row.astype("<f4", copy=False).data, newline=False).decode() for row in rows]


def write_floats(rows: Rows) -> list[orjson.Fragment]:
    """Return each vector as JSON, written one by one, so that other threads run in between."""
    return [orjson.Fragment(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)) for row in rows]
