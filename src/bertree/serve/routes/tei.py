"""The interface of Text Embeddings Inference (Hugging Face)."""

from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from bertree.serve.http.handlers import ROUTES, Context, Input, call_route, route
from bertree.serve.http.messages import HttpError, body_decoder
from bertree.serve.routes.inputs import (
    Count,
    TextOptions,
    TextOrIds,
    check_prompt,
    check_texts,
    check_tokens,
    embed_texts,
    encode_inputs,
    field_error,
    list_inputs,
)
from bertree.serve.routes.scores import class_logits, class_names, class_scores, rank_texts
from bertree.serve.served import ServedModel
from bertree.serve.token_queue import Job
from bertree.tasks.text import TextTask
from bertree.version import __version__

Direction = Literal["right", "left", "Right", "Left"]
Some = TypeVar("Some")
tei_route = partial(route, errors="tei")


class TextReading(Input, kw_only=True):
    """How texts that are too long are read."""

    truncate: bool | None = None
    truncation_direction: Direction = "right"


class EmbedTokensRequest(TextReading):
    """Texts, or token ids, whose tokens are embedded."""

    inputs: TextOrIds
    prompt_name: str | None = None
    model: str | None = None


class EmbedRequest(EmbedTokensRequest):
    """Texts, or token ids, to embed."""

    normalize: bool = True
    dimensions: int | None = None


class RerankTextsRequest(TextReading):
    """A query and the texts to rank."""

    query: str
    texts: list[str]
    raw_scores: bool = False
    return_text: bool = False
    model: str | None = None


class RankedText(msgspec.Struct, omit_defaults=True):
    """A text by its number in the request."""

    index: int
    score: float
    text: str | None = None


class PredictParameters(Input):
    """Hugging Face's options: how many classes are wanted."""

    top_k: Count | None = None


class PredictRequest(TextReading):
    """A text, a pair of texts, or a list of lists of one text or two."""

    inputs: str | list[str | list[str]]
    raw_scores: bool = False
    model: str | None = None
    parameters: PredictParameters | None = None


class ClassScore(msgspec.Struct):
    """A class and its score."""

    score: float
    label: str


class SimilarityInputs(Input):
    """A sentence, and those it is compared with."""

    source_sentence: str
    sentences: list[str]


class SimilarityParameters(TextReading):
    """How texts are read."""

    prompt_name: str | None = None


class SimilarityRequest(Input):
    """Sentences to compare with one."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None
    model: str | None = None


class TokenizeRequest(Input):
    """Texts to cut into tokens."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: str | None = None


