"""A bidirectional LSTM over a packed batch, without padding.

PyTorch's packed sequences lie step by step: the first tokens of all sequences, then all second ones, the longest
sequence first. Our stream lies sequence by sequence, so a permutation leads from one to the other. It runs in the
precision of its weights whatever autocast says, since errors add up along a text; that costs speed on a GPU.

Shape letters: t tokens, s sequences, w width of what goes in, u width of one direction.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertree.batch import Batch


class BiLstm(nn.Module):
    """Reads each sequence from both ends; `dropout` is between the layers."""

    def __init__(self, width_in: int, width: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = 2 * width  # of what comes out
        self.lstm = nn.LSTM(width_in, width, layers, dropout=dropout if layers > 1 else 0.0, bidirectional=True)

    def forward(self, x_tw: Tensor, batch: Batch) -> Tensor:
        """Vectors of the stream -> what was read up to each token, from the left and from the right (t x 2u)."""
        x_tw = x_tw.to(next(self.lstm.parameters()).dtype)
        if not len(x_tw):
            return x_tw.new_zeros(0, self.width)
        order_t, sizes = _by_step(batch)
        with torch.autocast(x_tw.device.type, enabled=False):
            read, _ = self.lstm(PackedSequence(x_tw[order_t], sizes))
        back_t = torch.empty_like(order_t).scatter_(0, order_t, torch.arange(len(order_t), device=order_t.device))
        out_tu: Tensor = read.data[back_t]
        return out_tu

    def ends(self, out_tu: Tensor, batch: Batch) -> Tensor:
        """What each direction says once it has read a whole sequence (s x 2u): the left one at the last token,
        the right one at the first."""
        from_left, from_right = out_tu.chunk(2, -1)
        return torch.cat([from_left[batch.last], from_right[batch.first]], -1)


def _by_step(batch: Batch) -> tuple[Tensor, Tensor]:
    """The order of the stream's tokens that lays them step by step, and how many each step has (on the host)."""
    lengths = batch.lengths
    rank_s = torch.empty_like(lengths, dtype=torch.int64)
    longest_first = lengths.argsort(descending=True, stable=True)
    rank_s[longest_first] = torch.arange(len(lengths), device=lengths.device)
    rank_t = rank_s.repeat_interleave(lengths, output_size=len(batch.ids))
    return (batch.positions * len(lengths) + rank_t).argsort(), batch.positions.bincount().cpu()
