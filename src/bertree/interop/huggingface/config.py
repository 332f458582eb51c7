"""Hugging Face's config.json and `Architecture`, in both directions.

Plain axes are a table of names per family. What one side derives and the other stores (offsets, groups, the MLM head's
activation) is converted in code, once per direction.
"""

from dataclasses import replace
from typing import Any

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.interop.huggingface.bert import FAMILIES
from bertree.interop.huggingface.causal import CAUSAL_CONFIGS, causal_family
from bertree.interop.huggingface.family import ACTIVATIONS, IDLE, Family, different_axis, read_values, write_keys
from bertree.interop.huggingface.modernbert import MODERNBERT_CONFIG
from bertree.interop.huggingface.reformer import REFORMER_CONFIG
from bertree.interop.huggingface.xlnet import XLNET_CONFIG
from bertree.model.architecture import Architecture, Transformer, check_type, later_axes
from bertree.model.presets import PRESETS

_COMMON = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "ffn_width": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "classifier_dropout": "classifier_dropout",
    "init_std": "initializer_range",
    "activation": "hidden_act",
}
KEYS: dict[str, dict[str, str]] = {
    "bert": _COMMON,
    # MegatronBert's classes use hidden_dropout_prob before their classifier; they ignore this key, bertree reads it.
    "megatron-bert": _COMMON,
    "roberta": _COMMON,
    "albert": {
        **_COMMON,
        "classifier_dropout": "classifier_dropout_prob",
        "embedding_width": "embedding_size",
    },
    "distilbert": {
        "vocab_size": "vocab_size",
        "width": "dim",
        "layers": "n_layers",
        "heads": "n_heads",
        "ffn_width": "hidden_dim",
        "max_positions": "max_position_embeddings",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
        "init_std": "initializer_range",
        "activation": "activation",
    },
}
CONFIGS = {**CAUSAL_CONFIGS, "xlnet": XLNET_CONFIG, "modernbert": MODERNBERT_CONFIG, "reformer": REFORMER_CONFIG}
_PRESET = {
    "bert": "bert-base",
    "megatron-bert": "megatron-bert",
    "roberta": "roberta-base",
    "albert": "albert-xxlarge",
    "distilbert": "distilbert-base",
}


def family_of_config(config: Json, where: str) -> Family:
    """Return the family that a config.json names."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UserError(f"{where}: has no 'model_type', so the architecture is not known")
    if model_type not in FAMILIES:
        raise UserError(
            f"{where}: model_type '{model_type}' is not one bertree can load; {suggest(model_type, FAMILIES)}"
        )
    return FAMILIES[model_type]


def architecture_from_config(config: Json, where: str) -> Architecture:
    """Return the architecture that a config.json describes. Missing keys have the family's defaults."""
    family = family_of_config(config, where)
    base = _base(family)
    if family.model_type in CONFIGS:
        described = CONFIGS[family.model_type]
        values = _checked(read_values(described, config, base, where), described.keys, where)
    else:
        values = _encoder_values(config, family, base, where)
    values.setdefault("embedding_width", values.get("width", base.width))
    values.setdefault("mask_activation", values.get("activation", base.activation))
    try:
        return replace(base, **values)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _base(family: Family) -> Transformer:
    """Return the architecture of the preset whose values a family's missing keys have."""
    described = CONFIGS.get(family.model_type)
    return require_transformer(PRESETS[described.preset if described else _PRESET[family.model_type]].architecture)


def _checked(values: dict[str, Any], keys: dict[str, str], where: str) -> dict[str, Any]:
    """Return values of the right types; UserError names the key of a wrong one."""
    checked = {}
    for ours, value in values.items():
        try:
            checked[ours] = check_type(ours, value, where)
        except UserError:
            raise UserError(f"{where}: {keys.get(ours, ours)}: {value!r} is not a valid value") from None
    return checked


def _encoder_values(config: Json, family: Family, base: Transformer, where: str) -> dict[str, Any]:
    _check_supported(config, where)
    keys = KEYS[family.model_type]
    stored = {ours: config[theirs] for ours, theirs in keys.items() if config.get(theirs) is not None}
    if "activation" in stored:
        stored["activation"] = _activation(stored["activation"], f"{where}: {keys['activation']}")
    values = _checked(stored, keys, where)
    if config.get("classifier_dropout") is None and family.model_type in ("bert", "megatron-bert", "roberta"):
        values["classifier_dropout"] = values.get("dropout", base.dropout)
    if family.model_type == "roberta":
        offset = _integer(config.get("pad_token_id", 1), f"{where}: pad_token_id") + 1
        values |= {"position_offset": offset, "mask_activation": "gelu"}
        values["max_positions"] = values.get("max_positions", base.max_positions + 2) - offset
    if family.model_type == "albert":
        values |= _albert(config, values.get("layers", base.layers), where)
        values.setdefault("embedding_width", base.embedding_width)
    return values


