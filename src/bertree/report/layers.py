"""What layers do to texts, as plain arrays and as JSON. `bertree.inference.layers` measures it; reports show it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from bertree.errors import counted
from bertree.files.formats import Json
from bertree.report.history import Floats
from bertree.result_table import ResultTable, ShownAsTable


@dataclass(frozen=True, kw_only=True)
class LayerMeasures:
    """A model's layers, as means over all tokens of texts.

    `distance` and `cosine` have a number for each layer; `norms`, `anisotropy`, `cka` and the lens one more, for the
    embeddings, which come first. Attention is layers x heads.
    """

    name: str
    texts: int
    tokens: int
    distance: Floats  # L2 distance between input and output of a layer; NaN where their widths differ
    cosine: Floats  # of input and output
    norms: Floats  # lengths of the states
    anisotropy: Floats  # mean cosine of all pairs of different tokens
    cka: Floats  # linear CKA of the states of all layers, over tokens
    special: Floats | None  # share of a head's attention to special tokens; None: the attention cannot be computed
    diagonal: Floats | None  # share to the token itself
    entropy: Floats | None  # of a head's attention, in nats
    agreement: (
        Floats | None
    )  # how often a layer would predict the last one's token; None: there is no head that reads it
    lens_entropy: Floats | None  # of that prediction, in nats

    def as_json(self) -> Json:
        """Return plain values."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True, kw_only=True, repr=False)
class LayerAnalysis(ShownAsTable):
    """The layers of one model or two on the same texts."""

    models: tuple[LayerMeasures, ...]
    cka: Floats | None  # of the first model's states (rows) with the second's (columns); None: one model
    over: str  # what `cka` compares: tokens, or texts (means of their states) if the tokenizers differ
    examples: Sequence[Json] = ()  # single texts: `text`, and `models` with all that a page draws

    def _result_table(self) -> ResultTable:
        rows = [
            (model.name, str(layer), f"{cosine:.4f}", f"{distance:.4g}")
            for model in self.models
            for layer, (cosine, distance) in enumerate(zip(model.cosine, model.distance, strict=True), 1)
        ]
        heads = ("model", "layer", "cosine of input and output", "distance")
        texts = counted(self.models[0].texts, "text")
        return ResultTable(f"layers on {texts}, {self.models[0].tokens:,} tokens", rows, heads)

    def as_json(self) -> Json:
        """Return plain values, without the single texts."""
        return {"models": [model.as_json() for model in self.models], "cka": _plain(self.cka), "over": self.over}


def _plain(value: Any) -> Any:
    """Return an array as lists, with None for NaN."""
    if not isinstance(value, np.ndarray):
        return value
    written = value.astype(object)
    written[np.isnan(value)] = None
    return written.tolist()
