"""Reversible layers against the encoder of transformers' Reformer: states and gradients, feed-forward in chunks.

Its local attention with one chunk is full attention, so that both have the same parts.
"""

import pytest
import torch
from torch import Tensor
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import ReformerEncoder

from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.network import build_encoder
from bertree.model.transformer import TransformerEncoder

WIDTH, LAYERS, TOKENS = 32, 6, 24


def theirs(chunk: int) -> ReformerEncoder:
    config = ReformerConfig(
        hidden_size=WIDTH,
        num_attention_heads=2,
        attention_head_size=16,
        feed_forward_size=64,
        num_hidden_layers=LAYERS,
        attn_layers=["local"] * LAYERS,
        local_attn_chunk_length=TOKENS,
        hidden_dropout_prob=0.0,
        local_attention_probs_dropout_prob=0.0,
        chunk_size_feed_forward=chunk,
        is_decoder=False,
        hidden_act="relu",
        layer_norm_eps=1e-12,
    )
    torch.manual_seed(0)
    encoder = ReformerEncoder(config).train()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return encoder


def ours(chunk: int) -> TransformerEncoder:
    axes = {"vocab_size": 10, "width": WIDTH, "heads": 2, "layers": LAYERS, "ffn_width": 64, "ffn_chunk": chunk}
    without = {"dropout": 0.0, "attention_dropout": 0.0, "attention_bias": False, "pooler": False}
    changed = Transformer().with_values(axes | without | {"residual": "reversible", "activation": "relu"})
    encoder = build_encoder(changed).train()
    assert isinstance(encoder, TransformerEncoder)
    return encoder


def named(value: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors by our names."""
    renamed = {"norm.weight": value["layer_norm.weight"], "norm.bias": value["layer_norm.bias"]}
    for i in range(LAYERS):
        attention, ffn = f"layers.{i}.attention.", f"layers.{i}.feed_forward."
        qkv = [value[f"{attention}self_attention.{name}.weight"] for name in ("query", "key", "value")]
        renamed[f"stack.attention.{i}.part.qkv.weight"] = torch.cat(qkv)
        renamed[f"stack.attention.{i}.part.out.weight"] = value[f"{attention}output.dense.weight"]
        for kind in ("weight", "bias"):
            renamed[f"stack.attention.{i}.norm.{kind}"] = value[f"{attention}layer_norm.{kind}"]
            renamed[f"stack.ffn.{i}.norm.{kind}"] = value[f"{ffn}layer_norm.{kind}"]
            renamed[f"stack.ffn.{i}.part.up.{kind}"] = value[f"{ffn}dense.dense.{kind}"]
            renamed[f"stack.ffn.{i}.part.down.{kind}"] = value[f"{ffn}output.dense.{kind}"]
    return renamed


@pytest.mark.parametrize("chunk", [0, 8])
def test_states_and_gradients_are_those_of_transformers(chunk: int) -> None:
    hers, mine = theirs(chunk), ours(chunk)
    missing = mine.load_state_dict(named(hers.state_dict()), strict=False)
    assert all(name.startswith("embeddings.") for name in missing.missing_keys)
    assert not missing.unexpected_keys
    torch.manual_seed(1)
    x_th, weights_th = torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, 2 * WIDTH)
    results = []
    for name in ("hers", "mine"):
        start_th = x_th.clone().requires_grad_()
        if name == "hers":
            states_th = hers(start_th[None]).hidden_states[0]
        else:
            assert mine.norm is not None
            states_th = mine.norm(mine.stack.last(start_th, Batch.pack([[1] * TOKENS])))
        (states_th * weights_th).sum().backward()
        assert start_th.grad is not None
        results.append((states_th.detach(), start_th.grad))
    expected = named({name: p.grad for name, p in hers.named_parameters() if p.grad is not None})
    for left, right in zip(*results, strict=True):
        assert torch.allclose(left, right, atol=2e-5, rtol=1e-4)
    for name, parameter in mine.named_parameters():
        if name in expected:
            assert parameter.grad is not None
            scale = float(expected[name].abs().max())
            assert torch.allclose(parameter.grad, expected[name], atol=2e-5 * scale), name