class Token(msgspec.Struct):
    """A token; start and stop count characters of the text, and are null for special tokens."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class DecodeRequest(Input):
    """Ids of tokens to turn into text."""

    ids: list[int | list[int]]
    skip_special_tokens: bool = True
    model: str | None = None


@tei_route("POST", "/embed", reply=list[list[float]], ability="embed")
async def embed(context: Context, body: EmbedRequest) -> Any:
    """Return the vectors of texts."""
    served = context.model(body.model)
    texts = list_inputs(_not_empty(body.inputs), "inputs")
    options = _text_options("inputs", body)
    vectors = await embed_texts(context, served, texts, options, dimensions=body.dimensions, normalize=body.normalize)
    return vectors.rows


@tei_route("POST", "/embed_all", reply=list[list[list[float]]], ability="embed")
async def embed_all(context: Context, body: EmbedTokensRequest) -> Any:
    """Return the vectors of the tokens of texts, special tokens too."""
    served = context.model(body.model)
    options = _text_options("inputs", body)
    encoded = await encode_inputs(context, served, list_inputs(_not_empty(body.inputs), "inputs"), options)
    check_tokens(context, encoded, served.max_length, options)
    return await context.run(served.job_kind("hidden"), [Job(len(e.ids), e) for e in encoded])


@tei_route("POST", "/rerank", reply=list[RankedText], ability="rerank")
async def rerank(context: Context, body: RerankTextsRequest) -> Any:
    """Return texts by number, the most relevant to a query first."""
    served = context.model(body.model)
    _not_empty(body.texts, "texts")
    options = _text_options("texts", body)
    ranking = await rank_texts(context, served, body.query, body.texts, options, raw=body.raw_scores)
    text = {row: {"text": body.texts[row]} if body.return_text else {} for row in ranking.order}
    return [{"index": row, "score": ranking.scores[row], **text[row]} for row in ranking.order]


@tei_route("POST", "/predict", reply=list[ClassScore | list[ClassScore]], ability="predict")
async def predict(context: Context, body: PredictRequest) -> Any:
    """Return the classes of a text or a pair, the best first; of several, a list of such lists."""
    served = context.model(body.model)
    inputs, several = _prediction_inputs(served, body.inputs)
    for text, pair in inputs:
        check_texts(context, [text] if pair is None else [text, pair], "inputs")
    outputs = await class_logits(context, served, inputs, _text_options("inputs", body))
    names = class_names(served)
    rows = class_scores(outputs.logits, body.raw_scores).tolist()
    scored = [[{"score": score, "label": name} for name, score in zip(names, row, strict=True)] for row in rows]
    lists = [sorted(entries, key=lambda entry: -entry["score"]) for entries in scored]
    most = body.parameters.top_k if body.parameters else None
    return [entries[:most] for entries in lists] if several else lists[0][:most]


@tei_route("POST", "/similarity", reply=list[float], ability="embed")
async def similarity(context: Context, body: SimilarityRequest) -> Any:
    """Return the cosines of a sentence and others."""
    served = context.model(body.model)
    parameters = body.parameters or SimilarityParameters()
    check_texts(context, [body.inputs.source_sentence], "source_sentence")
    check_texts(context, _not_empty(body.inputs.sentences, "sentences"), "sentences")
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    options = _text_options("inputs", parameters)
    vectors = await embed_texts(context, served, texts, options, normalize=True)
    return np.array(vectors.rows[1:]) @ vectors.rows[0]


@tei_route("POST", "/tokenize", reply=list[list[Token]], ability="embed")
async def tokenize(context: Context, body: TokenizeRequest) -> Any:
    """Return the tokens of each text."""
    served = context.model(body.model)
    texts = [body.inputs] if isinstance(body.inputs, str) else _not_empty(body.inputs)
    check_texts(context, texts, "inputs")
    check_prompt(served, body.prompt_name)
    prompt = served.model.vector.prompt_text(body.prompt_name) if body.prompt_name else ""
    return await context.call_in_helper(_tokens, served, [prompt + text for text in texts], body.add_special_tokens)


def _tokens(served: ServedModel, texts: list[str], special: bool) -> list[list[dict[str, Any]]]:
    backend = served.model.required_tokenizer.backend

    def describe(text: str, token: int, name: str, added: int, span: tuple[int, int]) -> dict[str, Any]:
        if added:
            return {"id": token, "text": name, "special": True, "start": None, "stop": None}
        return {"id": token, "text": text[slice(*span)], "special": False, "start": span[0], "stop": span[1]}

    return [
        [describe(text, *row) for row in zip(e.ids, e.tokens, e.special_tokens_mask, e.offsets, strict=True)]
        for text, e in zip(texts, backend.encode_batch(texts, add_special_tokens=special), strict=True)
    ]


@tei_route("POST", "/decode", reply=list[str], ability="embed")
async def decode(context: Context, body: DecodeRequest) -> Any:
    """Return the text of each list of token ids."""
    served = context.model(body.model)
    rows = list_inputs(body.ids, "ids")
    tokenizer = served.model.required_tokenizer
    if any(not 0 <= token < tokenizer.size for row in rows for token in row):
        raise field_error("ids", f"must be from 0 to {tokenizer.size - 1}")
    decode_batch = partial(tokenizer.backend.decode_batch, skip_special_tokens=body.skip_special_tokens)
    return await context.call_in_helper(decode_batch, rows)


# Abilities, which are the names of routes too; the first that a model has is its task.
TASKS = ("answer", "entities", "predict", "generate", "fill", "embed")


@tei_route("POST", "/", reply=None, ability="embed")
async def run_task(context: Context, body: dict[str, Any]) -> Any:
    """Answer a body with `inputs` as the route of the model's task does."""
    if "inputs" not in body:
        raise field_error("inputs", "is missing")
    name, inputs = body.get("model"), body["inputs"]
    served = context.service.registry.model(name if isinstance(name, str) else None)
    if isinstance(inputs, dict):
        path = "/answer" if "question" in inputs else "/similarity"
    else:
        path = next(f"/{ability}" for ability in TASKS if ability in served.abilities)
        mask = served.model.required_tokenizer.special.get("mask")
        if path == "/fill" and not (isinstance(inputs, str) and mask is not None and mask in inputs):
            path = "/embed"
    spec = next(spec for spec in ROUTES if (spec.method, spec.path) == ("POST", path))
    context.ability = spec.ability
    return await call_route(spec, context, body_decoder(spec.body, spec.inputs)(msgspec.json.encode(body)))


