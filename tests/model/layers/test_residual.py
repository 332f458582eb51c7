"""Pre-norm: against the formula written out, at the start of training, and under autocast."""

import pytest
import torch
import torch.nn.functional as F

from bertree.batch import Batch
from bertree.model.architecture import Architecture, Transformer
from bertree.model.network import build_encoder
from bertree.model.transformer import TransformerEncoder

SMALL = Transformer(vocab_size=50, width=32, heads=1, ffn_width=64, embedding_width=32, layers=3, norm_eps=1e-5)
PRE = SMALL.with_values({"residual": "pre-norm"})


def scrambled(a: Architecture) -> TransformerEncoder:
    """Every parameter random, norms and biases too."""
    torch.manual_seed(0)
    encoder = build_encoder(a).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return encoder


def test_pre_norm_is_the_formula() -> None:
    encoder = scrambled(PRE)
    w = encoder.state_dict()

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (32,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    ids = [4, 9, 2, 33, 7]
    x = w["embeddings.tokens.weight"][ids] + w["embeddings.positions.weight"][:5] + w["embeddings.segments.weight"][0]
    expected = [x]
    for i in range(3):
        at, ff = f"stack.attention.{i}", f"stack.ffn.{i}"
        q, k, v = linear(norm(x, f"{at}.norm"), f"{at}.part.qkv").chunk(3, dim=-1)
        x = x + linear((q @ k.T / 32**0.5).softmax(-1) @ v, f"{at}.part.out")
        x = x + linear(F.gelu(linear(norm(x, f"{ff}.norm"), f"{ff}.part.up")), f"{ff}.part.down")
        expected.append(x)
    expected[-1] = norm(x, "norm")
    batch = Batch.pack([ids])
    for ours, theirs in zip(encoder.states(batch), expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-4
    assert torch.equal(encoder(batch), list(encoder.states(batch))[-1])


def test_scaled_matrices_are_those_that_write_into_the_residual() -> None:
    """From the same seed they are the plain ones times 1 / sqrt(2 layers); all others are the plain ones."""
    for sharing in ("none", "all"):  # a shared layer writes as often as it is applied
        weights = {}
        for init in ("plain", "scaled"):
            torch.manual_seed(5)
            a = PRE.with_values({"width": 128, "layers": 8, "sharing": sharing, "residual_init": init})
            weights[init] = build_encoder(a).state_dict()
        for name, plain in weights["plain"].items():
            writes = name.endswith(("part.out.weight", "part.down.weight"))
            assert torch.equal(weights["scaled"][name], plain / 4 if writes else plain)
            if writes:
                assert abs(plain.std() / 4 / (0.02 / 16**0.5) - 1) < 0.05


@pytest.mark.parametrize("residual", ["post-norm", "pre-norm"])
def test_under_autocast_the_stream_has_the_precision_of_the_products(residual: str) -> None:
    encoder = build_encoder(SMALL.with_values({"residual": residual}))
    batch = Batch.pack([[3, 4, 5]])
    exact = list(encoder.eval().states(batch))
    with torch.autocast("cpu", torch.bfloat16):
        states = list(encoder.states(batch))
    assert all(state.dtype == torch.bfloat16 for state in states[:-1])
    errors = [(state - true).abs().max() / true.abs().max() for state, true in zip(states, exact, strict=True)]
    assert all(error < 0.05 for error in errors)
