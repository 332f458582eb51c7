"""Parameters: to the unit against transformers, within a million of the papers, and what we build."""

from typing import Any

import pytest
import torch
import transformers

from bertree.errors import UserError
from bertree.interop.huggingface.config import config_from_architecture, family_of_architecture
from bertree.model import cost
from bertree.model.architecture import Transformer, parse_override
from bertree.model.layers.basic import without_weights
from bertree.model.network import build
from bertree.model.presets import PRESETS, preset
from tests.support.batches import axes_of
from tests.support.shared import suite_has

MILLION = 1_000_000


POINTS = {name: point.architecture for name, point in PRESETS.items()} | {
    "pre-norm albert": preset("albert-base").architecture.with_values({"residual": "pre-norm"}),
    "pre-norm, normed embeddings": Transformer().with_values({"residual": "pre-norm", "embedding_norm": True}),
    "post-norm, plain embeddings": Transformer(embedding_norm=False),
    "deep bilstm": preset("bilstm").architecture.with_values({"layers": 3, "embedding_norm": True}),
}


@pytest.mark.parametrize("name", suite_has(list(POINTS)[::3], POINTS))
def test_the_arithmetic_counts_what_is_built(name: str) -> None:
    a = POINTS[name]
    with without_weights():
        network = build(a, a.default_heads)
    counts = cost.parameters(a)

    def count(module: torch.nn.Module | None) -> int:
        return sum(p.numel() for p in module.parameters()) if module is not None else 0

    assert counts.embeddings == count(network.encoder.embeddings)
    start = getattr(network.encoder, "query_start", None)
    others = count(getattr(network.encoder, "norm", None)) + (0 if start is None else start.numel())
    readers = [getattr(network.encoder, name, None) for name in ("stack", "forward_reader", "backward_reader")]
    assert counts.encoder == sum(map(count, readers)) + others
    assert counts.pooler == count(getattr(network.encoder, "pooler", None))
    assert counts.mlm_head == count(network.heads)
    assert counts.total == count(network.encoder)


def representable(name: str) -> bool:
    if name.startswith("transformer-xl"):  # transformers 5 has none: see tests/interop/test_transformer_xl.py
        return False
    try:
        family_of_architecture(preset(name).architecture)
    except UserError:
        return False
    return True


REPRESENTABLE = [name for name in PRESETS if representable(name)]


@pytest.mark.parametrize("name", suite_has(REPRESENTABLE[::3], REPRESENTABLE))
def test_counts_equal_transformers(name: str) -> None:
    a = axes_of(preset(name))
    family = family_of_architecture(a)
    config = transformers.AutoConfig.for_model(**config_from_architecture(a, family, None))
    with without_weights():
        bare = transformers.AutoModel.from_config(config)
        predicts = a.causal or a.query_stream  # rather than fills in
        kind = transformers.AutoModelForCausalLM if predicts else transformers.AutoModelForMaskedLM
        with_head = kind.from_config(config)
    counts = cost.parameters(a)
    assert sum(p.numel() for p in bare.parameters()) == counts.total
    # transformers' masked models have no pooler; their tied output matrix is one tensor
    with_head.tie_weights()
    assert len({id(p) for p in with_head.parameters()}) == len(list(with_head.parameters()))
    assert sum(p.numel() for p in with_head.parameters()) == counts.total - counts.pooler + counts.mlm_head


# What the papers print, in millions. They count BERT and the unshared cells without the pooler, ALBERT with it.
PUBLISHED = {
    "bert-base": 108, "bert-large": 334, "albert-base": 12, "albert-large": 18, "albert-xlarge": 59,
    "albert-base-e64-none": 87, "albert-base-e128-none": 89, "albert-base-e256-none": 93, "albert-base-e768-none": 108,
    "albert-base-e64-all": 10, "albert-base-e128-all": 12, "albert-base-e256-all": 16, "albert-base-e768-all": 31,
    "albert-base-e768-attention": 83, "albert-base-e768-ffn": 57,
    "albert-base-e128-attention": 64, "albert-base-e128-ffn": 38,
    "roberta-base": 125, "roberta-large": 355, "distilbert-base": 66, "distilroberta": 82,
    "gpt1": 117, "gpt2": 124, "transformer-xl-enwik8-12": 41, "transformer-xl-enwik8-24": 277,
    "transformer-xl-base": 151,
}  # fmt: skip


@pytest.mark.parametrize(("name", "millions"), PUBLISHED.items())
def test_counts_are_the_papers(name: str, millions: int) -> None:
    counts = cost.parameters(preset(name).architecture)
    without_pooler = name in ("bert-base", "bert-large") or name.endswith("-none")
    total = counts.total - (counts.pooler if without_pooler else 0)
    assert abs(total - millions * MILLION) < MILLION


def test_the_large_ones() -> None:
    assert abs(cost.parameters(preset("bert-xlarge").architecture).total / (1270 * MILLION) - 1) < 0.01
    assert cost.parameters(preset("albert-xxlarge").architecture).total == 222_595_584
    assert "222.6M" in preset("albert-xxlarge").published
    assert cost.parameters(preset("megatron-bert").architecture).total == 333_640_704
    assert "333.6M" in preset("megatron-bert").published
    for name in ("xlnet-base", "xlnet-large"):
        counts = cost.parameters(preset(name).architecture)
        assert f"{(counts.total + counts.mlm_head) / MILLION:.1f}M" in preset(name).published


