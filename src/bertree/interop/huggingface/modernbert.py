"""ModernBERT of Hugging Face: its configuration and tensor names.

Releases before transformers 5 describe layers and rotary positions by other keys (`global_attn_every_n_layers`,
`global_rope_theta`, `local_rope_theta`); both are read, and both are written where they can express the same.
"""

from typing import Any

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.interop.huggingface.family import (
    ACTIVATIONS,
    TASK_CLASSES,
    Family,
    FamilyConfig,
    Row,
    layer_rows,
    number,
    pattern,
)
from bertree.model.architecture import Transformer

_LAYER_TYPES = {"full_attention": "full", "sliding_attention": "local"}
# Axis -> its kind of layers, and its key in older releases.
_BASES = {
    "rotary_base": ("full_attention", "global_rope_theta"),
    "local_rotary_base": ("sliding_attention", "local_rope_theta"),
}
_POOLING = {"cls": "first", "mean": "mean"}


def _read(config: Json, base: Transformer, where: str) -> dict[str, Any]:
    window = number(config, "local_attention", 2 * base.window, where)
    if window < 2 or window % 2:
        raise UserError(f"{where}: local_attention: must be an even number of tokens, 2 or more, not {window}")
    pooling = config.get("classifier_pooling", "cls")
    if pooling not in _POOLING:
        raise UserError(f"{where}: classifier_pooling: {pooling!r} has no equal here, only {' or '.join(_POOLING)}")
    norm_bias = config.get("norm_bias", False)
    if config.get("classifier_bias", False) != norm_bias:
        raise UserError(f"{where}: classifier_bias: must be as norm_bias, {norm_bias}")
    bases = {axis: _base(config, *keys, getattr(base, axis), where) for axis, keys in _BASES.items()}
    return {
        "attention": _pattern(config, number(config, "num_hidden_layers", base.layers, where), where),
        "window": window // 2,
        "summary": _POOLING[pooling],
        "head_bias": norm_bias,
        "mask_activation": "gelu",
        **bases,
    }


def _pattern(config: Json, layers: int, where: str) -> str:
    """Return the attention of the layers as the shortest repeating pattern."""
    kinds = config.get("layer_types")
    if kinds is None:
        every = number(config, "global_attn_every_n_layers", 3, where)
        if every < 1:
            raise UserError(f"{where}: global_attn_every_n_layers: must be 1 or more, not {every}")
        kinds = ["full_attention" if depth % every == 0 else "sliding_attention" for depth in range(min(every, layers))]
    elif not isinstance(kinds, list) or len(kinds) != layers:
        raise UserError(f"{where}: layer_types: must list {layers} layers")
    unknown = next((kind for kind in kinds if kind not in _LAYER_TYPES), None)
    if unknown is not None:
        raise UserError(f"{where}: layer_types: {unknown!r} is not one of {', '.join(_LAYER_TYPES)}")
    return pattern([_LAYER_TYPES[kind] for kind in kinds])


def _base(config: Json, kind: str, key: str, default: float, where: str) -> Any:
    """Return the base of the wavelengths of one kind of layers."""
    rope = config.get("rope_parameters") or {}
    settings = rope.get(kind) or {} if isinstance(rope, dict) else rope
    if not isinstance(settings, dict):
        raise UserError(f"{where}: rope_parameters: must have an entry for each kind of layers")
    if settings.get("rope_type", "default") != "default" or config.get("rope_scaling"):
        raise UserError(f"{where}: rope_parameters: only rope_type 'default' has an equal here")
    value = settings.get("rope_theta", config.get(key, default))
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UserError(f"{where}: rope_parameters: rope_theta must be a number, not {value!r}")
    return float(value)


def _write(a: Transformer) -> Json:
    names = {ours: theirs for theirs, ours in _LAYER_TYPES.items()}
    kinds = a.attention.split(",")
    rope, older = {}, {}
    for axis, (kind, key) in _BASES.items():
        older[key] = getattr(a, axis)
        rope[kind] = {"rope_type": "default", "rope_theta": older[key]}
    if kinds == ["full"] + ["local"] * (len(kinds) - 1):
        older["global_attn_every_n_layers"] = len(kinds)
    return {
        "layer_types": [names[kind] for kind in a.attention_kinds],
        "rope_parameters": rope,
        **older,
        "local_attention": 2 * a.window,
        "classifier_pooling": next(theirs for theirs, ours in _POOLING.items() if ours == a.summary),
        "classifier_bias": a.norm_bias,
        "classifier_activation": "gelu",
        "decoder_bias": True,
    }


MODERNBERT_CONFIG = FamilyConfig(
    "modernbert-base",
    {
        "vocab_size": "vocab_size",
        "width": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "ffn_width": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "activation": "hidden_activation",
        "norm_eps": "norm_eps",
        "norm_bias": "norm_bias",
        "attention_bias": "attention_bias",
        "ffn_bias": "mlp_bias",
        "dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "classifier_dropout": "classifier_dropout",
        "init_std": "initializer_range",
    },
    ACTIVATIONS,
    {"classifier_activation": ("gelu",), "decoder_bias": (True,), "tie_word_embeddings": (True,)},
    derived=("attention", "window", "summary", "head_bias", "rotary_base", "local_rotary_base"),
    read=_read,
    write=_write,
)

_HEAD: tuple[Row, ...] = (("dense", "head.dense"), ("norm", "head.norm"))
_CLASSIFIER: tuple[Row, ...] = (*_HEAD, ("out", "classifier"))
MODERNBERT = Family(
    "modernbert",
    "ModernBert",
    "model.",
    (
        ("encoder.embeddings.tokens", "embeddings.tok_embeddings"),
        ("encoder.embeddings.norm", "embeddings.norm"),
        *layer_rows("layers.{i}.", "attn.Wqkv", "attn.Wo", "attn_norm", "mlp.Wi", "mlp.Wo", "mlp_norm"),
        ("encoder.norm", "final_norm"),
    ),
    {
        "mask": (*_HEAD, ("", "decoder")),
        "sequence": _CLASSIFIER,
        "token": _CLASSIFIER,
        "span": _CLASSIFIER,
        "choice": _CLASSIFIER,
    },
    TASK_CLASSES,
    tied={"decoder.weight": ("embeddings.tok_embeddings.weight",)},
)
