"""Hugging Face's config.json and `Architecture`, in both directions; which family holds an architecture, and if none
does, what differs, and the settings of one that fits.

Plain axes are a table of names per family. What one side derives and the other stores (offsets, groups, the MLM head's
activation) is converted in code, once per direction.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.interop.huggingface.bert import FAMILIES
from bertree.interop.huggingface.causal import CAUSAL_CONFIGS, causal_family
from bertree.interop.huggingface.family import ACTIVATIONS, IDLE, Family, different_axes, read_values, write_keys
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
    # MegatronBert's classes use hidden_dropout_prob before their classifier; they ignore this key, bertree reads it.
    "classifier_dropout": "classifier_dropout",
    "init_std": "initializer_range",
    "activation": "hidden_act",
}
_OWN_KEYS: dict[str, dict[str, str]] = {  # of families that have others
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
ROBERTAS = ("roberta", "roberta-prelayernorm")  # their positions begin behind the padding id
_PRESET = {
    "bert": "bert-base",
    "megatron-bert": "megatron-bert",
    "roberta": "roberta-base",
    "roberta-prelayernorm": "roberta-base",
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
    base = base_architecture(family)
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


def base_architecture(family: Family) -> Transformer:
    """Return the architecture of the preset whose values a family's missing keys have."""
    described = CONFIGS.get(family.model_type)
    base = require_transformer(PRESETS[described.preset if described else _PRESET[family.model_type]].architecture)
    if family.model_type != "roberta-prelayernorm":
        return base
    return replace(base, residual="pre-norm", segments=2, norm_eps=1e-12, max_positions=510)


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
    _check_supported(config, family.model_type, where)
    keys = _OWN_KEYS.get(family.model_type, _COMMON)
    stored = {ours: config[theirs] for ours, theirs in keys.items() if config.get(theirs) is not None}
    if "activation" in stored:
        stored["activation"] = _activation(stored["activation"], f"{where}: {keys['activation']}")
    values = _checked(stored, keys, where)
    if config.get("classifier_dropout") is None and family.model_type not in ("albert", "distilbert"):
        values["classifier_dropout"] = values.get("dropout", base.dropout)
    if config.get("is_decoder"):
        values["attention"] = "causal"
    if family.model_type in ROBERTAS:
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


def _check_supported(config: Json, model_type: str, where: str) -> None:
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise UserError(f"{where}: position_embedding_type: only 'absolute' is supported")
    if config.get("is_decoder") and model_type in ("albert", "distilbert"):
        raise UserError(f"{where}: is_decoder: has no meaning for model_type '{model_type}'")
    if config.get("add_cross_attention"):
        raise UserError(f"{where}: add_cross_attention: bertree has no models that read the states of another")


def require_transformer(a: Architecture) -> Transformer:
    """Return the architecture if it is of the kind that Hugging Face's families have."""
    if not isinstance(a, Transformer):
        raise UserError(f"Hugging Face has no such model: its body is {a.body}; bertree's own layout holds it")
    return a


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
    for ours, theirs in _OWN_KEYS.get(family.model_type, _COMMON).items():
        value = getattr(a, ours)
        config[theirs] = activations[value] if ours == "activation" else value
    config |= {"pad_token_id": 0 if pad_id is None else pad_id, "tie_word_embeddings": True}
    if a.causal:
        config["is_decoder"] = True
    if family.model_type in ROBERTAS:
        config |= {"pad_token_id": a.position_offset - 1, "bos_token_id": 0, "eos_token_id": 2}
        config["max_position_embeddings"] = a.max_positions + a.position_offset
    if family.model_type == "albert":
        config |= {"num_hidden_groups": a.layers if a.sharing == "none" else a.groups, "inner_group_num": 1}
    return config


_ENCODERS = ("bert", "megatron-bert", "roberta", "roberta-prelayernorm", "albert", "distilbert")
_DECODERS = _ENCODERS[:4]  # those that `is_decoder` makes read from left to right


