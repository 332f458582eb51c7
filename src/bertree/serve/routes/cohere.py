"""Ranking of texts by their relevance to a query: the forms of Cohere (v2) and of Jina and others (v1)."""

from typing import Any
from uuid import uuid4

import msgspec

from bertree.serve.http.context import Context
from bertree.serve.http.errors import HttpError
from bertree.serve.http.table import route
from bertree.serve.models.served import ServedModel
from bertree.serve.routes.scores import class_logits, relevance
from bertree.serve.routes.vectors import TextOptions, check_texts


class RerankDocument(msgspec.Struct):
    """A text as an object."""

    text: str


class RerankRequest(msgspec.Struct):
    """A query and the texts to rank."""

    query: str
    documents: list[str | RerankDocument]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool = False
    max_tokens_per_doc: int | None = None
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


@route(
    "POST",
    "/v1/rerank",
    body=RerankRequest,
    reply=RerankReply,
    does="rerank",
    summary="Rank texts by their relevance to a query",
)
async def rerank(context: Context, body: RerankRequest) -> Any:
    """Return the texts in the order of their relevance."""
    return await _rank(context, body)


@route(
    "POST",
    "/v2/rerank",
    body=RerankRequest,
    reply=RerankReply,
    does="rerank",
    errors="cohere",
    summary="Rank texts by their relevance to a query (Cohere's form)",
)
async def rerank_v2(context: Context, body: RerankRequest) -> Any:
    """Return the texts in the order of their relevance."""
    return await _rank(context, body)


async def _rank(context: Context, body: RerankRequest) -> dict[str, Any]:
    served = context.registry.model(body.model, does="rerank")
    check_texts(context, [body.query], "query")
    given = [text if isinstance(text, str) else text.text for text in body.documents]
    check_texts(context, given, "documents")
    for field, number in (("top_n", body.top_n), ("max_tokens_per_doc", body.max_tokens_per_doc)):
        if number is not None and number < 1:
            raise HttpError(422, f"{field}: must be at least 1, not {number}", param=field)
    read = given
    if body.max_tokens_per_doc is not None:
        read = await context.aside(_cut, served, given, body.max_tokens_per_doc)
    pairs: list[tuple[str, str | None]] = [(body.query, text) for text in read]
    found = await class_logits(context, served, pairs, TextOptions("documents", truncate=body.truncate))
    scores = relevance(served, found.logits).tolist()
    order = sorted(range(len(given)), key=lambda row: (-scores[row], row))[: body.top_n]
    results: list[dict[str, Any]] = [{"index": row, "relevance_score": scores[row]} for row in order]
    if body.return_documents:
        for result in results:
            result["document"] = {"text": given[result["index"]]}
    reply = {
        "id": str(uuid4()),
        "model": served.name,
        "results": results,
        "usage": {"prompt_tokens": found.tokens, "total_tokens": found.tokens},
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }
    return reply | {"truncated": found.truncated} if found.truncated else reply


def _cut(served: ServedModel, texts: list[str], most: int) -> list[str]:
    """Cut texts to so many tokens."""
    encodings = served.model.required_tokenizer.encode_plain(texts, offsets=True)
    return [
        text if len(e.ids) <= most else text[: e.offsets[most - 1][1]] for text, e in zip(texts, encodings, strict=True)
    ]
