"""Passages of an index, and the map of an index."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
import orjson
from msgspec import Meta

from bertree.embeddings.clustering import map_index
from bertree.errors import UserError
from bertree.search.passages import Hit
from bertree.search.ranking import QueryError, choose_mode
from bertree.search.rerank import CANDIDATES, compares_tokens, own_tokens, sort_again, token_scores, unit_states
from bertree.serve.http.handlers import Context, Input, route
from bertree.serve.http.messages import HttpError
from bertree.serve.routes.inputs import Count, TextOptions, check_text, check_token_count, embed_texts, field_error
from bertree.serve.routes.scores import class_logits, relevance
from bertree.serve.served import NotServed, ServedIndex, ServedModel
from bertree.serve.token_queue import Job, JobKind

SEARCH, MAP = 64, 2048  # tokens whose embedding takes about as long as a search, and as a map, until it is measured
SHOWN = 200  # characters of a passage on a map
Value = str | int | float | bool | None
Where = dict[str, Value | list[Value]]
Result = TypeVar("Result")


class SearchRequest(Input):
    """A query. `mode`: hybrid (by words and vectors; the default where the index has words), vectors or words. `where`:
    metadata that documents must have (of a list, any value); `id` and `source` work too. `rerank`: a served model
    that sorts the first `candidates` passages again: a cross-encoder, or one of vectors, by their tokens."""

    query: str
    index: str | None = None
    k: Count = 10
    mode: Literal["hybrid", "vectors", "words"] | None = None
    where: Where | None = None
    rerank: str | None = None
    candidates: Count = CANDIDATES


class HitReply(msgspec.Struct):
    """A passage. `score`: about 0 to 1 for a hybrid search, else the cosine or BM25, or that of the model that has
    re-ranked. `vector_rank`, `word_rank`: its place by either part; null if it is not among the best. `source`: the
    name of its file; `highlights`: beginning and end of the words in `text` that the query shares."""

    score: float
    cosine: float | None
    word_score: float | None
    vector_rank: int | None
    word_rank: int | None
    text: str
    document: str
    source: str
    start: int
    end: int
    metadata: dict[str, Any]
    highlights: list[tuple[int, int]]


class SearchReply(msgspec.Struct):
    """The best passages, best first."""

    index: str
    mode: str
    hits: list[HitReply]
    milliseconds: float


@route("POST", "/search", reply=SearchReply, ability="search")
async def search(context: Context, body: SearchRequest) -> Any:
    """Return the passages of an index for a query, the best first."""
    started = time.perf_counter()
    served = context.service.registry.index(body.index)
    mode, hits = await find_hits(context, served, body)
    return {
        "index": served.name,
        "mode": mode,
        "hits": [describe_hit(hit) for hit in hits],
        "milliseconds": round(1000 * (time.perf_counter() - started), 2),
    }


async def find_hits(
    context: Context, served: ServedIndex, request: SearchRequest, field: str = "query"
) -> tuple[str, list[Hit]]:
    """Return the mode of the search, and the k best passages, re-ranked by a served model if one is named. `field`: of
    the query."""
    query, mode = request.query, request.mode
    check_text(query, field)
    reranker = None if request.rerank is None else _find_reranker(context, request.rerank)
    prompt = served.query_prompt or None
    vectors = None
    if mode != "words":
        vectors = np.array((await embed_texts(context, served.model, [query], TextOptions(field, prompt))).rows)
    most = max(request.k, request.candidates) if reranker else request.k

    def find() -> tuple[str, list[Hit]]:
        chosen = choose_mode(mode, served.index.has_words, f"index '{served.name}'")
        hits = served.index.find([query], vectors, most, mode=chosen, where=request.where)[0]
        return chosen, hits if reranker else served.index.mark(query, hits)

    chosen, hits = await ask_index(context, served, served.search_jobs, SEARCH, find, field)
    if reranker is None or not hits:
        return chosen, hits
    texts = [hit.text for hit in hits[: request.candidates]]
    if compares_tokens(reranker.model):
        encoded = await context.call_in_helper(reranker.tokenize, [query, *texts], "")
        check_token_count(context, sum(len(e.ids) for e in encoded), "rerank")
        states = await context.run(reranker.job_kind("hidden"), [Job(len(e.ids), e) for e in encoded])
        own = own_tokens(reranker.model, encoded[0].ids)
        query_th, *passages = map(unit_states, states)
        new_scores = token_scores(query_th[own], passages, hits)
    else:
        pairs = [(query, text) for text in texts]
        scores = await class_logits(context, reranker, pairs, TextOptions("rerank"))
        new_scores = relevance(reranker, scores.logits).tolist()
    return chosen, served.index.mark(query, sort_again(hits, new_scores)[: request.k])


def _find_reranker(context: Context, name: str) -> ServedModel:
    """Return the model of a name: one of vectors or a cross-encoder. A mistake names the field `rerank`."""
    try:
        served = context.service.registry.model(name, "embed")
        return served if compares_tokens(served.model) else context.service.registry.model(name, "rerank")
    except (NotServed, UserError) as error:
        raise type(error)(str(error).replace("model:", "rerank:", 1)) from None


async def ask_index(
    context: Context, served: ServedIndex, kind: JobKind, tokens: int, function: Callable[[], Result], field: str = ""
) -> Result:
    """Compute something with an index. Its errors name its folder, which a client must not see; they are logged.
    `field`: of the query, for a mistake in it."""
    try:
        return await context.call(kind, tokens, function)
    except QueryError as error:
        raise field_error(field, error) from None
    except UserError as error:
        if str(error).startswith("where"):
            message = str(error).removeprefix("where").strip(" :")
            raise field_error("where", f"{message}") from None
        context.service.log.write("index failed", id=context.request_id, index=served.name, reason=str(error))
        raise HttpError(503, f"index '{served.name}' cannot be read; the server's log says why") from None


def describe_hit(hit: Hit) -> dict[str, Any]:
    """Return a passage for JSON."""
    written = {
        "document": document_name(hit.document),
        "source": os.path.basename(hit.source),
        "metadata": as_json(hit.metadata),
    }
    return vars(hit) | written


def as_json(metadata: Mapping[str, Any]) -> orjson.Fragment:
    """Return metadata as JSON; it may hold whole numbers of any size."""
    try:
        return orjson.Fragment(orjson.dumps(dict(metadata)))
    except TypeError:
        return orjson.Fragment(json.dumps(dict(metadata)))


def document_name(document: str) -> str:
    """Return the id of a document; of one that is an absolute path, which tells of the server's folders, its end."""
    return os.path.basename(document) if os.path.isabs(document) else document


