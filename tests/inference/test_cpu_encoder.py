"""The form of an encoder that serves gives what the encoder gives, for every member of the family."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bertree
from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference import cpu_encoder, cpu_linear
from bertree.inference.cpu_encoder import AttentionBins, CpuRuntime, build_cpu_encoder, round_up
from bertree.inference.cpu_linear import EagerLinear, Int8Linear, linear_class
from bertree.model.architecture import Architecture
from bertree.model.layers.feed_forward import ACTIVATION
from bertree.model.masks import Causal
from bertree.model.network import Network, build
from bertree.model.presets import preset
from bertree.model.readout import Readout
from tests.support.later_axes import LATER
from tests.support.parts import UNKNOWN
from tests.support.quick import example_count

SMALL = {"vocab_size": 50, "width": 64, "heads": 4, "layers": 3, "ffn_width": 96}
MEMBERS: dict[str, Architecture] = {
    "bert": preset("bert-base").architecture.with_values(SMALL),
    "roberta": preset("roberta-base").architecture.with_values(SMALL),
    "albert": preset("albert-base").architecture.with_values(SMALL | {"embedding_width": 32}),
    "albert in groups": preset("albert-base").architecture.with_values(SMALL | {"groups": 2}),
    "attention shared": preset("albert-base").architecture.with_values(SMALL | {"sharing": "attention"}),
    "distilbert": preset("distilbert-base").architecture.with_values(SMALL),
    "pre-norm": preset("bert-base").architecture.with_values(SMALL | {"residual": "pre-norm"}),
    "relu": preset("bert-base").architecture.with_values(SMALL | {"activation": "relu"}),
    "silu": preset("bert-base").architecture.with_values(SMALL | {"activation": "silu"}),
    "chunks": preset("bert-base").architecture.with_values(SMALL | {"ffn_chunk": 7}),
    "chunks, pre-norm": preset("bert-base").architecture.with_values(SMALL | {"ffn_chunk": 9, "residual": "pre-norm"}),
}
needs_int8 = pytest.mark.skipif(linear_class(torch.int8) is None, reason="needs VNNI or AMX")


def network(a: Architecture, **options: object) -> Network:
    torch.manual_seed(0)
    network = build(a, **options).eval()
    with torch.no_grad():  # weights as large as trained ones, norms and biases that do something
        for name, p in network.named_parameters():
            p.copy_(torch.randn_like(p) * 0.15 + (1.0 if "norm.weight" in name else 0.0))
    return network


def batch(lengths: list[int], seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    ids = [torch.randint(50, (n,), generator=draw).tolist() for n in lengths]
    return Batch.pack(ids, [[0] * (n // 2) + [1] * (n - n // 2) for n in lengths])


@pytest.fixture(params=["packed", "plain"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The products of this CPU, and those of a CPU or a build of torch that has none of its operators."""
    if request.param == "plain":
        monkeypatch.setattr(cpu_linear, "_is_correct", lambda kind, dtype: False)
    return request.param


@pytest.mark.parametrize("member", MEMBERS)
def test_every_member(member: str, products: str) -> None:
    model = network(MEMBERS[member])
    engine = build_cpu_encoder(model.encoder)
    assert engine is not None
    assert isinstance(engine.blocks[0].qkv, EagerLinear) or products == "packed"
    for lengths in ([5], [3, 0, 7, 7, 31, 2], [40, 64, 65, 3], [130, 1, 1, 17]):
        inputs = batch(lengths)
        with torch.no_grad():
            torch.testing.assert_close(engine(inputs), model(inputs), atol=1e-5, rtol=1e-5)


def test_any_lengths() -> None:
    model = network(MEMBERS["bert"])
    engine = build_cpu_encoder(model.encoder)
    assert engine is not None

    @example_count(25)
    @given(lengths=st.lists(st.integers(0, 70), min_size=1, max_size=12), seed=st.integers(0, 99))
    def check(lengths: list[int], seed: int) -> None:
        inputs = batch(lengths, seed)
        with torch.no_grad():
            torch.testing.assert_close(engine(inputs), model(inputs), atol=1e-5, rtol=1e-5)

    check()


