"""Attention of Reformer as a part of a layer: hashed, over chunks of the text, and with shared queries and keys."""

import copy
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from bertree.batch import Batch, Continuation
from bertree.model.architecture import Transformer
from bertree.model.kernels.chunks.order import ChunkSettings
from bertree.model.kernels.layout import Layout
from bertree.model.kernels.table import attend
from bertree.model.layers.attention import Attention
from bertree.model.layers.attention_kinds import (
    ChunkedAttention,
    LshAttention,
    SharedQueryKeyAttention,
    attend_to_earlier,
    build_attention,
)
from bertree.model.masks import CausalButSelf, FullButSelf
from bertree.model.network import Network, build
from tests.support.chunks import definition, hashed, unit_keys
from tests.support.shared import suite_has

LENGTHS = [5, 40, 1, 23, 64]
AXES = {
    "vocab_size": 60,
    "width": 16,
    "heads": 2,
    "layers": 2,
    "max_positions": 128,
    "segments": 0,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "lsh_chunk_length": 8,
    "chunk_length": 8,
    "init_std": 0.3,
}


def architecture(**axes: object) -> Transformer:
    point = Transformer().with_values(AXES | axes)
    assert isinstance(point, Transformer)
    return point


def first_part(**axes: object) -> Attention:
    torch.manual_seed(0)
    return build_attention(architecture(**axes))[0].double()


def packed(lengths: list[int]) -> Batch:
    return Batch.pack([torch.randint(5, 60, (length,)).tolist() for length in lengths])


@pytest.mark.parametrize("duplicates", ["once", "each"])
@pytest.mark.parametrize("look_ahead", [True, False])
@pytest.mark.parametrize("buckets", ["0", "4,6"])
def test_hashed_attention_is_that_of_its_definition(buckets: str, look_ahead: bool, duplicates: str) -> None:
    axes = {"attention": "lsh", "buckets": buckets, "look_ahead": look_ahead, "hashes": 3, "duplicates": duplicates}
    part = first_part(**axes).eval()
    assert type(part) is LshAttention
    x = torch.randn(sum(LENGTHS), 16, dtype=torch.float64)
    q, v = part.qv(x).unflatten(-1, (2, 2, 8)).unbind(1)
    settings = ChunkSettings(8, 1, 0, not look_ahead, True, duplicates == "once")
    _, output = hashed(q, LENGTHS, settings, 3, None if buckets == "0" else (4, 6))
    expected = part.out(definition(q, unit_keys(q), v, LENGTHS, output, settings).flatten(1))
    torch.testing.assert_close(part(x, packed(LENGTHS)), expected)


def test_rotations_are_new_at_every_step_of_training_and_repeat_with_the_random_state() -> None:
    part, x, batch = first_part(attention="lsh").train(), torch.randn(133, 16, dtype=torch.float64), packed(LENGTHS)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, second = part(x, batch), part(x, batch)
    torch.set_rng_state(state)
    assert not torch.equal(first, second)
    assert torch.equal(part(x, batch), first)


def test_rotations_outside_of_training_depend_on_seed_and_layer_alone() -> None:
    x, batch = torch.randn(133, 16, dtype=torch.float64), packed(LENGTHS)
    part = first_part(attention="lsh").eval()
    output = part(x, batch)
    assert torch.equal(part(x, batch), output)
    for size, (start, end) in zip(LENGTHS, pairwise([0, *torch.tensor(LENGTHS).cumsum(0).tolist()]), strict=True):
        torch.testing.assert_close(part(x[start:end], packed([size])), output[start:end])
    assert not torch.allclose(first_part(attention="lsh", hash_seed=1).eval()(x, batch), output)
    torch.manual_seed(0)
    _, other = build_attention(architecture(attention="lsh"))
    other.double().load_state_dict(part.state_dict())
    assert not torch.allclose(other.eval()(x, batch), output)


@pytest.mark.slow
def test_more_rounds_outside_of_training_are_nearer_to_exact_attention() -> None:
    batch = packed([512])
    errors = []
    for rounds in (1, 2, 8, 64):
        part = first_part(attention="lsh", eval_hashes=rounds).eval()
        exact = first_part(attention="full", shared_qk=True).eval()
        exact.load_state_dict(part.state_dict())
        torch.manual_seed(1)
        x = torch.randn(512, 16, dtype=torch.float64) * 2
        errors.append(float((part(x, batch) - exact(x, batch)).detach().norm()))
        assert part.train().rotations((2,), x)[0].shape[2] == 1
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 5


