"""Dropout, residual sum and norm in one kernel each way; without a GPU the operators are plain PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.kernels import triton_add_norm
from bertree.model.kernels.triton_add_norm import STEPS, add_norm, kept
from bertree.model.network import build_encoder
from tests.support.interpreter import DEVICE, INTERPRETED, needs_triton

DROPPED, EPS = round(0.1 * STEPS), 1e-5


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if INTERPRETED and "kernel" in request.node.name:
        monkeypatch.setattr(triton_add_norm, "_has_kernels", lambda x: True)


def inputs_of(tokens: int, width: int, dtype: torch.dtype, biased: bool = True) -> list[Tensor | None]:
    """x, f, a bias, and the parameters of a norm."""
    draw = torch.Generator().manual_seed(width)
    x, f = (torch.randn(tokens, width, generator=draw).to(DEVICE, dtype) for _ in range(2))
    bias, weight, norm_bias = (torch.randn(width, generator=draw).to(DEVICE) for _ in range(3))
    return [x, f, bias if biased else None, weight, norm_bias]


def defined(seed: Tensor, tensors: list[Tensor | None]) -> tuple[Tensor, list[Tensor]]:
    """The definition in float64, and its inputs."""
    inputs = [tensor.detach().double().requires_grad_() for tensor in tensors if tensor is not None]
    x, f, *bias, weight, norm_bias = inputs
    mask = kept(seed.cpu(), *x.shape, DROPPED).to(DEVICE)
    dropped = (sum(bias, f)) * mask / (1 - DROPPED / STEPS)
    return F.layer_norm(x + dropped, x.shape[1:], weight, norm_bias, EPS), inputs


@pytest.mark.slow
def test_operators_are_known_to_compilers_and_have_the_right_gradient() -> None:
    x, f = (torch.randn(5, 128, dtype=torch.float64, requires_grad=True) for _ in range(2))
    bias, weight, norm_bias = (torch.randn(128, dtype=torch.float64, requires_grad=True) for _ in range(3))
    seed, carrier = torch.tensor([1 << 40 | 7]), torch.zeros_like(x, requires_grad=True)
    for tensors in ((x, None, f, bias), (x, carrier, f, None)):
        single = [None if t is None else t.detach().float().requires_grad_() for t in (*tensors, weight, norm_bias)]
        torch.library.opcheck(triton_add_norm._add_norm, (*single, seed, EPS, DROPPED))
    inputs = (x, f, bias, weight, norm_bias)

    def compute(x: Tensor, f: Tensor, *rest: Tensor) -> Tensor:
        out: Tensor = triton_add_norm._add_norm(x, None, f, *rest, seed, EPS, DROPPED)[0]
        return out

    assert torch.autograd.gradcheck(compute, inputs, fast_mode=True)


@needs_triton
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("tokens", "width"), [(37, 768), (8, 128), (3, 1024)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_follow_the_definition(tokens: int, width: int, biased: bool, dtype: torch.dtype) -> None:
    tensors, seed = inputs_of(tokens, width, dtype, biased), torch.tensor([(1 << 62) + 12345], device=DEVICE)
    x, f, *rest = tensors
    assert x is not None
    expected, inputs = defined(seed, tensors)
    out, _, stats = triton_add_norm._add_norm(x, None, f, *rest, seed, EPS, DROPPED)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)
    left, right = torch.randn_like(x), torch.randn_like(x)
    wanted = torch.autograd.grad(expected, inputs, left.double() + right.double())
    output = triton_add_norm._add_norm_backward(left, right, x, f, rest[0], rest[1], seed, stats, DROPPED)
    d_x, d_f, *d_bias, d_weight, d_norm_bias = wanted
    for mine, theirs in zip(output[:2], (d_x, d_f), strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=2 * tolerance, rtol=tolerance)
    for mine, theirs in zip(output[2], (d_weight, d_norm_bias, *d_bias), strict=False):
        torch.testing.assert_close(mine.double(), theirs, atol=2e-4, rtol=2e-4)


@needs_triton
def test_kernels_compute_the_same_bytes_every_time_and_drop_by_the_seed() -> None:
    x, f, *rest = inputs_of(50, 256, torch.float32)
    results = []
    for seed in (5, 5, 6):
        key = torch.tensor([seed], device=DEVICE)
        out, _, stats = triton_add_norm._add_norm(x, None, f, *rest, key, EPS, DROPPED)
        results.append([out, *triton_add_norm._add_norm_backward(x, None, x, f, *rest[:2], key, stats, DROPPED)])
    assert all(torch.equal(left, right) for left, right in zip(*results[:2], strict=True))
    assert not torch.equal(results[0][0], results[2][0])


@needs_triton
def test_a_chain_of_kernels_has_the_gradient_of_the_definition_by_both_ways() -> None:
    """The second sum's gradient reaches the first by its carrier alone, and what reads the states adds to it."""
    x, f, bias, weight, norm_bias = (t.requires_grad_() for t in inputs_of(21, 128, torch.float32) if t is not None)
    torch.manual_seed(3)
    first = add_norm(x, None, f, bias, weight, norm_bias, EPS, 0.1)
    second = add_norm(first.states, first.carrier, first.states * 0.5, bias, weight, norm_bias, EPS, 0.1)
    (second.states.sin().sum() + first.states.cos().sum()).backward()
    torch.manual_seed(3)
    seeds = [torch.randint(0, 2**63 - 1, (1,), device=DEVICE) for _ in range(2)]
    params = [t.detach().double().requires_grad_() for t in (x, f, bias, weight, norm_bias)]

    def layer(seed: Tensor, x: Tensor, f: Tensor) -> Tensor:
        mask = kept(seed.cpu(), *x.shape, DROPPED).to(DEVICE)
        return F.layer_norm(x + (f + params[2]) * mask / (1 - DROPPED / STEPS), x.shape[1:], params[3], params[4], EPS)

    output = layer(seeds[0], params[0], params[1])
    two = layer(seeds[1], output, output * 0.5)
    (two.sin().sum() + output.cos().sum()).backward()
    for mine, theirs in zip((x, f, bias, weight, norm_bias), params, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad.double(), theirs.grad, atol=1e-3, rtol=1e-4)


