"""Reversible layers: their gradients against those of plain autograd, what they keep, and how they are compiled."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.errors import UserError
from bertree.model.architecture import Transformer
from bertree.model.kernels.chunks.order import bucket_order
from bertree.model.layers import attention_kinds, stack
from bertree.model.layers.residual import Reversible
from bertree.model.network import build, build_encoder
from bertree.model.readout import Readout
from bertree.model.transformer import TransformerEncoder, unknown_component

BATCH = Batch.pack([[4, 9, 2, 33, 7, 8, 9], [5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])


def architecture(**axes: object) -> Transformer:
    small = {"vocab_size": 50, "width": 32, "heads": 2, "layers": 12, "residual": "reversible"}
    stack_of = Transformer(norm_eps=1e-5).with_values(small | axes)
    assert isinstance(stack_of, Transformer)
    return stack_of


def stack_of(**axes: object) -> TransformerEncoder:
    """In training mode, with every parameter random."""
    torch.manual_seed(0)
    encoder = build_encoder(architecture(**axes)).train()
    assert isinstance(encoder, TransformerEncoder)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return encoder


def plain(encoder: TransformerEncoder, batch: Batch = BATCH) -> Tensor:
    """The last states by plain autograd."""
    *_, last = encoder.states(batch)
    return last


Gradients = dict[str, Tensor]


def gradients(
    encoder: TransformerEncoder, states: Callable[[], Tensor], bf16: bool = False
) -> tuple[Tensor, Gradients]:
    encoder.zero_grad()
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        out = states()
    (out * torch.arange(out.numel()).sin().view_as(out)).sum().backward()
    return out.detach(), {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}


def difference(ours: Gradients, theirs: Gradients) -> float:
    """Norm of the difference, relative."""
    assert ours.keys() == theirs.keys()
    left, right = (torch.cat([tensor[name].flatten() for name in theirs]).double() for tensor in (ours, theirs))
    return float((left - right).norm() / right.norm())


@pytest.mark.parametrize("axes", [
    {}, {"dropout": 0.0, "attention_dropout": 0.0}, {"sharing": "all"}, {"sharing": "all", "groups": 3},
    {"positions": "rotary", "ffn": "gated", "norm": "rms", "attention": "full,local"}, {"ffn_chunk": 6},
    {"positions": "relative", "shared_position_bias": True}, {"attention": "causal", "final_norm": False},
], ids=str)  # fmt: skip
def test_gradients_are_those_of_plain_autograd(axes: dict[str, object]) -> None:
    encoder = stack_of(**axes)
    states, theirs = gradients(encoder, lambda: plain(encoder))
    again, ours = gradients(encoder, lambda: encoder(BATCH))
    assert torch.equal(again, states)
    assert len(ours) >= len(list(encoder.stack.parameters()))
    assert difference(ours, theirs) < 1e-5


def test_streams_are_those_of_the_formula() -> None:
    encoder = stack_of(layers=2, ffn_chunk=6).eval()
    left = right = encoder.embeddings(BATCH)
    for attention, ffn in zip(encoder.stack.attention, encoder.stack.ffn, strict=True):
        left = left + attention.part(attention.norm(right), BATCH)
        right = right + ffn.part(ffn.norm(left), BATCH)
    assert encoder.norm is not None
    assert torch.allclose(encoder(BATCH), encoder.norm(torch.cat([left, right], -1)), atol=1e-6)
    with torch.no_grad():
        assert torch.equal(encoder(BATCH), plain(encoder))


def test_random_numbers_go_on_as_without_a_backward_pass() -> None:
    encoder = stack_of(layers=2)
    torch.manual_seed(5)
    out = encoder(BATCH)
    expected = torch.get_rng_state()
    out.sum().backward()
    assert torch.equal(torch.get_rng_state(), expected)


def test_gradients_accumulate_and_shared_blocks_add_theirs() -> None:
    encoder = stack_of(sharing="all", dropout=0.0, attention_dropout=0.0)
    _, once = gradients(encoder, lambda: encoder(BATCH))
    out = encoder(BATCH)
    (out * torch.arange(out.numel()).sin().view_as(out)).sum().backward()
    assert difference({n: p.grad for n, p in encoder.named_parameters() if p.grad is not None}, once) == pytest.approx(
        1
    )


def test_frozen_parts_get_no_gradient() -> None:
    encoder = stack_of(layers=4)
    encoder.embeddings.requires_grad_(False)
    encoder.stack.attention[1].requires_grad_(False)
    _, theirs = gradients(encoder, lambda: plain(encoder))
    _, ours = gradients(encoder, lambda: encoder(BATCH))
    assert not any(name.startswith(("embeddings", "stack.attention.1.")) for name in ours)
    assert difference(ours, theirs) < 1e-5
    network = build(architecture(layers=2), {"token": 3}, Readout(frozen=True)).train()
    network.class_logits("token", network(BATCH), BATCH).sum().backward()
    assert all(p.grad is None for p in network.encoder.parameters())


def test_weights_that_changed_before_the_backward_pass_are_noticed() -> None:
    encoder = stack_of(layers=2)
    out = encoder(BATCH)
    with torch.no_grad():
        encoder.stack.ffn[0].part.up.weight.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_streams_stay_in_float32_under_autocast() -> None:
    """Rounded to bfloat16 they could not be computed back; sums of gradients in float32 differ a little."""
    encoder = stack_of(layers=24)
    seen: list[torch.dtype] = []
    encoder.stack.ffn[3].norm.register_forward_pre_hook(lambda module, args: seen.append(args[0].dtype))
    states, theirs = gradients(encoder, lambda: plain(encoder), bf16=True)
    again, ours = gradients(encoder, lambda: encoder(BATCH), bf16=True)
    assert seen == [torch.float32] * 3  # of plain autograd, forward, and once more in the backward pass
    assert torch.equal(again, states)
    assert difference(ours, theirs) < 1e-3


def test_added_layers_keep_no_activations() -> None:
    """The forward pass drops what autograd keeps in its blocks; plain layers keep megabytes."""
    small, large = peak_bytes(2), peak_bytes(10)
    assert large - small < 0.02 * (peak_bytes(10, residual="pre-norm") - peak_bytes(2, residual="pre-norm"))


def peak_bytes(layers: int, **axes: object) -> int:
    """Most bytes of tensors, beside weights and their gradients, that are alive during a step."""
    encoder = stack_of(layers=layers, **axes)
    batch = Batch.pack([[5] * 128, [7] * 100])
    fixed = sum(p.numel() * p.element_size() for p in encoder.stack.parameters())
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        encoder(batch).sum().backward()
    now = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most - fixed


def test_hashed_attention_sees_the_same_buckets_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs computed back from states a million times larger are so far off that tokens would change their bucket."""
    encoder = stack_of(layers=3, attention="lsh", hashes=4, lsh_chunk_length=8, max_positions=256)
    seen: list[Tensor] = []
    order = bucket_order

    def watched(rings: Any, buckets: Tensor, *more: Any) -> Any:
        seen.append(buckets)
        return order(rings, buckets, *more)

    monkeypatch.setattr(attention_kinds, "bucket_order", watched)
    with torch.no_grad():
        for block in encoder.stack.ffn:
            block.part.down.weight.mul_(1e6)
    out = encoder(Batch.pack([torch.randint(50, (256,)).tolist()]))
    out.sum().backward()
    assert len(seen) == 6
    assert all(torch.equal(first, again) for first, again in zip(seen[:3], reversed(seen[3:]), strict=True))