@example_count(50)
@given(lengths=st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_bins_hold_every_token_once_and_keep_sequences_apart(lengths: list[int]) -> None:
    tokens = sum(lengths)
    bins = AttentionBins.arrange(lengths, torch.zeros(round_up(tokens), 4))
    assert bins.tokens[bins.slots[:tokens]].tolist() == list(range(tokens))
    owner = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    seen = (bins.mask == 0).squeeze(1)
    for token in range(0, tokens, 7):
        at, column = divmod(int(bins.slots[token]), bins.width)
        others = at * bins.width + seen[at, column].nonzero().flatten()
        assert bins.tokens[others].tolist() == (owner == owner[token]).nonzero().flatten().tolist()


def test_without_the_attention_kernel_the_network_computes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_encoder, "has_flash_attention_for_cpu", lambda: False)
    model = network(MEMBERS["bert"])
    assert build_cpu_encoder(model.encoder) is None
    assert CpuRuntime().states_of(model) is model


# A program that embeds as on another CPU: what torch and oneDNN may use is set by their environment variables.
ELSEWHERE = """
import sys, numpy as np, torch, bertree
from bertree.inference.cpu_linear import linear_class
for precision in ("float32", "int8"):
    model = bertree.load("default", precision=precision)
    np.save(f"{sys.argv[1]}/{precision}.npy", model.embed(sys.argv[2:]))
    print(precision, model.precision, linear_class(torch.int8) is None)
"""
TEXTS = ["The ship went down in the storm.", "A vessel sank in bad weather.", "Bread."]


def test_a_cpu_without_wide_vectors_gives_the_same(tmp_path: Path) -> None:
    least = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "DNNL_DEFAULT_FPMATH_MODE": "STRICT"}
    command = [sys.executable, "-W", "ignore", "-c", ELSEWHERE, str(tmp_path), *TEXTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **least})
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [asked for asked, _, _ in lines] == ["float32", "int8"]
    for asked, computed, missing in lines:
        assert computed == ("float32" if missing == "True" else asked)
        here = bertree.load("default", precision=asked).embed(TEXTS)
        elsewhere = np.load(tmp_path / f"{asked}.npy")
        values = [vectors.astype(np.float64) for vectors in (here, elsewhere)]
        left, right = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in values)
        assert (left * right).sum(1).min() > (0.99999 if asked == "float32" else 0.99)


@pytest.mark.parametrize("member", ["bert", "albert", "pre-norm"])
def test_half_precision(member: str) -> None:
    model, inputs = network(MEMBERS[member]), batch([9, 4, 33])
    with torch.no_grad():
        wanted = model(inputs)
        half = build_cpu_encoder(model.to(torch.bfloat16).encoder)
        assert half is not None
        alike = torch.cosine_similarity(half(inputs).float(), wanted, -1)
    assert alike.min() > 0.998


@needs_int8
@pytest.mark.parametrize("member", MEMBERS)
def test_integers(member: str) -> None:
    model, inputs = network(MEMBERS[member]), batch([9, 4, 33])
    engine = build_cpu_encoder(model.encoder, int8=True)
    assert engine is not None
    with torch.no_grad():
        states, wanted = engine(inputs), model(inputs)
    assert not torch.equal(states, wanted)
    assert torch.cosine_similarity(states, wanted, -1).min() > 0.99


@needs_int8
def test_integers_of_a_token_do_not_depend_on_others() -> None:
    torch.manual_seed(0)
    product = Int8Linear(torch.nn.Linear(64, 32))
    x = torch.randn(40, 64)
    beside = torch.cat([x[:8], 1000 * torch.randn(32, 64)])
    assert torch.equal(product(x)[:8], product(beside)[:8])
    assert torch.isfinite(product(torch.zeros(3, 64))).all()


def test_shared_layers_are_packed_once() -> None:
    engine = build_cpu_encoder(network(MEMBERS["albert"]).encoder)
    assert engine is not None
    assert len({id(block.qkv) for block in engine.blocks}) == 1


