"""A bidirectional LSTM over a packed batch, without padding, and the encoder made of it.

PyTorch's packed sequences lie step by step: the first tokens of all sequences, then all second tokens, the longest
sequence first. Our stream lies sequence by sequence, so a permutation leads from one to the other. The LSTM runs in
the precision of its weights even under autocast, since errors add up along a text; that costs speed on a GPU.

Shape letters: t tokens, s sequences, w width of the input, u width of the output (both directions), e embedding width,
h width, n texts (two per sequence).
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertree.batch import Batch
from bertree.model.architecture import BiLstm
from bertree.model.encoder import Encoder
from bertree.model.init import initialize
from bertree.model.layers.embeddings import Embeddings, TokenEmbeddings


class BidirectionalLstm(nn.Module):
    """A bidirectional LSTM. `dropout` is applied between its layers; `width` is that of one direction."""

    def __init__(self, width_in: int, width: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = 2 * width  # of the output
        self.lstm = nn.LSTM(width_in, width, layers, dropout=dropout if layers > 1 else 0.0, bidirectional=True)

    def forward(self, x_tw: Tensor, batch: Batch) -> Tensor:
        """Return the outputs of both directions at each token (t x u)."""
        x_tw = x_tw.to(next(self.lstm.parameters()).dtype)
        if not len(x_tw):
            return x_tw.new_zeros(0, self.width)
        order_t, sizes = step_order(batch, batch.positions), batch.positions.bincount().cpu()
        with torch.autocast(x_tw.device.type, enabled=False):
            packed, _ = self.lstm(PackedSequence(x_tw[order_t], sizes))
        out_tu: Tensor = packed.data[inverse_order(order_t)]
        return out_tu

    def final_states(self, out_tu: Tensor, batch: Batch) -> Tensor:
        """Return each direction's output after its last step (s x u): forward at the last token, backward at the
        first."""
        forward_tu, backward_tu = out_tu.chunk(2, -1)
        return torch.cat([forward_tu[batch.last], backward_tu[batch.first]], -1)


def step_order(batch: Batch, positions_t: Tensor) -> Tensor:
    """Return the order of the stream's tokens step by step, given the step of each token in its sequence (t)."""
    lengths = batch.lengths
    rank_s = torch.empty_like(lengths, dtype=torch.int64)
    longest_first = lengths.argsort(descending=True, stable=True)
    rank_s[longest_first] = torch.arange(len(lengths), device=lengths.device)
    rank_t = rank_s.repeat_interleave(lengths, output_size=len(batch.ids))
    return (positions_t * len(lengths) + rank_t).argsort()


def inverse_order(order_t: Tensor) -> Tensor:
    """Return the order that leads back."""
    return torch.empty_like(order_t).scatter_(0, order_t, torch.arange(len(order_t), device=order_t.device))


class BiLstmStack(nn.Module):
    """Bidirectional LSTM layers, each on the outputs of the one before it."""

    def __init__(self, layers: Sequence[BidirectionalLstm], dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.dropout = nn.Dropout(dropout)  # between layers; the embeddings have their own

    def forward(self, x_te: Tensor, batch: Batch) -> Iterator[Tensor]:
        """Yield the outputs of each layer."""
        for depth, layer in enumerate(self.layers):
            x_te = layer(x_te if depth == 0 else self.dropout(x_te), batch)
            yield x_te


class BiLstmEncoder(Encoder):
    """Embeddings and bidirectional LSTMs, after Tang et al. 2019. A text is represented by both directions' final
    states.

    `compare_pairs`: the two texts of a pair are encoded apart, each as if it were alone, and their representations u
    and v are combined to [u, v, u * v, |u - v|]; no word of one text sees the other. v of a single text is 0.
    """

    def __init__(self, embeddings: Embeddings, stack: BiLstmStack, width: int, compare_pairs: bool) -> None:
        super().__init__(embeddings, width, len(stack.layers))
        self.stack = stack
        self.compare_pairs = compare_pairs

    def states(self, batch: Batch) -> Iterator[Tensor]:
        """Yield the embeddings (t x e), then each layer's outputs (t x h)."""
        texts = batch.split_pairs() if self.compare_pairs else batch
        x_te = self.embeddings(texts)
        yield x_te
        yield from self.stack(x_te, texts)

    def sequence_states(self, hidden_th: Tensor, batch: Batch) -> Tensor:
        """Return one state per sequence (s x h, or s x 4h if pairs are compared)."""
        last = self.stack.layers[-1]
        assert isinstance(last, BidirectionalLstm)
        if not self.compare_pairs:
            return last.final_states(hidden_th, batch)
        texts = batch.split_pairs()
        ends_nh = last.final_states(hidden_th, texts).masked_fill((texts.lengths == 0)[:, None], 0.0)
        u_sh, v_sh = ends_nh.unflatten(0, (-1, 2)).unbind(1)
        return torch.cat([u_sh, v_sh, u_sh * v_sh, (u_sh - v_sh).abs()], -1)


def build_bilstm(a: BiLstm) -> BiLstmEncoder:
    """Build a BiLSTM encoder with random weights."""
    embeddings = Embeddings(
        tokens=TokenEmbeddings(a.vocab_size, a.embedding_width),
        positions=None,
        segments=None,
        norm=nn.LayerNorm(a.embedding_width, eps=a.norm_eps) if a.embedding_norm else None,
        dropout=a.dropout,
        projection=None,
    )
    widths = [a.embedding_width] + [a.width] * (a.layers - 1)
    stack = BiLstmStack([BidirectionalLstm(width, a.width // 2) for width in widths], a.dropout)
    encoder = BiLstmEncoder(embeddings, stack, a.width, a.sequence_head == "compare")
    initialize(encoder, a.init_std)  # the LSTMs keep PyTorch's initial weights, which depend on their width
    return encoder