def test_states_of_layers_have_gradients_too() -> None:
    """Read layer by layer, as for distillation, the streams are those of plain autograd."""
    encoder = stack_of(layers=4)
    for recomputes in (False, True):
        encoder.recompute(recomputes)
        _, ours = gradients(encoder, lambda: torch.cat(list(encoder.states(BATCH))[1:]))
        assert ours.keys() == {name for name, _ in encoder.named_parameters() if not name.startswith("pooler")}
    encoder.recompute(True)
    _, theirs = gradients(encoder, lambda: plain(encoder))
    _, ours = gradients(encoder, lambda: encoder(BATCH))
    assert difference(ours, theirs) < 1e-5


@pytest.mark.proof  # tests/train/test_feed.py compiles a step
def test_a_compiled_step_has_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "COMPILATION", {"backend": "eager", "dynamic": False})
    encoder = stack_of(layers=2)
    states, theirs = gradients(encoder, lambda: encoder(BATCH))
    compiled = torch.compile(lambda: encoder(BATCH), backend="eager", dynamic=False)
    for _ in range(2):
        again, ours = gradients(encoder, compiled)
        assert torch.equal(again, states)
        assert difference(ours, theirs) < 1e-6


def test_code_that_knows_other_residuals_refuses_this_one() -> None:
    assert unknown_component(stack_of(layers=1)) == "encoder.stack has the residual connection Reversible"


@pytest.mark.parametrize(("axes", "message"), [
    ({"positions": "relative", "memory": 8, "attention": "causal"}, "memory: a reversible residual keeps no hidden"),
    ({"positions": "relative", "query_stream": True}, "query_stream: needs residual = post-norm or pre-norm"),
])  # fmt: skip
def test_what_has_no_meaning_is_refused(axes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(architecture(), **axes)
    assert not architecture().replayable


def test_a_connection_starts_both_streams_with_the_embeddings() -> None:
    left, right = Reversible().open(torch.ones(2, 3, dtype=torch.float64))
    assert left is right
    assert left.dtype == torch.float64
