"""config.json of Hugging Face's Reformer: defaults, values in both directions, refusals."""

import json
from typing import Any

import pytest
import transformers

from bertree.errors import UserError
from bertree.interop.huggingface.config import (
    architecture_from_config,
    config_from_architecture,
    family_of_architecture,
)
from bertree.model.architecture import Architecture
from bertree.model.presets import PRESETS

SMALL = {
    "layers": 3, "width": 16, "heads": 2, "head_width": 8, "ffn_width": 40, "vocab_size": 70, "chunk_length": 4,
    "lsh_chunk_length": 8, "axial_shape": "4,8", "axial_widths": "6,10", "hashes": 2, "duplicates": "each",
    "buckets": "4", "classifier_dropout": 0.2, "attention": "chunked,chunked,lsh",
}  # fmt: skip
# google/reformer-crime-and-punishment, as published
PUBLISHED: dict[str, Any] = {
    "architectures": ["ReformerModelWithLMHead"], "attention_head_size": 64, "attn_layers": ["local", "lsh"] * 3,
    "axial_norm_std": 1.0, "axial_pos_embds": True, "axial_pos_embds_dim": [64, 192], "axial_pos_shape": [512, 1024],
    "chunk_size_feed_forward": 0, "chunk_size_lm_head": 0, "eos_token_id": 2, "feed_forward_size": 512,
    "hash_seed": None, "hidden_act": "relu", "hidden_dropout_prob": 0.05, "hidden_size": 256, "is_decoder": True,
    "initializer_range": 0.02, "layer_norm_eps": 1e-12, "local_attention_probs_dropout_prob": 0.05,
    "local_attn_chunk_length": 64, "local_num_chunks_after": 0, "local_num_chunks_before": 1,
    "lsh_attention_probs_dropout_prob": 0.0, "lsh_attn_chunk_length": 64, "lsh_num_chunks_after": 0,
    "lsh_num_chunks_before": 1, "max_position_embeddings": 524288, "model_type": "reformer",
    "num_attention_heads": 2, "num_buckets": [64, 128], "num_chunks_after": 0, "num_chunks_before": 1,
    "num_hashes": 1, "num_hidden_layers": 6, "output_past": True, "pad_token_id": 0, "vocab_size": 320,
}  # fmt: skip


def small(**changes: object) -> Architecture:
    return PRESETS["reformer-enwik8"].architecture.with_values({**SMALL, **changes})


def written(a: Architecture) -> dict[str, Any]:
    return config_from_architecture(a, family_of_architecture(a), None)


def test_missing_keys_have_the_defaults_of_transformers() -> None:
    bare = architecture_from_config({"model_type": "reformer"}, "config.json")
    config = json.loads(transformers.ReformerConfig().to_json_string(use_diff=False))
    assert bare == architecture_from_config(config, "config.json")
    empty = {key: None for key in config if key not in ("model_type", "attn_layers")}
    assert bare == architecture_from_config(empty | {"model_type": "reformer"}, "config.json")


def test_a_published_configuration_is_read() -> None:
    a = architecture_from_config(PUBLISHED, "config.json")
    changed = {
        "vocab_size": 320, "width": 256, "layers": 6, "heads": 2, "head_width": 64, "ffn_width": 512,
        "attention": "chunked,lsh", "chunk_length": 64, "lsh_chunk_length": 64, "buckets": "64,128", "hashes": 1,
        "axial_shape": "512,1024", "axial_widths": "64,192", "dropout": 0.05, "attention_dropout": 0.0,
        "classifier_dropout": 0.05, "duplicates": "each",
    }  # fmt: skip
    assert a == PRESETS["reformer-enwik8"].architecture.with_values(changed)


