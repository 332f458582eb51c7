"""The family tree: every published model as a value, written as its differences from its parent."""

from dataclasses import dataclass
from typing import Any

from bertree.errors import UserError, suggest
from bertree.model.architecture import SHARING, Architecture, Transformer, check_type


@dataclass(frozen=True)
class Preset:
    """A named architecture and its parent in the tree."""

    name: str
    parent: str | None
    architecture: Architecture
    note: str  # a short description
    published: str = ""  # the number of parameters in its paper, and how it is counted
    study: bool = False  # one cell of a paper's ablation table rather than a model with a name
    folder: str = ""  # path of the folder, if it is a model on disk


PRESETS: dict[str, Preset] = {}
DEFAULT = "default"  # the bundled model: not a preset, but a name that may be misspelled too


def _add(name: str, parent: str | None, note: str, published: str = "", study: bool = False, **changes: Any) -> None:
    base = PRESETS[parent].architecture if parent else Transformer()
    PRESETS[name] = Preset(name, parent, base.with_values(changes), note, published, study)


_add("bert-base", None, "Devlin et al. 2018: masked tokens and next sentence", "108M without the pooler")
_add(
    "bert-tiny",
    "bert-base",
    "Turc et al. 2019: for tests and very small devices",
    layers=2,
    width=128,
    heads=2,
)
_add("bert-mini", "bert-base", "Turc et al. 2019", layers=4, width=256, heads=4)
_add("bert-small", "bert-base", "Turc et al. 2019", layers=4, width=512, heads=8)
_add("bert-medium", "bert-base", "Turc et al. 2019", layers=8, width=512, heads=8)
_add(
    "bert-large",
    "bert-base",
    "Devlin et al. 2018",
    "334M without the pooler",
    layers=24,
    width=1024,
    heads=16,
)
_add(
    "megatron-bert",
    "bert-large",
    "Shoeybi et al. 2019: pre-norm",
    "345M; the arithmetic of the published shape gives 333.6M",
    vocab_size=29056,
    residual="pre-norm",
)
_add(
    "modernbert-base",
    "bert-base",
    "Warner et al. 2024: rotary positions, two of three layers local, gated feed-forward, 8,192 tokens",
    "149M",
    vocab_size=50368,
    layers=22,
    ffn_width=1152,
    max_positions=8192,
    attention="full,local,local",
    positions="rotary",
    rotary_base=160_000.0,
    ffn="gated",
    segments=0,
    residual="pre-norm",
    embedding_norm=True,
    first_norm=False,
    norm_eps=1e-5,
    norm_bias=False,
    attention_bias=False,
    ffn_bias=False,
    head_bias=False,
    pooler=False,
    sequence_head="normed",
    dropout=0.0,
    attention_dropout=0.0,
    classifier_dropout=0.0,
)
_add(
    "modernbert-large", "modernbert-base", "Warner et al. 2024", "395M", layers=28, width=1024, heads=16, ffn_width=2624
)
_add(
    "bert-xlarge",
    "bert-large",
    "the width at which Lan et al. 2019 saw BERT degrade",
    "1270M",
    width=2048,
    heads=32,
)

_add(
    "roberta-base",
    "bert-base",
    "Liu et al. 2019: dynamic masks, no sentence objective, byte-level BPE",
    "125M",
    vocab_size=50265,
    position_offset=2,
    segments=1,
    norm_eps=1e-5,
    sequence_head="tanh",
)
_add("roberta-large", "roberta-base", "Liu et al. 2019", "355M", layers=24, width=1024, heads=16)

_add(
    "albert-base",
    "bert-base",
    "Lan et al. 2019: small E, one shared layer, sentence order",
    "12M",
    vocab_size=30000,
    embedding_width=128,
    sharing="all",
    activation="gelu-tanh",
    dropout=0.0,
    attention_dropout=0.0,
)
_add("albert-large", "albert-base", "Lan et al. 2019", "18M", layers=24, width=1024, heads=16)
_add("albert-xlarge", "albert-large", "Lan et al. 2019", "60M (59M in later versions)", width=2048)
_add(
    "albert-xxlarge",
    "albert-xlarge",
    "Lan et al. 2019",
    "233M to 235M; the arithmetic of the published shape gives 222.6M",
    layers=12,
    width=4096,
    heads=64,
)

