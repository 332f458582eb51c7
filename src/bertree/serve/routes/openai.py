"""Routes that follow OpenAI's interface, so that its clients work. `truncate`, `prompt` and `truncated` are ours."""

from binascii import b2a_base64
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.serve.http.answers import HttpError
from bertree.serve.http.handlers import Context, route
from bertree.serve.routes.inputs import TextOptions, check_prompt, embed_texts
from bertree.serve.routes.scores import class_names
from bertree.serve.served import ServedIndex, ServedModel
from bertree.tasks.text import TextTask

Rows = list[NDArray[np.float32]]
MOST_ON_LOOP = 256  # vectors that are written on the event loop; more would delay other requests


class EmbeddingsRequest(msgspec.Struct):
    """Texts to embed."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
    truncate: bool = True  # false: refuse texts that are too long
    prompt: str | None = None  # name of one of the model's prompts


class Embedding(msgspec.Struct):
    """A vector; in base64 it is little-endian float32."""

    object: Literal["embedding"]
    embedding: list[float] | str
    index: int


class Usage(msgspec.Struct):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsReply(msgspec.Struct, omit_defaults=True):
    """Vectors in the order of the texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage
    truncated: list[int] = []  # indices of the texts that were truncated; left out if there are none


@route("POST", "/v1/embeddings", reply=EmbeddingsReply, ability="embed", summary="Vectors of texts (OpenAI's form)")
async def embeddings(context: Context, body: EmbeddingsRequest) -> Any:
    """Return the vectors of texts."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not all(type(text) is str for text in texts):
        raise HttpError(
            422,
            "input: has token ids, which are those of another tokenizer; send texts (LangChain: "
            "OpenAIEmbeddings(check_embedding_ctx_length=False))",
            param="input",
        )
    served = context.model(body.model)
    if body.prompt is not None:
        check_prompt(served, body.prompt, "prompt")
    vectors = await embed_texts(
        context,
        served,
        texts,  # type: ignore[arg-type]
        TextOptions("input", body.prompt, truncate=body.truncate),
        dimensions=body.dimensions,
    )
    write: Callable[[Rows], Sequence[Any]] = _base64 if body.encoding_format == "base64" else _floats
    if len(texts) == 1 and write is _floats:
        rows: Sequence[Any] = vectors.rows  # orjson writes it with the rest
    else:
        rows = write(vectors.rows) if len(texts) <= MOST_ON_LOOP else await context.call_in_helper(write, vectors.rows)
    reply = {
        "object": "list",
        "data": [{"object": "embedding", "embedding": row, "index": index} for index, row in enumerate(rows)],
        "model": served.name,
        "usage": {"prompt_tokens": vectors.tokens, "total_tokens": vectors.tokens},
    }
    return reply | {"truncated": vectors.truncated} if vectors.truncated else reply


def _base64(rows: Rows) -> list[str]:
    return [b2a_base64(row.astype("<f4", copy=False).data, newline=False).decode() for row in rows]


def _floats(rows: Rows) -> list[orjson.Fragment]:
    """Return each vector as JSON, written one by one, so that other threads run in between."""
    return [orjson.Fragment(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)) for row in rows]


@route("GET", "/v1/models", summary="What is served")
async def models(context: Context) -> Any:
    """Return the models and indexes."""
    registry = context.registry
    data = [_describe_model(served) for served in registry.models.values()]
    data += [await context.call_in_helper(_describe_index, context, served) for served in registry.indexes.values()]
    return {"object": "list", "data": data}


def _describe_model(served: ServedModel) -> dict[str, Any]:
    task = served.task if "predict" in served.abilities else None
    classes = {"labels": class_names(served), "pairs": bool(task.columns.pair)} if isinstance(task, TextTask) else {}
    return classes | {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "bertree",
        "kind": "model",
        "does": sorted(served.abilities),
        "dimension": served.model.dimension,
        "max_length": served.model.max_length,
        "parameters": served.parameters,
        "architecture": served.architecture,
        "controls": served.model.controls,
    }


def _describe_index(context: Context, served: ServedIndex) -> dict[str, Any]:
    passages: int | None = None
    try:
        passages = len(served.index)
    except UserError as error:  # a database that is away for a while; the others are listed all the same
        context.service.log.write("index failed", id=context.request_id, index=served.name, reason=str(error))
    own = {"id": served.name, "created": served.created, "kind": "index", "does": ["search"]}
    return _describe_model(served.model) | own | {"passages": passages, "model": served.model.name}