@pytest.mark.parametrize(
    ("changes", "stored"),
    [
        ({"attention": "chunked"}, {"attn_layers": ["local"] * 3}),
        ({"attention": "lsh,chunked,chunked"}, {"attn_layers": ["lsh", "local", "local"]}),
        ({"look_ahead": True, "chunks_after": 1}, {"is_decoder": False, "local_num_chunks_after": 1}),
        ({"buckets": "0"}, {"num_buckets": None}),
        ({"buckets": "4,8"}, {"num_buckets": [4, 8]}),
        ({"hash_seed": 5}, {"hash_seed": 5}),
        ({"axial_widths": ""}, {"axial_pos_embds_dim": [8, 8], "max_position_embeddings": 32}),
        ({"positions": "learned", "max_positions": 20}, {"axial_pos_embds": False, "max_position_embeddings": 20}),
        ({"ffn_chunk": 4}, {"chunk_size_feed_forward": 4}),
        ({"activation": "gelu"}, {"hidden_act": "gelu"}),
        ({"lsh_chunks_before": 0, "chunks_before": 2}, {"lsh_num_chunks_before": 0, "local_num_chunks_before": 2}),
        ({"dropout": 0.25, "attention_dropout": 0.125}, {"lsh_attention_probs_dropout_prob": 0.125}),
    ],
)
def test_axes_are_written_and_read(changes: dict[str, Any], stored: dict[str, Any]) -> None:
    unused = {"axial_shape": "64,64", "axial_widths": ""} if "positions" in changes else {}
    a = small(**changes, **unused)
    config = written(a)
    assert {key: config[key] for key in stored} == stored
    assert architecture_from_config(config, "config.json") == a
    transformers.ReformerModel(transformers.ReformerConfig(**config))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("attn_layers", [], "must be a list of 'local' and 'lsh', one for each layer"),
        ("attn_layers", ["local", "full"], "must be a list of 'local' and 'lsh'"),
        ("attn_layers", "lsh", "must be a list of 'local' and 'lsh'"),
        ("attn_layers", [["lsh"]], "must be a list of 'local' and 'lsh'"),
        ("axial_pos_shape", [4, 8, 2], r"must be two whole numbers of at least 1, not \[4, 8, 2\]"),
        ("axial_pos_shape", [-4, -8], "must be two whole numbers of at least 1"),
        ("axial_pos_shape", [4, 2.5], "must be two whole numbers of at least 1"),
        ("axial_pos_shape", 32, "must be two whole numbers of at least 1"),
        ("axial_pos_embds_dim", [6, 12], r"6 \+ 12 is not hidden_size, 16"),
        ("axial_pos_embds", "yes", "must be true or false, not 'yes'"),
        ("is_decoder", 1, "must be true or false, not 1"),
        ("num_buckets", 1, "each factor must be even and at least 2, not 1"),
        ("num_buckets", [4, 3], r"each factor must be even and at least 2, not \[4, 3\]"),
        ("num_buckets", [2, 2, 2], r"must be a whole number, or a list of one or two, not \[2, 2, 2\]"),
        ("num_buckets", "many", "must be a whole number, or a list of one or two"),
        ("num_buckets", True, "must be a whole number"),
        ("hidden_act", "mish", "'mish' is not supported; known: gelu, gelu_new, gelu_pytorch_tanh, relu, silu"),
        ("hidden_size", "wide", "must be a whole number, not 'wide'"),
        ("num_hashes", 1.5, "1.5 is not a valid value"),
        ("hash_seed", "x", "'x' is not a valid value"),
    ],
)
def test_settings_without_an_equal_are_refused(key: str, value: object, reason: str) -> None:
    with pytest.raises(UserError, match=f"config.json: {key}: {reason}") as caught:
        architecture_from_config(written(small()) | {key: value}, "config.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"axial_pos_shape": [2**30, 2**30]}, "max_positions: "),
        ({"axial_pos_shape": [2**40, 2]}, "axial_pos_shape: must be two whole numbers"),
        ({"lsh_attn_chunk_length": -4}, "lsh_chunk_length: "),
        ({"local_num_chunks_before": -1}, "chunks_before: "),
        ({"local_num_chunks_after": 1}, "chunks_after: "),
        ({"num_hashes": 0}, "hashes: "),
        ({"attn_layers": ["lsh"] * 5000}, "layers: "),
        ({"attn_layers": ["lsh"] * 200_000 + ["local"]}, "layers: "),
        ({"num_buckets": 2**40}, "buckets: "),
        ({"chunk_size_feed_forward": -1}, "ffn_chunk: "),
    ],
)
def test_values_out_of_bounds_are_refused_before_anything_is_built(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=f"config.json: (architecture: )?{reason}") as caught:
        architecture_from_config(written(small()) | values, "config.json")
    assert "\n" not in str(caught.value)