_add(
    "distilbert-base",
    "bert-base",
    "Sanh et al. 2019: every other layer, no segments, no pooler",
    "66M",
    layers=6,
    segments=0,
    pooler=False,
    sequence_head="relu",
    classifier_dropout=0.2,
)
_add("distilroberta", "roberta-base", "Sanh et al. 2019: RoBERTa at half its depth", "82M", layers=6)

_add(
    "bilstm",
    "bert-base",
    "Tang et al. 2019: a bidirectional LSTM, to be distilled from a BERT",
    "0.96M with its classifier, without the token table",
    body="bilstm",
    layers=1,
    width=400,
    embedding_width=300,
    ffn_width=200,
    init_std=0.1,
)

_add(
    "gpt1",
    "bert-base",
    "Radford et al. 2018: reads from left to right and predicts the next token",
    "117M",
    vocab_size=40478,
    attention="causal",
    activation="gelu-tanh",
    segments=0,
    embedding_norm=False,
    norm_eps=1e-5,
    mask_transform=False,
    mask_bias=False,
    pooler=False,
    sequence_head="linear",
)
_add(
    "gpt2",
    "gpt1",
    "Radford et al. 2019: pre-norm, byte-level BPE, longer texts",
    "124M (117M in the paper)",
    vocab_size=50257,
    max_positions=1024,
    residual="pre-norm",
)
_add(
    "ctrl",
    "gpt1",
    "Keskar et al. 2019: a control code before the text; sinusoidal positions",
    "1.63B",
    vocab_size=246534,
    layers=48,
    width=1280,
    heads=16,
    ffn_width=8192,
    positions="sinusoidal",
    embedding_scale=True,
    activation="relu",
    residual="pre-norm",
    norm_eps=1e-6,
    mask_bias=True,
)
_add(
    "transformer-xl-enwik8-12",
    "gpt1",
    "Dai et al. 2019: relative positions and a memory of the segment before; characters",
    "41M with the output bias",
    vocab_size=204,
    width=512,
    heads=8,
    positions="relative",
    memory=512,
    max_positions=4096,
    embedding_scale=True,
    activation="relu",
    attention_bias=False,
    mask_bias=True,
    attention_dropout=0.0,
)
_add(
    "transformer-xl-enwik8-24",
    "transformer-xl-enwik8-12",
    "Dai et al. 2019: characters",
    "277M with the output bias",
    layers=24,
    width=1024,
    heads=8,
    ffn_width=3072,
    memory=768,
    dropout=0.15,
    attention_dropout=0.15,
)
_add(
    "transformer-xl-base",
    "transformer-xl-enwik8-12",
    "Dai et al. 2019: words of WikiText-103, adaptive softmax",
    "151M with the softmax",
    vocab_size=267735,
    layers=16,
    width=410,
    heads=10,
    ffn_width=2100,
    memory=150,
    cutoffs="20000,40000,200000",
)
_add(
    "transformer-xl-large",
    "transformer-xl-base",
    "Dai et al. 2019: narrower embeddings for rarer words",
    "257M; the arithmetic of the published shape gives 285.2M with the softmax",
    layers=18,
    width=1024,
    heads=16,
    ffn_width=4096,
    memory=384,
    embedding_divisor=4,
    dropout=0.2,
    attention_dropout=0.2,
)

