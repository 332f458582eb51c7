"""Routes that follow OpenAI's interface, so that its clients work. `truncate`, `prompt_name` and `truncated` are
ours."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from bertree.errors import UserError
from bertree.serve.http.handlers import Context, Input, route
from bertree.serve.routes.inputs import TextOptions, TextOrIds, embed_texts, list_inputs, write_base64, write_floats
from bertree.serve.routes.scores import class_names
from bertree.serve.served import ServedIndex, ServedModel
from bertree.tasks.text import TextTask

MOST_ON_LOOP = 256  # vectors that are written on the event loop; more would delay other requests


class EmbeddingsRequest(Input):
    """Texts to embed."""

    input: TextOrIds
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
    truncate: bool = True  # false: refuse texts that are too long
    prompt_name: str | None = None  # one of the model's prompts


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


@route("POST", "/v1/embeddings", reply=EmbeddingsReply, ability="embed")
async def embeddings(context: Context, body: EmbeddingsRequest) -> Any:
    """Return the vectors of texts, in OpenAI's form."""
    texts = list_inputs(body.input, "input")
    served = context.model(body.model)
    options = TextOptions("input", body.prompt_name, truncate=body.truncate)
    vectors = await embed_texts(context, served, texts, options, dimensions=body.dimensions)
    write: Any = write_base64 if body.encoding_format == "base64" else write_floats
    if len(texts) == 1 and write is write_floats:
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


@route("GET", "/v1/models")
async def models(context: Context) -> Any:
    """Return the models and indexes that are served."""
    registry = context.service.registry
    data = [_describe_model(served) for served in registry.models.values()]
    data += [await context.call_in_helper(_describe_index, context, served) for served in registry.indexes.values()]
    return {"object": "list", "data": data}


@route("GET", "/v1/models/{id:path}")
async def model(context: Context) -> Any:
    """Return a model, or an index, by its name."""
    name, registry = context.parameter, context.service.registry
    if name in registry.indexes and name not in registry.models:
        return await context.call_in_helper(_describe_index, context, registry.indexes[name])
    return _describe_model(registry.model(name))


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
        "architecture": served.model.architecture.body,
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
