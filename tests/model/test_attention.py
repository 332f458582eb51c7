"""Every kernel computes the same attention, forward and backward, whatever the lengths and their order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertree.batch import Batch
from bertree.model.attention import KERNELS, choose
from bertree.model.network import Network, build
from bertree.model.presets import preset

HEADS, WIDTH = 2, 8
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def plain(q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, batch: Batch, causal: bool = False) -> Tensor:
    """Attention by its definition, one sequence at a time, in float64."""
    out = []
    for q, k, v in zip(*(batch.split(x.double()) for x in (q_tnd, k_tnd, v_tnd)), strict=True):
        scores = torch.einsum("qnd,knd->nqk", q, k) / q.shape[-1] ** 0.5
        if causal:
            scores = scores.masked_fill(torch.ones(len(q), len(q)).triu(1).bool(), -torch.inf)
        out.append(torch.einsum("nqk,knd->qnd", scores.softmax(-1), v))
    return torch.cat(out)


def streams(lengths: list[int], seed: int, **where: object) -> tuple[Batch, Tensor]:
    batch = Batch.pack([[1] * n for n in lengths])
    draw = torch.Generator().manual_seed(seed)
    return batch, torch.randn(sum(lengths), 3, HEADS, WIDTH, generator=draw)


@pytest.mark.parametrize("kernel", ["grouped", "padded"])
@pytest.mark.parametrize("causal", [False, True])
@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_kernels_follow_the_definition(kernel: str, causal: bool, lengths: list[int], seed: int) -> None:
    batch, qkv = streams(lengths, seed)
    results = []
    for attend in (lambda x: KERNELS[kernel](x, batch, 0.0, causal), lambda x: plain(*x.unbind(1), batch, causal)):
        leaf = qkv.clone().requires_grad_()
        out = attend(leaf)
        out.double().square().sum().backward()
        results.append((out, leaf.grad))
    (out, grad), (expected, expected_grad) = results
    assert (out - expected).abs().max() < 1e-6
    assert grad is not None
    assert expected_grad is not None
    assert (grad - expected_grad).abs().max() < 1e-5


def test_the_kernel_follows_device_precision_and_dropout() -> None:
    batch, qkv = streams([3], 0)
    assert choose(qkv, batch, 0.0) == "grouped"
    assert choose(qkv, batch, 0.1) == "padded"
    assert choose(qkv, batch, 0.0, causal=True) == "grouped"
    with pytest.raises(AssertionError, match="not causal"):
        KERNELS["short"](qkv, batch, 0.0, True)


def test_dropout_on_probabilities_is_real_and_only_in_training() -> None:
    batch, qkv = streams([6, 9], 0)
    torch.manual_seed(0)
    one, two = (KERNELS["padded"](qkv, batch, 0.5) for _ in range(2))
    assert not torch.equal(one, two)
    network = build(preset("bert-tiny").architecture)
    given_batch = Batch.pack([[5, 6, 7], [8, 9]])
    network.train()
    assert not torch.equal(network(given_batch), network(given_batch))
    network.eval()
    assert torch.equal(network(given_batch), network(given_batch))


def small(name: str = "bert-tiny") -> Network:
    torch.manual_seed(0)
    return build(
        preset(name).architecture.with_values({"vocab_size": 97, "attention_dropout": 0.0}), {"mask": 0}
    ).eval()


def test_zero_length_sequences_and_empty_batches_pass() -> None:
    network = small()
    assert network(Batch.pack([])).shape == (0, 128)
    with_hole, without = Batch.pack([[5, 6], [], [7]]), Batch.pack([[5, 6], [7]])
    assert torch.allclose(network(with_hole), network(without), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "attention"), [("bert-tiny", "full"), ("bert-tiny", "causal"), ("albert-base-e128-attention", "full")]
)
def test_compiles_without_graph_breaks_or_recompilation_storms(name: str, attention: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "width": 32, "heads": 2, "layers": 2, "attention_dropout": 0.0, "dropout": 0.0}
    network = build(preset(name).architecture.with_values(sizes | {"attention": attention}))
    compiled_times = torch._dynamo.utils.counters["stats"]
    compiled = torch.compile(network.encoder, fullgraph=True, dynamic=True, backend="aot_eager")
    before = compiled_times["unique_graphs"]
    for seed, lengths in enumerate(([4, 9, 2], [5, 5, 5, 1], [30], [2, 3, 4, 5, 6, 7], [17, 3], [8] * 9)):
        draw = torch.Generator().manual_seed(seed)
        batch = Batch.pack([torch.randint(1, 97, (n,), generator=draw).tolist() for n in lengths])
        network.zero_grad()
        expected = network(batch)
        expected.square().sum().backward()
        grad = network.encoder.embeddings.tokens.weight.grad.clone()
        network.zero_grad()
        out = compiled(batch)
        out.square().sum().backward()
        assert (out - expected).abs().max() < 1e-5
        assert (network.encoder.embeddings.tokens.weight.grad - grad).abs().max() < 1e-4
    assert compiled_times["unique_graphs"] - before <= 2


@cuda
@pytest.mark.parametrize(
    ("kernel", "causal"), [("short", False), ("blocks", False), ("varlen", False), ("varlen", True), ("padded", True)]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_kernels_follow_the_definition_on_cuda(kernel: str, causal: bool, dtype: torch.dtype) -> None:
    batch, qkv = streams([7, 64, 1, 0, 33, 7, 128], 3)
    qkv = qkv.repeat(1, 1, 1, 16 // WIDTH)  # the short kernel needs heads of 16 or wider
    on_gpu, batch_gpu = qkv.to("cuda", dtype).requires_grad_(), batch.to("cuda")
    assert choose(on_gpu, batch_gpu, 0.0) == "short"
    assert choose(on_gpu, batch_gpu, 0.0, causal=True) == "varlen"
    out = KERNELS[kernel](on_gpu, batch_gpu, 0.0, causal)
    out.float().square().sum().backward()
    leaf = on_gpu.detach().float().cpu().requires_grad_()
    expected = plain(*leaf.unbind(1), batch, causal)
    expected.square().sum().backward()
    assert (out.cpu() - expected).abs().max() < 2e-2
    assert (on_gpu.grad.cpu() - leaf.grad).abs().max() / leaf.grad.abs().max() < 2e-2


@cuda
def test_compiles_whole_on_cuda_and_stays_close_to_fp32() -> None:
    network, draw = small().cuda(), torch.Generator().manual_seed(1)
    compiled = torch.compile(network.encoder, fullgraph=True, dynamic=True)
    for lengths in ([40, 3, 17], [9, 9, 9, 100], [128] * 8):
        batch = Batch.pack([torch.randint(1, 97, (n,), generator=draw).tolist() for n in lengths]).to("cuda")
        with torch.no_grad():
            exact = network(batch)  # fp32: the padded kernel
            with torch.autocast("cuda", torch.bfloat16):
                assert (compiled(batch).float() - exact).abs().max() < 0.1
                assert (network(batch).float() - exact).abs().max() < 0.1