_add(
    "xlnet-base",
    "transformer-xl-enwik8-12",
    "Yang et al. 2019: predicts tokens in any order, by two streams; reads both ways",
    "110M by Hugging Face; the arithmetic of the published shape gives 116.8M with the output bias",
    vocab_size=32000,
    width=768,
    heads=12,
    attention="full",
    memory=0,
    embedding_scale=False,
    segments=3,
    segment_encoding="relative",
    query_stream=True,
    summary="last",
    activation="gelu",
    norm_eps=1e-12,
    sequence_head="summary",
    attention_dropout=0.1,
)
_add(
    "xlnet-large",
    "xlnet-base",
    "Yang et al. 2019",
    "340M by Hugging Face; the arithmetic of the published shape gives 360.3M with the output bias",
    layers=24,
    width=1024,
    heads=16,
)

_add(
    "reformer-enwik8",
    "gpt1",
    "Kitaev et al. 2020: hashed attention, reversible layers, 65,536 characters",
    "none; the arithmetic of the published shape gives 149.2M with the LM head",
    vocab_size=258,
    width=1024,
    heads=8,
    head_width=128,
    attention="chunked,chunked,lsh,chunked",
    look_ahead=False,
    chunk_length=128,
    lsh_chunk_length=256,
    buckets="512",
    hashes=4,
    positions="axial",
    axial_shape="128,512",
    axial_widths="256,768",
    activation="relu",
    attention_bias=False,
    residual="reversible",
    mask_bias=True,
    tied_output=False,
    norm_eps=1e-12,
    sequence_head="tanh",
    dropout=0.2,
    attention_dropout=0.2,
)
_add(
    "reformer-base",
    "reformer-enwik8",
    "BERT-base's size and vocabulary: reads 65,536 tokens both ways",
    "none: a shape of this project; 152.0M with the MLM head",
    vocab_size=30522,
    width=768,
    heads=12,
    head_width=0,
    attention="chunked,lsh",
    look_ahead=True,
    chunk_length=64,
    chunks_after=1,
    lsh_chunk_length=64,
    buckets="0",
    hashes=2,
    eval_hashes=4,
    axial_shape="256,256",
    axial_widths="",
    activation="gelu",
    ffn_chunk=4096,
    dropout=0.1,
    attention_dropout=0.0,
)

# The two ablations of the ALBERT paper: embedding width against sharing, on the base model.
_STUDY = {
    ("none", 64): "87M",
    ("none", 128): "89M",
    ("none", 256): "93M",
    ("none", 768): "108M",
    ("attention", 128): "64M",
    ("attention", 768): "83M",
    ("ffn", 128): "38M",
    ("ffn", 768): "57M",
    ("all", 64): "10M",
    ("all", 128): "12M",
    ("all", 256): "16M",
    ("all", 768): "31M",
}
for _sharing in SHARING:
    for _width in (64, 128, 256, 768):
        _figure = _STUDY.get((_sharing, _width), "")
        _add(
            f"albert-base-e{_width}-{_sharing}",
            "albert-base",
            f"ALBERT study: E = {_width}, sharing {_sharing}",
            f"{_figure} without the pooler" if _figure and _sharing == "none" else _figure,
            study=True,
            embedding_width=_width,
            sharing=_sharing,
        )


def preset(name: str) -> Preset:
    """Return the preset of that name; the error names the nearest one."""
    if name not in PRESETS:
        near = suggest(name, (*PRESETS, DEFAULT))
        named = near if near.startswith("did") else suggest("", (n for n, p in PRESETS.items() if not p.study))
        raise UserError(f"{name}: no such preset and no such folder; {named}")
    return PRESETS[name]


def register_preset(name: str, parent: str = "bert-base", note: str = "", **axes: Any) -> Preset:
    """Add a preset of your own: a known preset with other values on some axes of the architecture.

    It is known in this process only; a saved model carries its architecture with it.

    >>> register_preset("my-bert", parent="bert-small", layers=6, activation="relu")
    """
    if name in PRESETS or name == DEFAULT:
        raise UserError(f"{name}: there is such a preset; give yours another name")
    base = preset(parent).architecture
    values = {axis: check_type(axis, value, name) for axis, value in axes.items()}
    PRESETS[name] = Preset(name, parent, base.with_values(values), note or f"{parent} with other axes")
    return PRESETS[name]