def _albert(config: Json, layers: int, where: str) -> dict[str, Any]:
    groups = _integer(config.get("num_hidden_groups", 1), f"{where}: num_hidden_groups")
    if config.get("inner_group_num", 1) != 1:
        raise UserError(f"{where}: inner_group_num: only groups of one layer are supported")
    sharing = {"sharing": "none"} if groups == layers else {"sharing": "all", "groups": groups}
    return {"embedding_projection": True, **sharing}


def _integer(value: Any, where: str) -> int:
    if type(value) is not int:
        raise UserError(f"{where}: must be a whole number, not {value!r}")
    return value


def _activation(value: Any, where: str) -> str:
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise UserError(f"{where}: activation {value!r} is not supported; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[value]


def _check_supported(config: Json, where: str) -> None:
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise UserError(f"{where}: position_embedding_type: only 'absolute' is supported")
    for key in ("is_decoder", "add_cross_attention"):
        if config.get(key):
            raise UserError(f"{where}: {key}: decoders are not supported")


def require_transformer(a: Architecture) -> Transformer:
    """Return the architecture if it is of the kind that Hugging Face's families have."""
    if not isinstance(a, Transformer):
        raise UserError(f"Hugging Face has no such model: its body is {a.body}; bertree's own layout holds it")
    return a


def family_of_architecture(architecture: Architecture) -> Family:
    """Return the Hugging Face family that can hold this architecture; UserError says why none can."""
    a = require_transformer(architecture)
    if a.causal or a.positions in ("relative", "rotary") or a.residual == "reversible":
        return _described_family(a)
    if a.residual == "pre-norm":
        name = "megatron-bert"
    elif a.embedding_projection or a.sharing != "none":
        name = "albert"
    elif a.position_offset:
        name = "roberta"
    else:
        name = "bert" if a.segments else "distilbert"
    required: dict[str, dict[str, Any]] = {
        "bert": {"sequence_head": "pooler", "position_offset": 0, "mask_activation": a.activation},
        "megatron-bert": {
            "embedding_projection": False,
            "sharing": "none",
            "segments": a.segments or "1 or more",
            "sequence_head": "pooler",
            "position_offset": 0,
            "mask_activation": a.activation,
        },
        "roberta": {"sequence_head": "tanh", "mask_activation": "gelu"},
        "albert": {
            "sequence_head": "pooler",
            "position_offset": 0,
            "mask_activation": a.activation,
            "embedding_projection": True,
        },
        "distilbert": {
            "sequence_head": "relu",
            "norm_eps": 1e-12,
            "pooler": False,
            "mask_activation": a.activation,
        },
    }
    # How initial weights are drawn (residual_init) does not matter for a trained model: any value fits any family.
    later = {axis: value for axis, value in later_axes(a).items() if axis not in IDLE}
    always = {"embedding_norm": name != "megatron-bert", "attention": "full"} | later
    for axis, value in {**required[name], **always}.items():
        if getattr(a, axis) != value:
            raise _cannot_hold(FAMILIES[name], a, axis, value)
    if a.sharing in ("attention", "ffn"):
        raise UserError(f"Hugging Face has no model that shares only the {a.sharing} part of its layers")
    return FAMILIES[name]


def _described_family(a: Transformer) -> Family:
    bidirectional = "modernbert" if a.positions == "rotary" else "xlnet"
    name = causal_family(a) if a.causal else bidirectional
    family = FAMILIES["reformer" if a.residual == "reversible" else name]
    if (different := different_axis(CONFIGS[family.model_type], a, _base(family))) is not None:
        raise _cannot_hold(family, a, *different)
    return family


def _cannot_hold(family: Family, a: Transformer, axis: str, value: Any) -> UserError:
    return UserError(
        f"Hugging Face's {family.title} cannot hold this architecture: "
        f"{axis} is {getattr(a, axis)}, there it is {value}"
    )


def config_from_architecture(architecture: Architecture, family: Family, pad_id: int | None) -> Json:
    """Return the config.json of an architecture, without class name and labels."""
    a = require_transformer(architecture)
    if family.model_type in CONFIGS:
        keys = write_keys(CONFIGS[family.model_type], a)
        if pad_id is None and family.model_type == "reformer":
            pad_id = 0  # transformers pads every text to whole chunks, and needs an id for it
        ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": pad_id}
        if family.model_type == "modernbert":  # otherwise transformers assumes ids of the published vocabulary
            ends |= {"cls_token_id": None, "sep_token_id": None}
        return {"model_type": family.model_type, "tie_word_embeddings": True, **keys, **ends}
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    config: Json = {"model_type": family.model_type}
    for ours, theirs in KEYS[family.model_type].items():
        value = getattr(a, ours)
        config[theirs] = activations[value] if ours == "activation" else value
    config |= {"pad_token_id": 0 if pad_id is None else pad_id, "tie_word_embeddings": True}
    if family.model_type == "roberta":
        config |= {"pad_token_id": a.position_offset - 1, "bos_token_id": 0, "eos_token_id": 2}
        config["max_position_embeddings"] = a.max_positions + a.position_offset
    if family.model_type == "albert":
        config |= {"num_hidden_groups": a.layers if a.sharing == "none" else a.groups, "inner_group_num": 1}
    return config
