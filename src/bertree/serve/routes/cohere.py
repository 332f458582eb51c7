"""Cohere's interface (v2): vectors of texts, and their relevance to a query; the latter also in the form of Jina and
others (v1)."""

from functools import partial
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
from msgspec import Meta

from bertree.serve.http.handlers import Context, Input, route
from bertree.serve.routes.inputs import TextOptions, check_texts, embed_texts, write_base64, write_floats
from bertree.serve.routes.scores import rank_texts
from bertree.serve.served import ServedModel

Positive = Annotated[int, Meta(ge=1)]


class RerankDocument(msgspec.Struct):
    """A text as an object."""

    text: str


class RerankRequest(Input):
    """A query and the texts to rank."""

    query: str
    documents: list[str | RerankDocument]
    model: str | None = None
    top_n: Positive | None = None
    return_documents: bool = False
    max_tokens_per_doc: Positive | None = None
    truncate: bool = True  # false: refuse texts that are too long


class Ranked(msgspec.Struct, omit_defaults=True):
    """A text by its number in the request."""

    index: int
    relevance_score: float
    document: RerankDocument | None = None


class RerankReply(msgspec.Struct, omit_defaults=True):
    """The texts, the most relevant first."""

    id: str
    model: str
    results: list[Ranked]
    usage: dict[str, int]
    meta: dict[str, Any]
    truncated: list[int] = []  # numbers of the texts that were cut, if there are any


class CohereEmbedRequest(Input):
    """Texts to embed. `input_type` chooses the prompt of that purpose, if the model has one."""

    texts: list[str]
    model: str | None = None
    input_type: Literal["search_query", "search_document", "classification", "clustering"] | None = None
    embedding_types: tuple[Literal["float", "base64"], ...] = ("float",)
    truncate: Literal["NONE", "START", "END"] = "END"
    output_dimension: int | None = None
    max_tokens: Positive | None = None


class CohereEmbedReply(msgspec.Struct):
    """Vectors by their form, in the order of the texts."""

    id: str
    embeddings: dict[str, list[list[float] | str]]
    texts: list[str]
    meta: dict[str, Any]
    response_type: str


# Purpose -> names that models give to its prompt.
PROMPTS = {
    "search_query": ("query", "search_query", "question"),
    "search_document": ("document", "passage", "search_document", "corpus"),
    "classification": ("classification",),
    "clustering": ("clustering",),
}


@route("POST", "/v2/embed", reply=CohereEmbedReply, ability="embed", errors="cohere")
async def embed(context: Context, body: CohereEmbedRequest) -> Any:
    """Return the vectors of texts, in Cohere's form."""
    served, texts = context.model(body.model), body.texts
    prompt = next(
        (name for name in PROMPTS.get(body.input_type or "", ()) if name in dict(served.vector.prompts)), None
    )
    if body.max_tokens is not None:
        check_texts(context, texts, "texts")
        texts = await context.call_in_helper(_truncate, served, texts, body.max_tokens)
    cut, refuse = "left" if body.truncate == "START" else "right", body.truncate == "NONE"
    options = TextOptions("texts", prompt, cut, truncate=not refuse)
    vectors = await embed_texts(context, served, texts, options, dimensions=body.output_dimension)
    writers = {"float": write_floats, "base64": write_base64}
    forms = {name: await context.call_in_helper(writers[name], vectors.rows) for name in body.embedding_types}
    meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": vectors.tokens}}
    head = {"id": str(uuid4()), "embeddings": forms, "texts": body.texts, "meta": meta}
    return head | {"response_type": "embeddings_by_type"}


rank_route = partial(route, "POST", reply=RerankReply, ability="rerank")


@rank_route("/v2/rerank", errors="cohere")
@rank_route("/v1/rerank")
async def rerank(context: Context, body: RerankRequest) -> Any:
    """Return texts in the order of their relevance to a query."""
    served = context.model(body.model)
    check_texts(context, [body.query], "query")
    texts = [text if isinstance(text, str) else text.text for text in body.documents]
    check_texts(context, texts, "documents")
    shortened = texts
    if body.max_tokens_per_doc is not None:
        shortened = await context.call_in_helper(_truncate, served, texts, body.max_tokens_per_doc)
    options = TextOptions("documents", truncate=body.truncate)
    order, scores, outputs = await rank_texts(context, served, body.query, shortened, options)
    document = {row: {"document": {"text": texts[row]}} if body.return_documents else {} for row in order}
    results = [{"index": row, "relevance_score": scores[row], **document[row]} for row in order[: body.top_n]]
    reply = {
        "id": str(uuid4()),
        "model": served.name,
        "results": results,
        "usage": {"prompt_tokens": outputs.tokens, "total_tokens": outputs.tokens},
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }
    return reply | {"truncated": outputs.truncated} if outputs.truncated else reply


def _truncate(served: ServedModel, texts: list[str], most: int) -> list[str]:
    """Truncate texts to at most this number of tokens."""
    encodings = served.model.required_tokenizer.encode_plain(texts, offsets=True)
    return [
        text if len(e.ids) <= most else text[: e.offsets[most - 1][1]] for text, e in zip(texts, encodings, strict=True)
    ]