@pytest.mark.parametrize("attention", ["lsh", "chunked"])
def test_attention_dropout_is_of_training_alone(attention: str) -> None:
    part, x, batch = (
        first_part(attention=attention, attention_dropout=0.5),
        torch.randn(133, 16).double(),
        packed(LENGTHS),
    )
    plain = first_part(attention=attention)
    assert torch.equal(part.eval()(x, batch), plain.eval()(x, batch))
    torch.manual_seed(1)
    dropped = part.train()(x, batch)
    torch.manual_seed(1)
    assert not torch.allclose(dropped, plain.train()(x, batch))


def _dense(part: nn.Module, x: Tensor, lengths: list[int], causal: bool) -> Tensor:
    """Attention with shared queries and keys, sequence by sequence."""
    rows = []
    for part_x in x.split(lengths):
        q, v = part.qv(part_x).unflatten(-1, (2, 2, 8)).unbind(1)
        scores = torch.einsum("qnd,knd->nqk", q, unit_keys(q)) / 8**0.5
        others = ~torch.eye(len(part_x), dtype=torch.bool)
        others = others.tril() if causal else others
        seen = others | (~others.any(-1, keepdim=True) & torch.eye(len(part_x), dtype=torch.bool))
        probabilities = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        rows.append(part.out(torch.einsum("nqk,knd->qnd", probabilities, v).flatten(1)))
    return torch.cat(rows)


