"""Attention in a network: dropout, empty sequences, compilation."""

import pytest
import torch

from bertree.batch import Batch
from bertree.model.kernels.layout import Layout
from bertree.model.kernels.table import attend_fused
from bertree.model.masks import Full
from bertree.model.network import Network, build
from bertree.model.presets import preset

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def test_dropout_on_probabilities_is_real_and_only_in_training() -> None:
    qkv, layout = torch.randn(15, 3, 2, 8), Layout.of(Batch.pack([[1] * 6, [1] * 9]), Full())
    left, right = (attend_fused(qkv, layout, 0.5) for _ in range(2))
    assert not torch.equal(left, right)
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


COMPILED = [("albert-base-e128-attention", "full", 2), ("bert-tiny", "causal", 1)]


@pytest.mark.proof  # tests/train/test_feed.py compiles a step, test_compiled_parts.py layers
@pytest.mark.parametrize(("name", "attention", "layers"), COMPILED)
def test_compiles_without_graph_breaks_or_recompilation_storms(name: str, attention: str, layers: int) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "width": 32, "heads": 2, "layers": layers, "attention_dropout": 0.0, "dropout": 0.0}
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