def test_changed_weights_are_seen() -> None:
    model, inputs, runtime = network(MEMBERS["bert"]), batch([9, 4]), CpuRuntime()
    first = runtime.states_of(model)
    assert runtime.states_of(model) is first
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(inputs).sum().backward()
    optimizer.step()
    with torch.no_grad():
        torch.testing.assert_close(runtime.states_of(model)(inputs), model(inputs), atol=1e-5, rtol=1e-5)
        assert not torch.allclose(first(inputs), model(inputs), atol=1e-3)


@pytest.mark.parametrize(
    ("a", "readout"),
    [
        (MEMBERS["bert"].with_values({"attention": "causal"}), Readout()),
        (MEMBERS["bert"].with_values({"body": "bilstm"}), Readout()),
        (MEMBERS["bert"].with_values({"residual": "reversible"}), Readout()),
        (MEMBERS["bert"], Readout(layers="sum-all")),
    ],
)
def test_others_compute_as_they_are(a: Architecture, readout: Readout) -> None:
    model, inputs, runtime = network(a, readout=readout), batch([9, 4]), CpuRuntime()
    with torch.no_grad():
        assert torch.equal(runtime.states_of(model)(inputs), model(inputs))
    runtime.int8 = True
    with pytest.raises(UserError, match="int8: is for transformers"):
        runtime.states_of(model)


@pytest.mark.parametrize("point", LATER)
def test_axes_it_does_not_know_are_computed_by_the_modules(point: str) -> None:
    axes, reason = LATER[point]
    model, inputs, runtime = network(MEMBERS["bert"].with_values(axes)), batch([9, 4]), CpuRuntime()
    assert build_cpu_encoder(model.encoder) is None
    with torch.no_grad():
        assert torch.equal(runtime.states_of(model)(inputs), model(inputs))
    runtime.int8 = True
    with pytest.raises(UserError, match=f"int8: is for transformers.*{'' if 'mask' in reason else re.escape(reason)}"):
        runtime.states_of(model)


@pytest.mark.parametrize("axes", [{}, {"query_stream": False}])
def test_xlnet_is_computed_by_the_modules(axes: dict[str, object]) -> None:
    changed = network(preset("xlnet-base").architecture.with_values(SMALL | axes))
    inputs, runtime = batch([9, 4]), CpuRuntime()
    assert build_cpu_encoder(changed.encoder) is None
    with torch.no_grad():
        assert torch.equal(runtime.states_of(changed)(inputs), changed(inputs))
    runtime.int8 = True
    with pytest.raises(UserError, match=r"int8: is for transformers.*\(encoder.* has (a query stream|RelativePos)"):
        runtime.states_of(changed)


@pytest.mark.parametrize("change", UNKNOWN)
def test_unknown_parts_are_computed_by_their_own_code(change: str) -> None:
    """Put in after the fast form was built: the same weights, other states."""
    model, inputs, runtime = network(MEMBERS["bert"]), batch([9, 4]), CpuRuntime()
    with torch.no_grad():
        before = runtime.states_of(model)(inputs)
        put_in, reason = UNKNOWN[change]
        put_in(model.encoder)
        wanted = model(inputs)
        assert torch.equal(runtime.states_of(model)(inputs), wanted)
    assert not torch.allclose(before, wanted, atol=1e-2)
    assert build_cpu_encoder(model.encoder) is None
    runtime.int8 = True
    with pytest.raises(UserError, match=re.escape(reason)):
        runtime.states_of(model)


@pytest.mark.parametrize("change", ["plan", "heads", "causal", "activation"])
def test_known_parts_with_other_settings(change: str) -> None:
    model, inputs, runtime = network(MEMBERS["bert"]), batch([9, 4]), CpuRuntime()
    with torch.no_grad():
        before = runtime.states_of(model)(inputs)
        if change == "plan":
            model.encoder.stack.sharing = model.encoder.stack.sharing[:2]
        for block, ffn in zip(model.encoder.stack.attention, model.encoder.stack.ffn, strict=True):
            if change == "heads":
                block.part.heads, block.part.head_width = 2, 32
            if change == "causal":
                block.part.mask = Causal()
            if change == "activation":
                ffn.part.activation = ACTIVATION["relu"]
        wanted = model(inputs)
        assert not torch.allclose(before, wanted, atol=1e-2)
        torch.testing.assert_close(runtime.states_of(model)(inputs), wanted, atol=1e-5, rtol=1e-5)
