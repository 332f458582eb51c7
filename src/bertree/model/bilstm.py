"""A bidirectional LSTM over a packed batch, without padding.

PyTorch's packed sequences lie step by step: the first tokens of all sequences, then all second ones, the longest
sequence first. Our stream lies sequence by sequence, so a permutation leads from one to the other. It runs in the
precision of its weights whatever autocast says, since errors add up along a text; that costs speed on a GPU.

Shape letters: t tokens, s sequences, w width of what goes in, u width of one direction.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertree.batch import Batch
from bertree.model.architecture import Architecture
from bertree.model.embeddings import Embeddings
from bertree.model.encoder import Encoder
from bertree.model.init import initialise
from bertree.model.stack import Stack


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


class LstmStack(Stack):
    """Layers of an LSTM from both ends, each reading what the one before it says of every token."""

    def __init__(self, layers: Sequence[BiLstm], dropout: float) -> None:
        super().__init__((), (), [(depth, depth) for depth in range(len(layers))])
        self.layers = nn.ModuleList(layers)
        self.dropout = nn.Dropout(dropout)  # between them; the embeddings have their own

    def forward(self, x_te: Tensor, batch: Batch) -> Iterator[Tensor]:
        """What was read up to each token after each layer. Nothing is computed twice: an LSTM keeps what it needs."""
        for depth, layer in enumerate(self.layers):
            x_te = layer(x_te if depth == 0 else self.dropout(x_te), batch)
            yield x_te


class LstmEncoder(Encoder):
    """Embeddings and LSTMs from both ends, after Tang et al. 2019. What stands for a text is what each direction says
    once it has read all of it.

    `compares`: the two texts of a pair are read apart, each as if it were alone, and u and v, what they come to, stand
    for the pair as [u, v, u * v, |u - v|]; no word of one sees the other. v of a single text is 0.
    """

    stack: LstmStack

    def __init__(self, embeddings: Embeddings, stack: LstmStack, compares: bool) -> None:
        super().__init__(embeddings, stack, None, None)
        self.compares = compares

    def states(self, batch: Batch) -> Iterator[Tensor]:
        """What the first layer reads (t x e), and what each layer says (t x h)."""
        return super().states(batch.split_pairs() if self.compares else batch)

    def forward(self, batch: Batch) -> Tensor:
        """What was read up to each token, from the left and from the right (t x h)."""
        return super().forward(batch.split_pairs() if self.compares else batch)

    def whole(self, hidden_th: Tensor, batch: Batch) -> Tensor:
        """What stands for each sequence (s x h, or s x 4h where pairs are compared)."""
        last = self.stack.layers[-1]
        assert isinstance(last, BiLstm)
        if not self.compares:
            return last.ends(hidden_th, batch)
        texts = batch.split_pairs()
        ends_nh = last.ends(hidden_th, texts).masked_fill((texts.lengths == 0)[:, None], 0.0)
        u_sh, v_sh = ends_nh.unflatten(0, (-1, 2)).unbind(1)
        return torch.cat([u_sh, v_sh, u_sh * v_sh, (u_sh - v_sh).abs()], -1)


def _bilstm(a: Architecture) -> LstmEncoder:
    embeddings = Embeddings(
        tokens=nn.Embedding(a.vocab_size, a.embedding_width),
        positions=None,
        position_offset=0,
        segments=None,
        norm=nn.LayerNorm(a.embedding_width, eps=a.norm_eps) if a.embedding_norm else None,
        dropout=a.dropout,
        projection=None,
    )
    widths = [a.embedding_width] + [a.width] * (a.layers - 1)
    stack = LstmStack([BiLstm(width, a.width // 2) for width in widths], a.dropout)
    encoder = LstmEncoder(embeddings, stack, a.sequence_head == "compare")
    initialise(encoder, a.init_std)  # the LSTMs keep PyTorch's own, which follow their width
    return encoder