def test_the_share_that_is_dropped_is_the_one_asked_for_everywhere_in_a_row() -> None:
    mask = kept(torch.tensor([99]), 4000, 1024, DROPPED).double()
    assert abs(mask.mean() - 0.9) < 6e-4  # 4 standard deviations
    assert (mask.mean(0) - 0.9).abs().max() < 0.024  # 5 of a column's
    apart = mask - mask.mean()
    for shift in (1, 127, 128, 129, 512):  # neighbours, and columns that share a drawing
        assert (apart[:, shift:] * apart[:, :-shift]).mean().abs() < 5 * 0.09 / 2000 / 0.95
    assert (apart[1:] * apart[:-1]).mean().abs() < 5 * 0.09 / 2000


def test_what_cannot_be_cut_into_parts_or_has_nothing_to_drop_is_left_to_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not triton_add_norm.usable(torch.zeros(2, 768), 0.1), "there is no GPU"
    monkeypatch.setattr(triton_add_norm, "_has_kernels", lambda x: True)
    assert triton_add_norm.usable(torch.zeros(2, 768), 0.1)
    assert not triton_add_norm.usable(torch.zeros(2, 700), 0.1)
    assert not triton_add_norm.usable(torch.zeros(2, 4096), 0.1)
    assert not triton_add_norm.usable(torch.zeros(2, 768), 0.0)


BATCH = Batch.pack([[4, 9, 2, 33, 7], [5, 6, 7]])


@pytest.mark.parametrize("recompute", [False, True])
def test_a_stack_of_layers_is_the_same_either_way(monkeypatch: pytest.MonkeyPatch, recompute: bool) -> None:
    """With next to nothing dropped; the bias of each part is added by the operator."""
    small = {"vocab_size": 50, "width": 128, "heads": 2, "ffn_width": 64, "layers": 3, "attention_dropout": 0.0}
    output = []
    for usable in (False, True):
        monkeypatch.setattr(triton_add_norm, "usable", lambda x, dropout, usable=usable: usable)
        torch.manual_seed(0)
        encoder = build_encoder(Transformer(dropout=1e-5).with_values(small))
        encoder.recompute(recompute)
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        states = list(encoder.states(BATCH))
        sum((state.sin() * (depth + 1)).sum() for depth, state in enumerate(states)).backward()
        output.append([*states, *(p.grad for p in encoder.parameters() if p.grad is not None)])
        assert ("AddNorm" in str(states[-1].grad_fn) or "add_norm" in str(states[-1].grad_fn)) == usable
    assert len(output[0]) == len(output[1]) > 30
    for left, right in zip(*output, strict=True):
        torch.testing.assert_close(left, right, atol=1e-3 * float(left.detach().abs().max()), rtol=1e-3)


def test_a_compiled_stack_adds_up_no_gradients_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of a residual sum and of what reads it come to the operator apart: none is as large as the states."""
    from functorch.compile import make_boxed_func  # imports PyTorch's compiler
    from torch._dynamo.backends.common import aot_autograd

    monkeypatch.setattr(triton_add_norm, "usable", lambda x, dropout: True)
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    small = {"vocab_size": 50, "width": 128, "heads": 2, "ffn_width": 64, "layers": 2, "attention_dropout": 0.0}
    encoder = build_encoder(Transformer(dropout=0.1).with_values(small))
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    torch.compile(encoder, backend=backend)(BATCH).sin().sum().backward()
    _, back = graphs
    called = [node for node in back.graph.nodes if "add_norm_backward" in str(node.target)]
    assert len(called) == 4
    assert [node.args[1] is None for node in called] == [True, False, False, False]
    sums = [node for node in back.graph.nodes if node.target is torch.ops.aten.add.Tensor]
    large = [node for node in sums if node.meta["val"].shape == (8, 128)]
    assert len(large) <= 1, "of the embeddings alone, which the first block reads twice"
    assert all(p.grad is not None for name, p in encoder.named_parameters() if "pooler" not in name)
