"""Which family of Hugging Face holds an architecture; if none does, what differs, and the settings of one that fits."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bertree.errors import UserError
from bertree.interop.huggingface.bert import FAMILIES
from bertree.interop.huggingface.causal import causal_family
from bertree.interop.huggingface.config import CONFIGS, base_architecture, require_transformer
from bertree.interop.huggingface.family import IDLE, Family, different_axes
from bertree.model.architecture import Architecture, Transformer, later_axes

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