@tei_route("GET", "/info")
async def info(context: Context) -> Any:
    """Return the model that these routes use, and limits."""
    served = context.service.registry.model()
    limits, scheduler = context.limits, context.service.scheduler
    return {
        "model_id": served.name,
        "model_dtype": served.model.precision,
        "served_model_name": served.name,
        "model_type": _model_type(served),
        # TEI counts inputs, this server counts tokens: this many inputs of full length are accepted at once.
        "max_concurrent_requests": scheduler.room(served.job_kind("embed"), served.model.max_length),
        "max_input_length": served.task_max_length if "predict" in served.abilities else served.model.max_length,
        "max_batch_tokens": served.job_kind("embed").most,
        "max_client_batch_size": limits.texts,
        "auto_truncate": True,
        "tokenization_workers": 2,
        "version": __version__,
        **dict.fromkeys(("model_sha", "max_batch_requests", "sha", "docker_label")),
    }


def _model_type(served: ServedModel) -> dict[str, Any]:
    labels = dict(enumerate(class_names(served))) if "predict" in served.abilities else {}
    if labels:
        kind = {"id2label": {str(n): name for n, name in labels.items()}, "label2id": {v: k for k, v in labels.items()}}
        return {"reranker" if len(labels) == 1 else "classifier": kind}
    return {"embedding": {"pooling": served.model.vector.pooling}}


def _not_empty(texts: Some, field: str = "inputs") -> Some:
    if texts == []:
        raise HttpError(400, f"{field}: must not be empty", param=field, code="empty")
    return texts


def _text_options(field: str, body: TextReading) -> TextOptions:
    direction, truncate = body.truncation_direction.lower(), body.truncate is not False
    return TextOptions(field, getattr(body, "prompt_name", None), direction, truncate)


def _prediction_inputs(
    served: ServedModel, inputs: str | list[str | list[str]]
) -> tuple[list[tuple[str, str | None]], bool]:
    """Return the texts or pairs, and whether there may be several."""
    if isinstance(inputs, str):
        return [(inputs, None)], False
    _not_empty(inputs)
    texts = [item for item in inputs if isinstance(item, str)]
    if texts:
        assert isinstance(served.task, TextTask)
        one_text = "name" in served.model.task and not served.task.columns.pair
        if len(texts) != len(inputs) or len(texts) > 2 or (one_text and len(texts) == 2):
            raise field_error("inputs", 'must be a text, two texts, or a list of lists of them: [["a"], ["b"]]')
        return [(texts[0], texts[1] if len(texts) == 2 else None)], False
    rows = [item for item in inputs if isinstance(item, list)]
    if wrong := next((number for number, row in enumerate(rows, 1) if len(row) not in (1, 2)), None):
        raise field_error("inputs", f"the one at index {wrong - 1} must have one text or two")
    return [(row[0], row[1] if len(row) == 2 else None) for row in rows], True
