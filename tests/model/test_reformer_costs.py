"""The costs of Reformer's options: operations, memory, and the options compared. Parameters: test_counts.py."""

import pytest
import torch

from bertree.batch import Batch
from bertree.model import cost
from bertree.model.architecture import Transformer
from bertree.model.network import build
from bertree.model.presets import preset
from tests.support.live_bytes import LiveBytes
from tests.support.shared import suite_has

PRESETS = ("reformer-enwik8", "reformer-base")


def architecture(name: str, **axes: object) -> Transformer:
    changed = preset(name).architecture.with_values(axes)
    assert isinstance(changed, Transformer)
    return changed


@pytest.mark.parametrize("name", PRESETS)
def test_the_size_that_is_said_is_that_of_encoder_and_head(name: str) -> None:
    counts = cost.parameters(architecture(name))
    assert f"{(counts.total + counts.mlm_head) / 1e6:.1f}M" in preset(name).published


def test_enwik8_has_the_published_shape() -> None:
    a = architecture("reformer-enwik8")
    names = {"chunked": "local", "lsh": "lsh"}
    layers = ["local", "local", "lsh", "local"] * 3
    assert [names[kind] for kind in a.attention_kinds] == layers
    assert (a.layers, a.width, a.heads, a.head_size, a.ffn_width, a.vocab_size) == (12, 1024, 8, 128, 4096, 258)
    assert (a.max_positions, a.causal, a.output_width) == (65536, True, 2048)


def test_operations_of_hashed_attention_do_not_grow_with_the_length() -> None:
    a = architecture("reformer-base")
    flops = {n: cost.forward_flops(a, n) for n in cost.long_lengths(a)}
    assert max(flops.values()) < 1.01 * min(flops.values())
    full = architecture("reformer-base", attention="full")
    assert cost.forward_flops(full, 65536) > 10 * flops[65536]


