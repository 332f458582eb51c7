"""Tiny left-to-right models with random weights, as they are loaded."""

from functools import cache
from typing import Any

import torch

from bertree.inference.load import make_model
from bertree.inference.model import Model
from bertree.interop.contents import Contents
from bertree.model.architecture import Architecture
from bertree.model.network import Network, build
from bertree.model.presets import PRESETS
from bertree.text.tokenizer import Tokenizer
from tests.support import learnable

SMALL: dict[str, Any] = {"layers": 2, "width": 32, "heads": 2, "ffn_width": 64, "max_positions": 48, "init_std": 0.3}
KINDS: dict[str, dict[str, Any]] = {
    "gpt1": {},
    "gpt2": {},
    "ctrl": {},
    "transformer-xl-base": {"memory": 12, "cutoffs": "20,60"},
    "bert-base": {"attention": "causal"},
    "rotary": {"positions": "rotary", "attention": "causal", "residual": "pre-norm"},
    "zeros": {"memory": 12, "memory_start": "zeros", "same_length": True},
}
PARENTS = {"rotary": "bert-base", "zeros": "transformer-xl-enwik8-12"}
CODES = ("boat", "tree", "river")


@cache
def words() -> Tokenizer:
    """The tokenizer of all of them."""
    return learnable.tokenizer()


def architecture(kind: str, vocab_size: int, **axes: Any) -> Architecture:
    """A small architecture of a kind."""
    values = SMALL | KINDS[kind] | {"vocab_size": vocab_size} | axes
    return PRESETS[PARENTS.get(kind, kind)].architecture.with_values(values)


def network(kind: str, vocab_size: int, **axes: Any) -> Network:
    """A network with random weights, biases included."""
    torch.manual_seed(1)
    network = build(architecture(kind, vocab_size, **axes), {"mask": 0}).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def language_model(
    kind: str = "gpt2", controls: tuple[str, ...] = (), tokenizer: Tokenizer | None = None, **axes: Any
) -> Model:
    """A model of a kind with a tokenizer, by default one of whole words."""
    tokenizer = tokenizer or words()
    a = architecture(kind, tokenizer.size, **axes)
    return make_model(Contents(a, network(kind, tokenizer.size, **axes), tokenizer, controls=controls))


@torch.no_grad()
def copy_gpt2(theirs: Any, ours: Network) -> None:
    """Give a network the weights of transformers' GPT2LMHeadModel."""
    from bertree.model.transformer import TransformerEncoder

    encoder, body = ours.encoder, theirs.transformer
    assert isinstance(encoder, TransformerEncoder)
    encoder.embeddings.tokens.weight.copy_(body.wte.weight)
    encoder.embeddings.positions.weight.copy_(body.wpe.weight)
    for layer, attention, ffn in zip(body.h, encoder.stack.attention, encoder.stack.ffn, strict=True):
        pairs: list[tuple[Any, Any]] = [
            (layer.attn.c_attn, attention.part.qkv),
            (layer.attn.c_proj, attention.part.out),
            (layer.mlp.c_fc, ffn.part.up),
            (layer.mlp.c_proj, ffn.part.down),
        ]
        for theirs_one, ours_one in pairs:
            ours_one.weight.copy_(theirs_one.weight.t())
            ours_one.bias.copy_(theirs_one.bias)
        for theirs_one, ours_one in ((layer.ln_1, attention.norm), (layer.ln_2, ffn.norm), (body.ln_f, encoder.norm)):
            ours_one.weight.copy_(theirs_one.weight)
            ours_one.bias.copy_(theirs_one.bias)
