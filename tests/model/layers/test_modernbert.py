"""Rotary positions, windows, gated feed-forward and norms without bias: one layer is transformers' ModernBERT layer.

Ours reads a packed batch of ragged lengths, theirs the same texts padded.
"""

import pytest
import torch
from torch import Tensor, nn
from transformers import ModernBertConfig
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask
from transformers.models.modernbert import modeling_modernbert as theirs

from bertree.batch import Batch
from bertree.model.layers.attention import Attention
from bertree.model.layers.basic import NORMS
from bertree.model.layers.feed_forward import GatedFeedForward
from bertree.model.layers.positions import RotaryPositions, TokenPositions
from bertree.model.layers.residual import Block, PreNorm
from bertree.model.layers.stack import Stack
from bertree.model.masks import Full, SlidingWindow

WIDTH, HEADS, INNER, REACH = 48, 3, 40, 4
LENGTHS = [5, 23, 1, 12, 30, 12]
GLOBAL, LOCAL = 160_000.0, 10_000.0
KINDS = {"full_attention": (GLOBAL, Full()), "sliding_attention": (LOCAL, SlidingWindow(REACH, REACH))}


def config(bias: bool = False) -> ModernBertConfig:
    return ModernBertConfig(
        vocab_size=50,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        intermediate_size=INNER,
        num_hidden_layers=3,
        global_attn_every_n_layers=2,
        local_attention=2 * REACH,
        global_rope_theta=GLOBAL,
        local_rope_theta=LOCAL,
        norm_bias=bias,
        attention_bias=bias,
        mlp_bias=bias,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
        attn_implementation="eager",
    )


def layer(kind: str, bias: bool = False) -> tuple[theirs.ModernBertEncoderLayer, theirs.ModernBertRotaryEmbedding]:
    settings = config(bias)
    index = next(i for i, other in enumerate(settings.layer_types) if other == kind and i > 0)  # layer 0 has no norm
    torch.manual_seed(0)
    peer = theirs.ModernBertEncoderLayer(settings, index).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return peer, theirs.ModernBertRotaryEmbedding(settings)