def family_of_architecture(architecture: Architecture) -> Family:
    """Return the Hugging Face family that holds this architecture; UserError says why none does."""
    a = require_transformer(architecture)
    nearest = _nearest(a)
    if not _differences(nearest, a):
        return FAMILIES[nearest]
    others = [name for name in _ENCODERS if nearest in _ENCODERS and name != nearest]
    title, differing = _closest(a, [nearest, *others])
    axis, value = next(iter(differing.items()))
    raise UserError(
        f"Hugging Face's {title} cannot hold this architecture: {axis} is {getattr(a, axis)}, there it is {value}"
        f"{_advice(a, title, differing)}"
    )


def _closest(a: Transformer, names: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """Return the title of the family that differs least, and what differs."""
    differences = {FAMILIES[name].title: _differences(name, a) for name in names}
    return min(differences.items(), key=lambda pair: len(pair[1]))


def _advice(a: Transformer, title: str, differing: Mapping[str, Any]) -> str:
    """Return the settings with which the family holds a model like this; empty if they do not go together."""
    family = next(family for family in FAMILIES.values() if family.title == title)
    settings: dict[str, Any] = {
        axis: value.split(" or ")[0] if isinstance(value, str) else value for axis, value in differing.items()
    }
    try:
        fits = not _differences(family.model_type, replace(a, **settings))
    except UserError:
        return ""
    texts = (f"model.{axis}={str(v).lower() if isinstance(v, bool) else v}" for axis, v in settings.items())
    return f"; {family.library} opens one trained with {' '.join(texts)}" if fits else ""


def _nearest(a: Transformer) -> str:
    """Return the `model_type` that an architecture is compared with."""
    if a.residual == "reversible":
        return "reformer"
    if a.positions in ("relative", "rotary") or (a.causal and not _is_decoder(a)):
        return causal_family(a) if a.causal else "modernbert" if a.positions == "rotary" else "xlnet"
    if a.residual == "pre-norm":
        return "roberta-prelayernorm" if a.embedding_norm and a.position_offset else "megatron-bert"
    if a.embedding_projection or a.sharing != "none":
        return "albert"
    if a.position_offset:
        return "roberta"
    return "bert" if a.segments else "distilbert"


def _is_decoder(a: Transformer) -> bool:
    """Return whether it is an encoder like BERT that reads from left to right; GPT's head has no transform."""
    return a.causal and a.positions == "learned" and a.mask_transform


def _differences(name: str, a: Transformer) -> dict[str, Any]:
    """Return the axes that a family cannot express, and their values there."""
    if name in CONFIGS:
        return dict(different_axes(CONFIGS[name], a, base_architecture(FAMILIES[name])))
    pre_norm = name in ("megatron-bert", "roberta-prelayernorm")
    shares = name == "albert" and a.sharing not in ("attention", "ffn")
    fixed: dict[str, Any] = {
        "residual": "pre-norm" if pre_norm else "post-norm",
        "embedding_projection": name == "albert",
        "sharing": a.sharing if shares else "all" if name == "albert" else "none",
        "segments": 0 if name == "distilbert" else a.segments or 1,
    }
    if name in ("roberta", "roberta-prelayernorm"):
        fixed |= {"sequence_head": "tanh", "position_offset": a.position_offset or 1, "mask_activation": "gelu"}
    else:
        head = "relu" if name == "distilbert" else "pooler"
        fixed |= {"sequence_head": head, "position_offset": 0, "mask_activation": a.activation}
    if name == "distilbert":
        fixed |= {"norm_eps": 1e-12, "pooler": False}
    # Embeddings that need no projection may have one nevertheless, and ALBERT's always do.
    if not fixed["embedding_projection"] and a.embedding_width != a.width:
        fixed["embedding_width"] = a.width
    # How initial weights are drawn (residual_init) does not matter for a trained model: any value fits any family.
    later = {axis: value for axis, value in later_axes(a).items() if axis not in IDLE}
    reads = a.attention if name in _DECODERS and a.causal else "full"
    fixed |= {"embedding_norm": name != "megatron-bert", "attention": reads} | later
    return {axis: value for axis, value in fixed.items() if getattr(a, axis) != value}
