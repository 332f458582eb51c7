"""Attention, logit lens and norms of hidden states of every layer, for a text."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import orjson
from msgspec import Meta
from torch import Tensor

from bertree.inference.mask_filling import Candidate
from bertree.inference.states import Inspection
from bertree.serve.http.handlers import Context, Input, route
from bertree.serve.routes.inputs import check_text, field_error, report_truncation

MOST = 128  # tokens that are shown: attention grows with their square
CANDIDATES = 3  # of the lens, at each token


class LayersRequest(Input):
    """A text, or a pair of texts. `layers`: only the attention of these, from 1. `encoding_format`: base64 is a quarter
    as large."""

    text: str
    pair: str | None = None
    model: str | None = None
    layers: list[Annotated[int, Meta(ge=1)]] | None = None
    encoding_format: Literal["float", "base64"] = "float"


class LensCandidate(msgspec.Struct):
    """A token that the head would predict from a layer's state."""

    text: str
    probability: float


class LayersReply(msgspec.Struct):
    """Tokens; attention (layer, head, from, to), null if it cannot be shown; in base64 a layer is one text of unsigned
    bytes, heads x tokens x tokens, and 255 is a weight of 1; the logit lens (embeddings and layers,
    token, candidates), null without a head that reads it; lengths of the states. `cut`: only the beginning of the text
    is shown."""

    model: str
    tokens: list[str]
    attention: list[list[list[list[float]]] | str] | None
    lens: list[list[list[LensCandidate]]] | None
    norms: list[list[float]]
    cut: bool


@route("POST", "/layers", reply=LayersReply, ability="layers")
async def layers(context: Context, body: LayersRequest) -> Any:
    """Return attention, logit lens and lengths of the states of a text, layer by layer."""
    served = context.model(body.model)
    check_text(body.text, "text")
    if body.pair is not None:
        check_text(body.pair, "pair")
    text = body.text if body.pair is None else (body.text, body.pair)
    model, depth = served.model, served.model.architecture.layers
    if body.layers is not None and (wrong := next((number for number in body.layers if number > depth), None)):
        raise field_error("layers", f"{wrong} is more than the {depth} layers of '{served.name}'")
    if body.layers is not None and len(body.layers) > depth:
        raise field_error("layers", f"has {len(body.layers)} numbers for {depth} layers")
    write = _written if body.encoding_format == "float" else _packed

    def inspect() -> tuple[Inspection, dict[str, Any]]:
        inspection = model.inspect(text, k=CANDIDATES, max_length=MOST)
        return inspection, _describe(inspection, write, body.layers)

    # The hidden states, the attention recomputed from them, and a softmax over the vocabulary at every token and layer.
    inspection, described = await context.call(served.job_kind("layers"), MOST, inspect)
    cut = report_truncation(context, int(inspection.dropped > 0), inspection.dropped)
    return {"model": served.name, **described, "cut": cut}


def _describe(inspection: Inspection, write: Callable[[Tensor], Any], layers: Sequence[int] | None) -> dict[str, Any]:
    attention = inspection.attention
    if attention is not None and layers is not None:
        attention = attention[[number - 1 for number in layers]]

    def describe(token: list[Candidate]) -> list[dict[str, Any]]:
        return [{"text": candidate.token, "probability": round(candidate.probability, 4)} for candidate in token]

    return {
        "tokens": inspection.tokens,
        "attention": None if attention is None else [write(layer) for layer in attention],
        "lens": inspection.lens and [[describe(token) for token in layer] for layer in inspection.lens],
        "norms": _written(inspection.norms),
    }


def _written(numbers: Tensor) -> orjson.Fragment:
    """Return a layer's numbers as JSON, so that the event loop need not write all of them at once."""
    rounded = np.ascontiguousarray(np.round(numbers.float().cpu().numpy(), 4))
    return orjson.Fragment(orjson.dumps(rounded, option=orjson.OPT_SERIALIZE_NUMPY))


def _packed(weights: Tensor) -> str:
    """Return a layer's weights as base64 of a byte each."""
    return b64encode((weights.float().clamp(0, 1) * 255).round().byte().cpu().numpy().tobytes()).decode()