def stack(kind: str, peer: theirs.ModernBertEncoderLayer, bias: bool = False) -> Stack:
    """Our layer with the weights of theirs."""
    base, mask = KINDS[kind]
    rotary = RotaryPositions(WIDTH // HEADS, base)
    attention = Attention(WIDTH, HEADS, 0.0, mask, rotary, bias=bias)
    ffn = GatedFeedForward(WIDTH, INNER, "gelu", bias=bias)
    layers = Stack(
        [Block(attention, NORMS["layer"](WIDTH, 1e-5, bias), 0.0)],
        [Block(ffn, NORMS["layer"](WIDTH, 1e-5, bias), 0.0)],
        [(0, 0)],
        PreNorm(),
    )
    pairs: list[tuple[nn.Module, nn.Module]] = [
        (attention.qkv, peer.attn.Wqkv),
        (attention.out, peer.attn.Wo),
        (ffn.up, peer.mlp.Wi),
        (ffn.down, peer.mlp.Wo),
        (layers.attention[0].norm, peer.attn_norm),
        (layers.ffn[0].norm, peer.mlp_norm),
    ]
    for ours, other in pairs:
        ours.load_state_dict(other.state_dict())
    return layers.eval()


def padded(rows_th: Tensor) -> tuple[Tensor, Tensor]:
    """The stream as a rectangle, and where tokens are."""
    x = nn.utils.rnn.pad_sequence(list(rows_th.split(LENGTHS)), batch_first=True)
    real = torch.arange(x.shape[1]) < torch.tensor(LENGTHS)[:, None]
    return x, real


def their_inputs(kind: str, x: Tensor, real: Tensor, rotary: theirs.ModernBertRotaryEmbedding) -> dict[str, object]:
    make = create_bidirectional_mask if kind == "full_attention" else create_bidirectional_sliding_window_mask
    mask = make(config=config(), inputs_embeds=x, attention_mask=real.long())
    places = torch.arange(x.shape[1])[None]
    return {"attention_mask": mask, "position_embeddings": rotary(x, places, kind)}


def compare(ours: Tensor, x: Tensor, other: Tensor, y: Tensor, modules: list[tuple[nn.Module, nn.Module]]) -> None:
    """Outputs, gradients of the inputs and of every weight."""
    assert (ours - other).abs().max() < 1e-5
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(7))
    for out in (ours, other):
        (out * weights).mean().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert (x.grad - y.grad).abs().max() < 1e-5
    for mine, module_type in modules:
        for (name, p), q in zip(mine.named_parameters(), module_type.parameters(), strict=True):
            assert (p.grad - q.grad).abs().max() < 1e-5, name


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_modernberts(kind: str, bias: bool) -> None:
    peer, rotary = layer(kind, bias)
    model = stack(kind, peer, bias)
    x = torch.randn(sum(LENGTHS), WIDTH, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    (ours,) = model(x, Batch.pack([[1] * n for n in LENGTHS]))
    rectangle, real = padded(y)
    out = peer(rectangle, **their_inputs(kind, rectangle, real, rotary))
    attention, ffn = model.attention[0].part, model.ffn[0].part
    compare(
        ours, x, out[real], y,
        [(attention.qkv, peer.attn.Wqkv), (attention.out, peer.attn.Wo), (ffn.up, peer.mlp.Wi), (ffn.down, peer.mlp.Wo),
         (model.attention[0].norm, peer.attn_norm), (model.ffn[0].norm, peer.mlp_norm)],
    )  # fmt: skip


@pytest.mark.parametrize("training", [False, True])  # in training, dropout on probabilities takes the padded kernel
@pytest.mark.parametrize("kind", KINDS)
def test_attention_alone_is_modernberts(kind: str, training: bool) -> None:
    peer, rotary = layer(kind)
    attention = stack(kind, peer).attention[0].part.train(training)
    attention.dropout = 1e-12 if training else 0.0
    x = torch.randn(sum(LENGTHS), WIDTH, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    batch = Batch.pack([[1] * n for n in LENGTHS])
    ours = attention(x, batch, attention.positions.prepare(attention.token_positions(batch)))
    rectangle, real = padded(y)
    out, _ = peer.attn(rectangle, **their_inputs(kind, rectangle, real, rotary))
    compare(ours, x, out[real], y, [(attention.qkv, peer.attn.Wqkv), (attention.out, peer.attn.Wo)])


def test_local_and_global_layers_differ() -> None:
    """The window and the base are used: layers with the same weights give other states."""
    peer, _ = layer("full_attention")
    batch, x = Batch.pack([[1] * n for n in LENGTHS]), torch.randn(sum(LENGTHS), WIDTH)
    states = {}
    for base, mask in ((GLOBAL, Full()), (LOCAL, Full()), (GLOBAL, SlidingWindow(REACH, REACH))):
        model = stack("full_attention", peer)
        model.attention[0].part.mask, model.attention[0].part.positions.base = mask, base
        states[base, mask] = next(model(x, batch))
    state, *others = states.values()
    assert all((state - other).abs().max() > 1e-2 for other in others)


def test_scores_depend_on_distance_alone() -> None:
    rotary, draw = RotaryPositions(16, 100.0), torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 3, 16, generator=draw)
    none = torch.zeros(1, dtype=torch.int64)

    def score(left: int, right: int) -> Tensor:
        places = TokenPositions(torch.tensor([left]), torch.tensor([right]), 200, 200, none, none)
        return torch.mul(*rotary.change(q, k, rotary.prepare(places))[:2]).sum(-1)

    scores = [score(left, right) for left, right in ((7, 3), (104, 100), (4, 0), (4, 1))]
    assert (scores[0] - scores[1]).abs().max() < 1e-5
    assert (scores[0] - scores[2]).abs().max() < 1e-5
    assert (scores[0] - scores[3]).abs().max() > 1e-2