def test_operations_by_hand() -> None:
    a = architecture("reformer-base", attention="lsh", layers=2)
    inner, h, f = 768, 768, 3072
    products = 2 * h * inner + inner * h + 2 * h * f  # queries and values; output; feed-forward
    for length, keys, axes in (
        (64, 2 * 64, 1),  # one chunk: it sees itself
        (128, 2 * 2 * 64, 2),  # 2 rounds, 2 chunks, 4 buckets
        (8192, 2 * 2 * 64, (16 + 16) // 2),  # 256 buckets in two factors
    ):
        expected = 2 * 2 * (products + 2 * keys * inner + 2 * axes * inner)
        assert cost.forward_flops(a, length) == expected
    fixed = architecture("reformer-base", attention="lsh", layers=2, buckets="32,64")
    more = cost.forward_flops(fixed, 8192) - cost.forward_flops(a, 8192)
    assert more == 2 * 2 * 2 * (16 + 32 - 16) * inner
    shared = architecture("reformer-base", attention="full", shared_qk=True)
    saved = cost.forward_flops(architecture("reformer-base", attention="full"), 512) - cost.forward_flops(shared, 512)
    assert saved == 2 * 12 * h * inner
    one_sided = architecture("bert-base", attention="local", look_ahead=False, window=5)
    seen = sum(min(place, 5) + 1 for place in range(40)) / 40
    rest = cost.forward_flops(architecture("bert-base"), 40) - 12 * 4 * 768 * 40
    assert cost.forward_flops(one_sided, 40) - rest == round(12 * 4 * 768 * seen)


def test_memory_does_not_grow_with_the_depth_of_reversible_layers() -> None:
    def activations(layers: int, **axes: object) -> int:
        a = architecture("reformer-base", layers=layers, **axes)
        costs = cost.costs(a)
        return max(costs.bytes_at_start(16384, 100, query_stream=False), costs.bytes_at_end(16384))

    assert activations(12) == activations(48)
    local = {"attention": "chunked"}
    assert activations(12, **local, ffn_chunk=0) == activations(48, **local, ffn_chunk=0) > activations(12, **local)
    assert activations(48, residual="pre-norm") > 3.5 * activations(12, residual="pre-norm")


def test_a_chunk_bounds_the_inner_states() -> None:
    axes = {"residual": "pre-norm", "dropout": 0.0}
    whole, chunked = architecture("reformer-base", ffn_chunk=0, **axes), architecture("reformer-base", **axes)
    inner = 4 * 3072

    def activations(a: Transformer, tokens: int) -> int:
        return cost.costs(a).bytes_at_start(tokens, 0, query_stream=False)

    assert activations(whole, 65536) - activations(chunked, 65536) == 12 * 65536 * inner - 4096 * inner * 3 // 2
    assert activations(chunked, 1024) < activations(whole, 1024)


def test_the_options_of_a_model_one_by_one() -> None:
    a = architecture("reformer-base")
    variants = cost.option_variants(a)
    names = ["lsh attention", "reversible layers", "feed-forward in chunks", "axial positions"]
    assert list(variants) == ["none of them", *names, "all of them"]
    assert variants["all of them"] == a
    axes = ("attention", "residual", "ffn_chunk", "positions")
    bare = {"attention": "full,full", "residual": "pre-norm", "ffn_chunk": 0, "positions": "learned"}
    assert {name: variants["none of them"].axes()[name] for name in axes} == bare
    for name, axis in zip(names, axes, strict=True):
        assert {n: variants[name].axes()[n] for n in axes} == bare | {axis: a.axes()[axis]}


@pytest.mark.parametrize(("name", "axes", "expected"), [
    ("bert-base", {}, []),
    ("bilstm", {}, []),
    (
        "reformer-enwik8",
        {},
        ["none of them", "lsh attention", "reversible layers", "feed-forward in chunks", "axial positions",
         "all of them", "as it is"],
    ),
    ("transformer-xl-base", {"ffn_chunk": 64}, ["none of them", "feed-forward in chunks"]),
    (
        "albert-base",
        {"residual": "reversible"},
        ["none of them", "lsh attention", "reversible layers", "feed-forward in chunks", "axial positions",
         "all of them", "as it is"],
    ),
])  # fmt: skip
def test_options_that_cannot_be_are_left_out(name: str, axes: dict[str, object], expected: list[str]) -> None:
    a = preset(name).architecture.with_values(axes)
    variants = cost.option_variants(a)
    assert list(variants) == expected
    assert all(variant.causal is a.causal for variant in variants.values())
    assert all(variant.longest_input == a.longest_input for variant in variants.values())


def test_long_lengths_are_those_that_can_be_read() -> None:
    assert cost.long_lengths(architecture("reformer-base"))[-1] == 65536
    assert cost.long_lengths(architecture("reformer-base", axial_shape="64,64")) == (1024, 2048, 4096)
    assert cost.long_lengths(preset("bert-base").architecture) == ()


def test_all_options_together_need_least() -> None:
    for name in PRESETS:
        variants = cost.option_variants(architecture(name))
        needed = {option: cost.training_bytes(variant, 1, 65536) for option, variant in variants.items()}
        assert min(needed.values()) == needed["all of them"]
        assert needed["reversible layers"] < needed["feed-forward in chunks"] < needed["none of them"]
        assert needed["axial positions"] < needed["none of them"]
        assert (
            cost.largest_batch(variants["all of them"], 65536, 24)
            > 0
            == cost.largest_batch(variants["none of them"], 65536, 24)
        )


MEASURED = [
    ("full", "pre-norm", 0), ("lsh", "reversible", 256), ("chunked", "pre-norm", 256),
    ("full", "reversible", 0), ("full", "pre-norm", 256), ("full", "reversible", 256),
    ("lsh", "pre-norm", 256), ("chunked", "reversible", 256),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("attention", "residual", "ffn_chunk"), suite_has(MEASURED[:2], MEASURED))
def test_the_most_bytes_alive_in_a_step_are_what_the_memory_model_says(
    attention: str, residual: str, ffn_chunk: int
) -> None:
    axes = {"layers": 3, "width": 128, "heads": 4, "vocab_size": 300, "axial_shape": "32,32", "dropout": 0.0}
    a = architecture("reformer-base", **axes, attention=attention, residual=residual, ffn_chunk=ffn_chunk)
    torch.manual_seed(0)
    network = build(a, {"mask": 0}).train()
    # Full attention on a CPU keeps scores, which a flash kernel does not: of short texts they are few.
    length = 32 if attention == "full" else 512
    batch, rate = Batch.pack(torch.randint(5, 300, (2048 // length, length)).tolist()), 0.15
    chosen = torch.randperm(2048)[: round(rate * 2048)]
    with LiveBytes() as live:
        with torch.autocast("cpu", torch.bfloat16):
            loss = network.mask_loss(network(batch), chosen, batch.ids[chosen])
        loss.backward()
    counts = cost.parameters(a)
    others = 12 * (counts.total + counts.mlm_head)  # weights and moments, which the step does not make
    assert 0.9 < (cost.training_bytes(a, 2048 // length, length, rate) - others) / live.most < 1.1
