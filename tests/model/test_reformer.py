"""A whole Reformer against transformers' ReformerModel."""

import pytest
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.layers.attention_kinds import LshAttention
from bertree.model.network import Network, build

transformers = pytest.importorskip("transformers")
KINDS = ("chunked", "lsh", "lsh", "chunked")


def _theirs(causal: bool, rounds: int) -> torch.nn.Module:
    config = transformers.ReformerConfig(
        vocab_size=50,
        hidden_size=32,
        attention_head_size=8,
        num_attention_heads=4,
        feed_forward_size=48,
        attn_layers=[{"chunked": "local", "lsh": "lsh"}[kind] for kind in KINDS],
        lsh_attn_chunk_length=16,
        local_attn_chunk_length=8,
        local_num_chunks_before=1,
        local_num_chunks_after=0 if causal else 1,
        num_buckets=[4, 2],
        num_hashes=rounds,
        hash_seed=3,
        is_decoder=causal,
        axial_pos_shape=(8, 16),
        axial_pos_embds_dim=(8, 24),
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        lsh_attention_probs_dropout_prob=0.0,
        local_attention_probs_dropout_prob=0.0,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    model = transformers.ReformerModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def _ours(theirs: torch.nn.Module, causal: bool, rounds: int) -> Network:
    architecture = Transformer().with_values(
        {
            "vocab_size": 50,
            "width": 32,
            "heads": 4,
            "layers": 4,
            "ffn_width": 48,
            "activation": "relu",
            "attention": ",".join(KINDS),
            "look_ahead": not causal,
            "lsh_chunk_length": 16,
            "chunk_length": 8,
            "chunks_after": 0 if causal else 1,
            "buckets": "4,2",
            "hashes": rounds,
            "duplicates": "each",
            "positions": "axial",
            "axial_shape": "8,16",
            "axial_widths": "8,24",
            "residual": "reversible",
            "attention_bias": False,
            "segments": 0,
            "pooler": False,
            "norm_eps": 1e-12,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        }
    )
    network = build(architecture).eval()
    network.encoder.load_state_dict(_renamed(dict(theirs.state_dict())))
    return network


def _renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of transformers' model under our names."""
    renamed = {"embeddings.tokens.weight": state["embeddings.word_embeddings.weight"]}
    for i, name in enumerate(("rows", "columns")):
        table = state[f"embeddings.position_embeddings.weights.{i}"]
        renamed[f"embeddings.positions.{name}.weight"] = table.reshape(-1, table.shape[-1])
    for i, kind in enumerate(KINDS):
        attention, ffn = f"encoder.layers.{i}.attention", f"encoder.layers.{i}.feed_forward"
        parts = ("query", "key", "value") if kind == "chunked" else ("query_key", "value")
        joined = torch.cat([state[f"{attention}.self_attention.{part}.weight"] for part in parts])
        renamed[f"stack.attention.{i}.part.{'qkv' if kind == 'chunked' else 'qv'}.weight"] = joined
        renamed[f"stack.attention.{i}.part.out.weight"] = state[f"{attention}.output.dense.weight"]
        for ours, theirs in (
            (f"stack.attention.{i}.norm", f"{attention}.layer_norm"),
            (f"stack.ffn.{i}.norm", f"{ffn}.layer_norm"),
            (f"stack.ffn.{i}.part.up", f"{ffn}.dense.dense"),
            (f"stack.ffn.{i}.part.down", f"{ffn}.output.dense"),
            ("norm", "encoder.layer_norm"),
        ):
            renamed |= {f"{ours}.{end}": state[f"{theirs}.{end}"] for end in ("weight", "bias")}
    return renamed


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [128, 32, 5])
@torch.no_grad()
def test_hidden_states_equal_those_of_transformers(
    causal: bool, rounds: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In float32 transformers' sum over rounds is inexact for tokens that see themselves alone.
    dtype = torch.float64 if causal and rounds > 1 else torch.float32
    theirs = _theirs(causal, rounds).to(dtype)
    network = _ours(theirs, causal, rounds).to(dtype)

    def as_transformers_draws(part: LshAttention, axes: tuple[int, ...], like: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(3)
        return torch.randn(4, 8, rounds, sum(axes), dtype=dtype).split(list(axes), -1)

    monkeypatch.setattr(LshAttention, "rotations", as_transformers_draws)
    rows = torch.randint(5, 50, (2, length))
    # transformers pads a text that ends within a chunk, unless it has one chunk or less.
    expected = theirs(input_ids=rows).last_hidden_state
    batch = Batch.pack(rows.tolist())
    output = network(batch)
    assert output.shape == (2 * length, 64)
    assert (output - expected.flatten(0, 1)).abs().max() < 1e-5
    *_, last = network.encoder.states(batch)
    assert torch.equal(last, output)


def test_gradients_equal_those_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In training, where transformers' axial positions want texts of the whole grid."""
    theirs = _theirs(causal=True, rounds=2).double()
    network = _ours(theirs, causal=True, rounds=2).double()

    def as_transformers_draws(part: LshAttention, axes: tuple[int, ...], like: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(3)
        return torch.randn(4, 8, 2, sum(axes), dtype=like.dtype).split(list(axes), -1)

    monkeypatch.setattr(LshAttention, "rotations", as_transformers_draws)
    rows = torch.randint(5, 50, (1, 128))
    weights = torch.linspace(1, 2, 128 * 64, dtype=torch.float64).view(128, 64)
    (network.train()(Batch.pack(rows.tolist())) * weights).sum().backward()
    (theirs.train()(input_ids=rows).last_hidden_state[0] * weights).sum().backward()
    expected = _renamed({name: p.grad for name, p in theirs.named_parameters()})
    for name, parameter in network.encoder.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-5, atol=1e-5)