class MapQuery(Input):
    """Which index, and how many of its passages at most."""

    index: str | None = None
    most: Annotated[int, Meta(ge=1, le=10_000)] = 2000


class MapPoint(msgspec.Struct):
    """A passage: its place in the plane, its cluster, and the beginning of its text."""

    x: float
    y: float
    document: str
    text: str
    cluster: int
    metadata: dict[str, Any]


class MapReply(msgspec.Struct):
    """Points, and how many clusters they are in. `sampled`: they are not all passages of the index."""

    index: str
    points: list[MapPoint]
    clusters: int
    sampled: bool
    total: int


@route("GET", "/map", reply=MapReply, ability="search")
async def index_map(context: Context, query: MapQuery) -> Any:
    """Return the passages of an index in a plane."""
    served = context.service.registry.index(query.index)

    def find() -> dict[str, Any]:
        generation = served.index.generation
        if served.map is None or served.map[0] != (generation, query.most):
            served.map = (generation, query.most), _describe_map(served, query.most)
        return served.map[1]

    return await ask_index(context, served, served.model.job_kind("map"), MAP, find)


def _describe_map(served: ServedIndex, most: int) -> dict[str, Any]:
    plane = map_index(served.index, most)
    points: Sequence[Sequence[float]] = (np.round(plane.points, 4) + 0.0).tolist()  # without -0.0
    rows = zip(plane.passages, points, plane.labels.tolist(), strict=True)
    return {
        "index": served.name,
        "points": [
            {
                "x": x,
                "y": y,
                "document": document_name(passage.document),
                "text": passage.text[:SHOWN],
                "cluster": label,
                "metadata": as_json(passage.metadata),
            }
            for passage, (x, y), label in rows
        ],
        "clusters": plane.clusters,
        "sampled": len(plane.passages) < plane.total,
        "total": plane.total,
    }
