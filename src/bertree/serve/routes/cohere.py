"""Ranking of texts by their relevance to a query: the forms of Cohere (v2) and of Jina and others (v1)."""

from functools import partial
from typing import Any
from uuid import uuid4

import msgspec

from bertree.serve.http.handlers import Context, route
from bertree.serve.routes.inputs import TextOptions, check_texts, field_error
from bertree.serve.routes.scores import rank_texts
from bertree.serve.served import ServedModel


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


rank_route = partial(route, "POST", reply=RerankReply, ability="rerank")


@rank_route("/v2/rerank", errors="cohere", summary="Rank texts by their relevance to a query (Cohere's form)")
@rank_route("/v1/rerank", summary="Rank texts by their relevance to a query")
async def rerank(context: Context, body: RerankRequest) -> Any:
    """Return the texts in the order of their relevance."""
    served = context.model(body.model)
    check_texts(context, [body.query], "query")
    texts = [text if isinstance(text, str) else text.text for text in body.documents]
    check_texts(context, texts, "documents")
    for field, number in (("top_n", body.top_n), ("max_tokens_per_doc", body.max_tokens_per_doc)):
        if number is not None and number < 1:
            raise field_error(field, f"must be at least 1, not {number}")
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
