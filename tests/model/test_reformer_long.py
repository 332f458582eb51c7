"""Reformers that read thousands of tokens at once: on the CPU, and in half precision on a GPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.network import build_encoder
from bertree.model.transformer import TransformerEncoder
from bertree.train.device_setup import set_deterministic

LENGTHS = [4096, 7, 1500, 64]
AXES = {
    "vocab_size": 60,
    "width": 32,
    "heads": 2,
    "layers": 2,
    "ffn_width": 64,
    "ffn_chunk": 1000,
    "attention": "chunked,lsh",
    "hashes": 2,
    "positions": "axial",
    "axial_shape": "64,64",
    "residual": "reversible",
    "pooler": False,
    "segments": 0,
    "attention_dropout": 0.0,
}
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def reformer(**axes: object) -> TransformerEncoder:
    torch.manual_seed(0)
    encoder = build_encoder(Transformer().with_values(AXES | axes))
    assert isinstance(encoder, TransformerEncoder)
    return encoder


def packed(lengths: list[int]) -> Batch:
    draw = torch.Generator().manual_seed(1)
    return Batch.pack([torch.randint(5, 60, (length,), generator=draw).tolist() for length in lengths])


def gradients(encoder: TransformerEncoder, states: Callable[[], Tensor], bf16: bool = False) -> Tensor:
    """The gradients of all parameters, in one row, after a step with the same random numbers."""
    encoder.zero_grad()
    torch.manual_seed(3)
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        out = states()
    (out * torch.arange(out.numel(), device=out.device).sin().view_as(out)).sum().backward()
    return torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None])


def plain(encoder: TransformerEncoder, batch: Batch) -> Tensor:
    """The last states by plain autograd."""
    *_, last = encoder.states(batch)
    return last


def difference(left: Tensor, right: Tensor) -> float:
    """Norm of the difference, relative."""
    return float((left - right).double().norm() / right.double().norm())


@torch.no_grad()
def test_a_text_of_4096_tokens_is_read_the_same_alone_and_among_others() -> None:
    encoder, batch = reformer().eval(), packed(LENGTHS)
    together = encoder(batch).split(LENGTHS)
    for text, states in zip(batch.ids.split(LENGTHS), together, strict=True):
        torch.testing.assert_close(encoder(Batch.pack([text.tolist()])), states, rtol=1e-4, atol=1e-5)


def test_gradients_of_4096_tokens_are_those_of_plain_autograd() -> None:
    encoder, batch = reformer(dropout=0.1).train(), packed(LENGTHS)
    theirs = gradients(encoder, lambda: plain(encoder, batch))
    assert difference(gradients(encoder, lambda: encoder(batch)), theirs) < 1e-5


@cuda
def test_reversible_gradients_are_those_of_plain_autograd_on_cuda() -> None:
    """Exact in float32, and close in half precision: states of the two streams are float32 in both."""
    encoder, batch = reformer(dropout=0.1, layers=12).cuda().train(), packed(LENGTHS).to("cuda")
    for bf16, most in ((False, 1e-5), (True, 1e-2)):
        theirs = gradients(encoder, lambda: plain(encoder, batch), bf16)
        assert difference(gradients(encoder, lambda: encoder(batch), bf16), theirs) < most


@cuda
@pytest.mark.parametrize("axes", [{}, {"residual": "pre-norm"}, {"look_ahead": False, "chunks_after": 0}], ids=str)
def test_gradients_in_half_precision_are_the_same_every_time_on_cuda(axes: dict[str, object]) -> None:
    set_deterministic(True)
    try:
        encoder, batch = reformer(dropout=0.1, **axes).cuda().train(), packed(LENGTHS * 4).to("cuda")
        first, *others = (gradients(encoder, lambda: encoder(batch), bf16=True) for _ in range(4))
    finally:
        set_deterministic(False)
    assert first.isfinite().all()
    assert all(torch.equal(first, other) for other in others)


@cuda
@pytest.mark.parametrize("attention", ["chunked", "lsh"])
@torch.no_grad()
def test_half_precision_is_close_to_float32_on_cuda(attention: str) -> None:
    """In half precision a few tokens fall into other buckets."""
    encoder, batch = reformer(attention=attention, eval_hashes=4).eval(), packed(LENGTHS)
    expected = encoder(batch)
    encoder, batch = encoder.cuda(), batch.to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        output = encoder(batch).float().cpu()
    assert difference(output, expected) < (0.02 if attention == "chunked" else 0.1)
