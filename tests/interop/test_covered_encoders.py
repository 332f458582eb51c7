"""Encoders whose folders are not read, but whose layers are points of the space: same weights, same states."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor

from bertree.model.network import build
from bertree.model.presets import preset
from tests.support.parity import batch_of, flat, padded, ragged

SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
# docs/formats.md names these points.
GATED = {
    "positions": "rotary",
    "ffn": "gated",
    "activation": "silu",
    "attention_bias": False,
    "ffn_bias": False,
    "pooler": False,
    "attention_dropout": 0.0,
    "dropout": 0.0,
    "max_positions": 64,
}


class Covered(NamedTuple):
    """An encoder of transformers, and the point of the space that it is."""

    model: transformers.PreTrainedModel
    axes: dict[str, object]
    names: dict[str, str]  # of its tensors, by ours; those of a layer with {}


def nomic() -> Covered:
    config = transformers.NomicBertConfig(**SIZES, max_position_embeddings=64)
    axes = GATED | {"rotary_base": 1000.0, "segments": 2}
    names = {
        "embeddings.tokens.weight": "embeddings.word_embeddings.weight",
        "embeddings.segments.weight": "embeddings.token_type_embeddings.weight",
        "embeddings.norm": "embeddings.LayerNorm",
        "stack.attention.{}.norm": "layers.{}.post_attention_layernorm",
        "stack.ffn.{}.norm": "layers.{}.post_mlp_layernorm",
    }
    return Covered(transformers.NomicBertModel(config, add_pooling_layer=False), axes, names)


def euro() -> Covered:
    rotary = {"rope_type": "default", "rope_theta": 250_000.0}
    config = transformers.EuroBertConfig(**SIZES, num_key_value_heads=4, pad_token_id=0, rope_parameters=rotary)
    axes = GATED | {
        "rotary_base": 250_000.0,
        "segments": 0,
        "residual": "pre-norm",
        "norm": "rms",
        "norm_bias": False,
        "embedding_norm": False,
        "norm_eps": config.rms_norm_eps,
    }
    names = {
        "embeddings.tokens.weight": "embed_tokens.weight",
        "norm": "norm",
        "stack.attention.{}.norm": "layers.{}.input_layernorm",
        "stack.ffn.{}.norm": "layers.{}.post_attention_layernorm",
    }
    return Covered(transformers.EuroBertModel(config), axes, names)


def weights(covered: Covered) -> dict[str, Tensor]:
    """Its weights under our names."""
    theirs, renamed = covered.model.state_dict(), {}
    for name, other in covered.names.items():
        for layer in range(SIZES["num_hidden_layers"]) if "{}" in name else [0]:
            place = other.format(layer)
            for part in [""] if place in theirs else [".weight", ".bias"]:
                if place + part in theirs:
                    renamed[name.format(layer) + part] = theirs[place + part]
    for layer in range(SIZES["num_hidden_layers"]):
        attention, ffn = f"layers.{layer}.self_attn.", f"layers.{layer}.mlp."
        renamed[f"stack.attention.{layer}.part.qkv.weight"] = torch.cat(
            [theirs[f"{attention}{part}_proj.weight"] for part in "qkv"]
        )
        renamed[f"stack.attention.{layer}.part.out.weight"] = theirs[f"{attention}o_proj.weight"]
        renamed[f"stack.ffn.{layer}.part.up.weight"] = torch.cat(
            [theirs[f"{ffn}{part}_proj.weight"] for part in ("gate", "up")]
        )
        renamed[f"stack.ffn.{layer}.part.down.weight"] = theirs[f"{ffn}down_proj.weight"]
    return renamed


@pytest.mark.parametrize("make", [nomic, euro])
def test_the_states_of_an_encoder_that_the_axes_cover_equal_transformers(make: Callable[[], Covered]) -> None:
    torch.manual_seed(0)
    covered = make()
    model = covered.model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    sizes = {"vocab_size": 60, "width": 32, "embedding_width": 32, "layers": 3, "heads": 4, "ffn_width": 48}
    architecture: Any = preset("bert-base").architecture.with_values(sizes | covered.axes)
    network = build(architecture, {}).eval()
    network.encoder.load_state_dict(weights(covered))
    ids, kinds = ragged([7, 1, 30, 12], 60, architecture.segments, 0)
    theirs = flat(model(**padded(model, ids, kinds)).last_hidden_state, ids)
    assert (network(batch_of(ids, kinds)) - theirs).abs().max() < 1e-5
