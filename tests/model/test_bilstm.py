"""The packed LSTM reads each sequence as if it were alone."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from bertree.batch import Batch
from bertree.model.recurrent import BidirectionalLstm
from tests.support.quick import example_count

IN, WIDTH = 6, 4


def network_of(layers: int, dropout: float = 0.0) -> BidirectionalLstm:
    torch.manual_seed(0)
    return BidirectionalLstm(IN, WIDTH, layers, dropout)


@example_count(25)
@given(lengths=st.lists(st.integers(0, 7), max_size=7), seed=st.integers(0, 99), layers=st.integers(1, 2))
def test_each_sequence_is_read_as_if_alone(lengths: list[int], seed: int, layers: int) -> None:
    lstm, batch = network_of(layers), Batch.pack([[1] * n for n in lengths])
    x = torch.randn(sum(lengths), IN, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    out = lstm(x, batch)
    assert out.shape == (sum(lengths), 2 * WIDTH)
    alone = [lstm.lstm(part)[0] for part in x.split(lengths) if len(part)]
    expected = torch.cat([*alone, out.new_zeros(0, 2 * WIDTH)])
    assert torch.allclose(out, expected, atol=1e-6)
    if len(x):
        weights = torch.randn_like(out)
        grads = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (out, expected)]
        assert torch.allclose(*grads, atol=1e-6)
        ends = lstm.final_states(out, batch)
        for row, part in ((row, part) for row, part in enumerate(out.split(lengths)) if len(part)):
            assert torch.equal(ends[row], torch.cat([part[-1, :WIDTH], part[0, WIDTH:]]))


def test_dropout_lies_between_the_layers_and_precision_is_the_weights() -> None:
    batch, x = Batch.pack([[1, 2], [3]]), torch.randn(3, IN)
    for layers, differs in ((1, False), (2, True)):
        lstm = network_of(layers, dropout=0.5).train()
        assert torch.equal(lstm(x, batch), lstm(x, batch)) != differs
        lstm.eval()
        with torch.autocast("cpu", torch.bfloat16):
            half = lstm(x.bfloat16(), batch)
        assert half.dtype == torch.float32
        assert torch.equal(half, lstm(x.bfloat16().float(), batch))