@pytest.mark.parametrize("dropout", [0.0, 1e-12])  # dropout takes the padded kernel
@pytest.mark.parametrize("kind", ["full", "causal"])
def test_shared_queries_and_keys_equal_the_dense_definition(kind: str, dropout: float) -> None:
    part = first_part(attention=kind, shared_qk=True, attention_dropout=dropout).train()
    assert type(part) is SharedQueryKeyAttention
    grads = []
    for work in (lambda x: part(x, packed(LENGTHS)), lambda x: _dense(part, x, LENGTHS, kind == "causal")):
        torch.manual_seed(2)
        x = torch.randn(133, 16, dtype=torch.float64).requires_grad_()
        out = work(x)
        part.zero_grad()
        (out * torch.linspace(1, 2, out.numel()).view_as(out)).sum().backward()
        grads.append([out.detach(), x.grad, part.qv.weight.grad])
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_attention_to_earlier_tokens_by_a_causal_kernel_is_the_same() -> None:
    lengths = [5, 0, 40, 1, 23]
    q, k, v = torch.randn(3, sum(lengths), 2, 8, dtype=torch.float64)
    batch = packed(lengths)
    expected = attend(q, k, v, Layout.of(batch, CausalButSelf()), 0.0, None)
    torch.testing.assert_close(attend_to_earlier(q, k, v, batch), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_attention_to_earlier_tokens_in_half_precision_on_cuda() -> None:
    lengths = [300, 0, 40, 1, 23]
    q, k, v = torch.randn(3, sum(lengths), 2, 64)
    batch = packed(lengths)
    expected = attend(q, k, v, Layout.of(batch, CausalButSelf()))
    on_device = (x.to("cuda", torch.bfloat16) for x in (q, k, v))
    output = attend_to_earlier(*on_device, batch.to("cuda")).float().cpu()
    assert (output - expected).norm() < 0.02 * expected.norm()


def test_masks_without_self() -> None:
    places = torch.arange(3)
    assert FullButSelf().sees(places, places).tolist() == [
        [False, True, True],
        [True, False, True],
        [True, True, False],
    ]
    assert CausalButSelf().sees(places, places).tolist() == [
        [True, False, False],
        [True, False, False],
        [True, True, False],
    ]
    assert Layout.of(packed([3]), CausalButSelf()).mask.looks_ahead is False


def layer_of(**axes: object) -> Network:
    torch.manual_seed(0)
    return build(architecture(**axes)).eval()


def decoded(network: Network, rows: list[list[int]], prompts: list[int]) -> list[Tensor]:
    """Hidden states, the prompts at once and then token by token."""
    state = network.encoder.start_cache(len(rows), 70)
    batch = Batch.pack([row[:prompt] for row, prompt in zip(rows, prompts, strict=True)])
    hidden, state = network.encode(batch, state)
    states_of = [[states] for states in batch.split(hidden)]
    for place in range(max(map(len, rows))):
        lanes = [lane for lane, row in enumerate(rows) if prompts[lane] <= place < len(row)]
        if not lanes:
            continue
        batch = Batch.pack([[rows[lane][place]] for lane in lanes])
        continuation = Continuation(torch.tensor(lanes), torch.zeros(len(lanes), dtype=torch.bool), len(rows))
        batch = replace(batch, positions=torch.full((len(lanes),), place), continuation=continuation)
        hidden, state = network.encode(batch, state)
        for lane, states in zip(lanes, batch.split(hidden), strict=True):
            states_of[lane].append(states)
    return [torch.cat(states) for states in states_of]


ROWS = [torch.arange(length).mul(7).add(length).remainder(50).add(5).tolist() for length in (30, 61, 9)]


@torch.no_grad()
@pytest.mark.parametrize(
    "axes",
    [
        {"attention": "chunked"},
        {"attention": "chunked", "chunks_before": 0},
        {"attention": "chunked", "chunks_before": 2, "positions": "rotary"},
        {"attention": "local", "window": 7},
        {"attention": "chunked,local"},
    ],
)
def test_decoding_equals_reading_the_whole_text(axes: dict[str, object]) -> None:
    network = layer_of(look_ahead=False, **axes)
    whole = Batch.pack(ROWS)
    for states, expected in zip(decoded(network, ROWS, [4, 20, 1]), whole.split(network(whole)), strict=True):
        assert (states - expected).abs().max() < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_decoding_attends_exactly_where_reading_hashes(positions: str) -> None:
    exact = layer_of(attention="causal", shared_qk=True, positions=positions)
    lsh = layer_of(attention="lsh", look_ahead=False, positions=positions)
    lsh.load_state_dict(exact.state_dict())
    whole = Batch.pack(ROWS)
    # Prompts of a chunk or less see all of themselves.
    for states, expected in zip(decoded(lsh, ROWS, [4, 8, 1]), whole.split(exact(whole)), strict=True):
        assert (states - expected).abs().max() < 1e-5
    assert (lsh(whole) - exact(whole)).abs().max() > 1e-3
    for states, expected in zip(decoded(exact, ROWS, [4, 20, 1]), whole.split(exact(whole)), strict=True):
        assert (states - expected).abs().max() < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("attention", ["chunked", "local", "causal"])
def test_nothing_is_seen_of_what_follows(attention: str) -> None:
    network = layer_of(attention=attention, look_ahead=attention == "causal", shared_qk=attention == "causal")
    assert network.encoder.causal
    text = ROWS[1]
    whole = network(Batch.pack([text]))
    for length in (1, 8, 9, 40):
        assert (network(Batch.pack([text[:length]])) - whole[:length]).abs().max() < 1e-5


def test_a_hashed_token_gets_no_gradient_from_those_after_it() -> None:
    part = first_part(attention="lsh", look_ahead=False, hashes=2).eval()
    x = torch.randn(50, 16, dtype=torch.float64, requires_grad=True)
    part(x, packed([50]))[20].sum().backward()
    assert not x.grad[21:].any()
    assert x.grad[:20].any()


@pytest.mark.parametrize("attention", suite_has(["lsh"], ["lsh", "chunked"]))
def test_a_compiled_layer_is_the_same(attention: str) -> None:
    part = first_part(attention=attention, hashes=2).train()
    x, batch = torch.randn(133, 16, dtype=torch.float64), packed(LENGTHS)
    torch.manual_seed(3)
    expected = part(x, batch)
    torch.manual_seed(3)
    compiled = torch.compile(part, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, batch), expected)


def test_reversible_hashed_layers_have_the_gradients_of_plain_ones() -> None:
    axes = {"attention": "chunked,lsh", "residual": "reversible", "dropout": 0.1, "attention_dropout": 0.1, "hashes": 2}
    torch.manual_seed(0)
    network, batch = build(architecture(**axes)).double().train(), packed([70, 30])
    other, grads = copy.deepcopy(network), []
    for model in (network, other):
        torch.manual_seed(4)
        if model is network:
            states = model.encoder(batch)
        else:
            *_, states = model.encoder.states(batch)
        (states * torch.linspace(1, 2, states.numel()).view_as(states)).sum().backward()
        grads.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert len(grads[0]) == len(grads[1]) > 10
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)


def test_chunked_layers_have_the_projections_of_plain_ones() -> None:
    part = first_part(attention="chunked")
    assert type(part) is ChunkedAttention
    assert [name for name, _ in part.named_parameters()] == [name for name, _ in first_part().named_parameters()]
