"""What layers do to texts, as plain arrays and as JSON, and the page of `bertree layers`: curves over the layers, heat
maps, and single texts to explore. `bertree.inference.layer_sums` measures it.

The texts are explored by the scripts that the playground uses too (`assets/parts/`); they are bundled into the page.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from markupsafe import Markup

from bertree.errors import counted
from bertree.files.formats import Json
from bertree.report.curves import Series, curve_svg
from bertree.report.formats import digits, percent
from bertree.report.history import Floats
from bertree.report.html import asset, content_policy, in_one_scope, page_style, render
from bertree.report.scales import Axis
from bertree.report.tables import HeatTable, PageTable, Section
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
    # Of attention; None: it cannot be computed.
    special: Floats | None = None  # share of a head's attention to special tokens
    diagonal: Floats | None = None  # share to the token itself
    entropy: Floats | None = None  # of a head's attention, in nats
    # Of the lens; None: there is no head that reads the layers.
    agreement: Floats | None = None  # how often a layer would predict the last one's token
    lens_entropy: Floats | None = None  # of that prediction, in nats

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


# Scripts, each after those it uses.
SCRIPTS = (
    "parts/dom.js",
    "parts/colours.js",
    "parts/controls.js",
    "parts/heads.js",
    "parts/layers.js",
    "layers_page.js",
)
IMPORT, EXPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE), re.compile(r"^export ", re.MULTILINE)
# field of LayerMeasures, title of the chart, whether the embeddings have a value too
CURVES = (
    ("distance", "L2 distance of a layer's input and output", False),
    ("cosine", "Cosine of a layer's input and output", False),
    ("norms", "Length of the states", True),
    ("anisotropy", "Anisotropy: mean cosine of two tokens", True),
    ("special", "Attention to special tokens, mean of the heads", False),
    ("diagonal", "Attention to the token itself, mean of the heads", False),
    ("entropy", "Entropy of attention in nats, mean of the heads", False),
    ("agreement", "Logit lens: tokens predicted as by the last layer", True),
    ("lens_entropy", "Logit lens: entropy of the prediction in nats", True),
)
SHARES = ("special", "diagonal", "agreement")


def layers_page(analysis: LayerAnalysis, source: str) -> str:
    """Return the page; `source` is the name of the texts."""
    models = analysis.models
    style, script = page_style("parts/layers.css", "layers_page.css"), bundle()
    return render(
        "layers",
        title="Layers of " + " and ".join(model.name for model in models),
        under=f"{models[0].texts:,} texts of {source}, measured by bertree layers",
        tiles=[(m.name, f"{len(m.distance)} layers", f"{m.tokens:,} tokens of {m.texts:,} texts") for m in models],
        charts=[chart for curve in CURVES if (chart := _chart(models, *curve))],
        sections=[_similarity(analysis), *_heads(models), Section("Numbers", blocks=[_numbers(m) for m in models])],
        examples=[example | {"names": [model.name for model in models]} for example in analysis.examples],
        style=style,
        script=script,
        policy=content_policy(style, script),
    )


def bundle() -> Markup:
    """Return the scripts as one, without their imports: they share one scope."""
    return asset("report.js") + in_one_scope(EXPORT.sub("", IMPORT.sub("", asset(name))) for name in SCRIPTS)


def _chart(models: tuple[LayerMeasures, ...], field: str, title: str, embedded: bool) -> Markup | None:
    """Draw a measure of all models that have it; None if none has."""
    series = []
    for number, model in enumerate(models):
        values = getattr(model, field)
        if values is not None and np.isfinite(values := values if values.ndim == 1 else values.mean(1)).any():
            x = np.arange(len(values), dtype=np.float64) + (0 if embedded else 1)
            series.append(Series(name=model.name, x=x, y=values, style="dots", colour=number))
    label = "layer (0: the embeddings)" if embedded else "layer"
    y = Axis(text=percent, zero=True) if field in SHARES else Axis()
    return curve_svg(title, series, y=y, x_label=label) if series else None


def _similarity(analysis: LayerAnalysis) -> Section:
    maps = [_cka(f"{m.name}: its layers with each other", "over tokens", m.cka, "") for m in analysis.models]
    if analysis.cka is not None:
        first, second = (model.name for model in analysis.models)
        over = f"over {analysis.over}" + (": the tokenizers differ" if analysis.over == "texts" else "")
        maps.append(_cka(f"{first} (down) with {second} (across)", over, analysis.cka, "layer"))
    return Section("Similarity of layers (linear CKA)", maps)


def _cka(title: str, over: str, values: np.ndarray, corner: str) -> HeatTable:
    rows, columns = ([str(number) for number in range(count)] for count in values.shape)
    return HeatTable(
        title, f"{over}; 0 is the embeddings, 1 is equal up to rotation", rows, columns, values, corner=corner
    )


def _heads(models: tuple[LayerMeasures, ...]) -> list[Section]:
    sections = []
    for model in models:
        if model.special is None or model.diagonal is None or model.entropy is None:
            continue
        rows, columns = ([str(number + 1) for number in range(count)] for count in model.special.shape)
        top = float(model.entropy.max()) or 1.0
        maps = (
            ("To special tokens", "share of a head's attention to [CLS], [SEP] and the like", model.special, 1.0),
            ("To the token itself", "share on the diagonal", model.diagonal, 1.0),
            ("Entropy", "in nats; an even spread over n tokens has ln n", model.entropy, top),
        )
        tables = [HeatTable(t, u, rows, columns, values, corner="↓→", high=high) for t, u, values, high in maps]
        sections.append(Section(f"Heads of {model.name}: a row for each layer", tables))
    return sections


def _numbers(model: LayerMeasures) -> PageTable:
    head, rows = layer_rows(model)
    return PageTable(head, rows, numbers=range(len(head)), title=model.name)


def layer_rows(model: LayerMeasures) -> tuple[list[str], list[list[str]]]:
    """Return the numbers of each layer as a table: head and rows."""
    head = ["layer", "L2", "cosine", "norm", "anisotropy", "CKA before", "CKA last"]
    columns = [model.distance, model.cosine, model.norms, model.anisotropy, np.diagonal(model.cka, 1), model.cka[:, -1]]
    for name in ("special", "diagonal", "entropy"):
        if (values := getattr(model, name)) is not None:
            head.append(name)
            columns.append(values.mean(1))
    if model.agreement is not None and model.lens_entropy is not None:
        head += ["lens agrees", "lens entropy"]
        columns += [model.agreement, model.lens_entropy]
    depth = len(model.norms)
    padded = [np.concatenate([np.full(depth - len(values), np.nan), values]) for values in columns]
    rows = [
        [str(layer), *(digits(v) if np.isfinite(v) else "–" for v in numbers)]
        for layer, numbers in enumerate(zip(*padded, strict=True))
    ]
    return head, rows