def test_operations_of_a_query_stream_and_of_a_memory() -> None:
    a = preset("xlnet-base").architecture
    h, layers, length, head = 768, 12, 512, 2 * 768 * 32000
    row = 2 * layers * (2 * h * h + 2 * h * 4 * h + 3 * length * h)  # query and output, feed-forward, three products
    assert cost.forward_flops(a, length) == row + 2 * layers * 2 * h * h  # keys and values of content rows alone
    both = cost.forward_flops(a, length) + (row + head) / 6
    assert cost.training_flops(a, length) == round(3 * both)
    masked = cost.training_flops(a, length, 0.15, query_stream=False)
    assert masked == round(3 * (cost.forward_flops(a, length) + 0.15 * head))
    remembering = a.with_values({"memory": 384})
    more = 2 * layers * (2 * h * h * 384 / length + 3 * 384 * h)
    assert cost.forward_flops(remembering, length) == cost.forward_flops(a, length) + round(more)
    assert cost.training_bytes(a, 8, length) > cost.training_bytes(a, 8, length, 1 / 6, query_stream=False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"width": 100, "heads": 12}, "12 heads cannot divide a width of 100"),
        ({"embedding_width": 64, "embedding_projection": False}, "embedding_projection must be true"),
        ({"layers": 0}, "at least 1"),
        ({"sharing": "some"}, "unknown value 'some'"),
        ({"sharing": "all", "groups": 99}, "99 groups do not fit 12 layers"),
        ({"groups": 2}, "no meaning"),
        ({"dropout": 1.0}, "must lie in"),
        ({"activation": "gelu_new"}, "did you mean 'gelu'"),
        ({"residual": "prenorm"}, "did you mean 'pre-norm'"),
        ({"residual_init": "small"}, "residual_init: unknown value 'small'"),
    ],
)
def test_impossible_points_are_refused_with_the_reason(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        Transformer().with_values(changes)


def test_a_change_brings_what_it_implies() -> None:
    a: Any = Transformer().with_values({"width": 512, "heads": 8})
    assert (a.embedding_width, a.ffn_width, a.embedding_projection) == (512, 2048, False)
    albert: Any = preset("albert-base").architecture.with_values({"embedding_width": 768})
    assert albert.embedding_projection is False
    pre: Any = Transformer().with_values({"residual": "pre-norm"})
    assert (pre.embedding_norm, pre.residual_init) == (False, "scaled")
    assert pre.with_values({"residual": "post-norm"}) == Transformer()
    axes = {"residual": "pre-norm", "embedding_norm": True, "residual_init": "plain"}
    assert Transformer().with_values(axes).differences(Transformer()) == {"residual": ("post-norm", "pre-norm")}
    assert Transformer().with_values(axes).with_values({"residual": "pre-norm"}).embedding_norm  # nothing changed
    assert parse_override("layers=6") == ("layers", 6)
    assert parse_override("pooler=false") == ("pooler", False)
    for wrong, reason in (("layers", "axis=value"), ("layer=6", "did you mean 'layers'"), ("layers=x", "whole number")):
        with pytest.raises(UserError, match=reason):
            parse_override(wrong)


def test_sharing_plans_and_groups() -> None:
    a = Transformer(layers=6, sharing="all", groups=3)
    assert a.sharing_indices("attention") == a.sharing_indices("ffn") == (0, 0, 1, 1, 2, 2)
    half = Transformer(layers=4, sharing="attention")
    assert half.sharing_indices("attention") == (0, 0, 0, 0)
    assert half.sharing_indices("ffn") == (0, 1, 2, 3)


def test_memory_and_batches_are_consistent() -> None:
    a = preset("bert-base").architecture
    for length in cost.LENGTHS:
        fits = cost.largest_batch(a, length, 12)
        room = 12 * cost.GIB * (1 - cost.RESERVE)
        assert cost.training_bytes(a, fits, length) <= room < cost.training_bytes(a, fits + 1, length)
    assert cost.largest_batch(preset("bert-xlarge").architecture, 512, 12) == 0


@pytest.mark.parametrize("residual", ["post-norm", "pre-norm"])
@pytest.mark.parametrize("embedding_norm", [True, False])
def test_kept_activations_are_what_the_memory_model_says(residual: str, embedding_norm: bool) -> None:
    """Sum of the distinct tensors autograd keeps for one batch, in fp32 terms, against the model's list."""
    from bertree.batch import Batch

    a = Transformer(vocab_size=50, width=64, heads=4, ffn_width=256, embedding_width=64, layers=3, pooler=False,
                     dropout=0.0, attention_dropout=0.0, residual=residual, embedding_norm=embedding_norm)  # fmt: skip
    network = build(a)
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = Batch.pack([[1] * 16] * 32)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        out = network(batch)
    # In fp32 there are no half-precision copies: inputs of the linears are the norms' outputs, 4 bytes an element.
    h, f = a.width, a.ffn_width
    layer = 4 * (h + 3 * h + h + a.heads) + 4 * (h + 2 * f) + 2 * (4 * h + 8)
    once = (embedding_norm + (residual == "pre-norm")) * (4 * h + 8)  # before the layers, after the layers
    expected = 512 * (a.layers * layer + once)
    # What autocast keeps in half precision: the inputs of the products, and the stream that the norms read.
    half = a.layers * (2 * (h + 3 * h + h) + 2 * (h + 2 * f) + 2 * 2 * h) + (residual == "pre-norm") * 2 * h
    assert 512 * (cost.costs(a).activation_bytes() + half) == expected
    assert out.shape == (512, 64)
    assert abs(sum(kept.values()) / expected - 1) < 0.02
