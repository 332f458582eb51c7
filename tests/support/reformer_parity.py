"""A Reformer of transformers whose LM head applies its bias, and the rotations that it draws."""

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from bertree.interop.contents import Contents
from bertree.model.layers import attention_kinds
from tests.support.parity import load, peer

SEED = 3  # hash_seed
POINT: dict[str, object] = {
    "vocab_size": 67, "hidden_size": 24, "num_attention_heads": 3, "attention_head_size": 8, "feed_forward_size": 40,
    "attn_layers": ["local", "lsh", "local", "lsh"], "lsh_attn_chunk_length": 4, "local_attn_chunk_length": 4,
    "axial_pos_shape": [4, 8], "axial_pos_embds_dim": [8, 16], "max_position_embeddings": 32, "num_hashes": 2,
    "num_buckets": 4, "hash_seed": SEED, "hidden_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0,
    "lsh_attention_probs_dropout_prob": 0.0, "pad_token_id": 0,
}  # fmt: skip


def reformer(suffix: str, seed: int, **settings: object) -> transformers.PreTrainedModel:
    """A random model; its LM head adds the bias, which transformers leaves out."""
    point = POINT | {"is_decoder": suffix == "ModelWithLMHead"} | settings
    model = peer("reformer", suffix, seed, **point)
    if hasattr(model, "lm_head"):
        bias = model.lm_head.bias
        model.lm_head.decoder.register_forward_hook(lambda module, arguments, logits: logits + bias)
    return model


def load_exact(model: transformers.PreTrainedModel, path: Path) -> Contents:
    """Save with transformers, read with bertree; then transformers computes in float64.

    It gives a token that sees only itself the score -1e5, whose sums over rounds are wrong by 0.4% in float32.
    """
    contents = load(model, path)
    model.double()
    return contents


def use_rotations_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash with what transformers draws in float64 after `torch.manual_seed(hash_seed)`, the same in every layer."""

    def rotations(heads: int, width: int, rounds: int, axes: tuple[int, ...]) -> tuple[Tensor, ...]:
        draw = torch.Generator().manual_seed(SEED)
        drawn = torch.randn(heads, width, rounds, sum(axes), generator=draw, dtype=torch.float64)
        return drawn.float().split(axes, -1)

    monkeypatch.setattr(
        attention_kinds,
        "draw_rotations",
        lambda heads, width, rounds, axes, like: rotations(heads, width, rounds, axes),
    )
    monkeypatch.setattr(
        attention_kinds,
        "fixed_rotations",
        lambda seed, depth, heads, width, rounds, axes: rotations(heads, width, rounds, axes),
    )
