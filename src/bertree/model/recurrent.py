"""The encoders made of LSTMs over a packed batch, without padding: a bidirectional one, and LSTM language models.

PyTorch's packed sequences lie step by step: the first tokens of all sequences, then all second tokens, the longest
sequence first. Our stream lies sequence by sequence, so a permutation leads from one to the other. The bidirectional
LSTM runs in the precision of its weights even under autocast, since errors add up along a text; that costs speed on a
GPU.

LSTM language models are of both directions (ELMo), or of one. Each direction is a language model of its own: it sees
nothing of the other. A token's state is that of all directions side by side. Sequences start without a state, so a
text's states do not depend on its neighbors.

Shape letters: t tokens, s sequences, w width of the input, u width of the output (both directions), d directions, e
embedding width, p width of one direction, h width of all, n texts (two per sequence).
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertree.batch import Batch
from bertree.model.architecture import BiLstm, Lstm
from bertree.model.directions import directed_predictions, end_states
from bertree.model.encoder import Encoder
from bertree.model.heads import MaskHead
from bertree.model.kernels.lstm import LstmWeights, lstm, permute
from bertree.model.layers.basic import initialize
from bertree.model.layers.embeddings import (
    AdaptiveSoftmax,
    CharacterCnn,
    CharacterEmbeddings,
    Embeddings,
    TokenEmbeddings,
    VocabularyClusters,
)

SOFTMAX_ROWS = 32768  # states whose logits exist at the same time in training


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
    norm = nn.LayerNorm(a.embedding_width, eps=a.norm_eps) if a.embedding_norm else None
    embeddings = Embeddings(tokens=TokenEmbeddings(a.vocab_size, a.embedding_width), dropout=a.dropout, norm=norm)
    widths = [a.embedding_width] + [a.width] * (a.layers - 1)
    stack = BiLstmStack([BidirectionalLstm(width, a.width // 2) for width in widths], a.dropout)
    encoder = BiLstmEncoder(embeddings, stack, a.width, a.sequence_head == "compare")
    initialize(encoder, a.init_std)  # the LSTMs keep PyTorch's initial weights, which depend on their width
    return encoder


class LstmDirection(nn.Module):
    """The weights of one direction of a layer; gates lie as input, forget, candidate, output. The bias of the forget
    gates counts from 1, as TensorFlow's, so that they start open."""

    def __init__(self, width_in: int, cells: int, width: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(width_in, 4 * cells)
        self.recurrent = nn.Linear(width, 4 * cells, bias=False)
        self.projection = nn.Linear(cells, width, bias=False)

    def draw(self) -> None:
        """Draw initial weights that keep the size of what they multiply."""
        with torch.no_grad():
            for linear in (self.inputs, self.recurrent, self.projection):
                linear.weight.normal_(0.0, linear.in_features**-0.5)
            self.inputs.bias.zero_()

    @property
    def weights(self) -> LstmWeights:
        """The weights as the kernel takes them."""
        into, forget, *rest = self.inputs.bias.chunk(4)
        bias = torch.cat([into, forget + 1.0, *rest])
        return LstmWeights(self.inputs.weight, self.recurrent.weight, bias, self.projection.weight)


class LstmLayer(nn.Module):
    """An LSTM with a projection, in each direction."""

    directions: Iterable[LstmDirection]

    def __init__(self, directions: Sequence[LstmDirection], cell_clip: float, projection_clip: float) -> None:
        super().__init__()
        self.directions = nn.ModuleList(directions)  # type: ignore[assignment]
        self.cell_clip, self.projection_clip = cell_clip, projection_clip

    def forward(self, x_dte: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the outputs (d x t x p) for tokens that lie step by step, `sizes` of them in each step."""
        rows = zip(*(direction.weights for direction in self.directions), strict=True)
        weights = LstmWeights(*map(torch.stack, rows))
        return lstm(x_dte, weights, sizes, self.cell_clip, self.projection_clip)


class LstmStack(nn.Module):
    """LSTM layers, each on the outputs of the one before it; `skip`: which are added to its own."""

    def __init__(self, layers: Sequence[LstmLayer], dropout: float, skip: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.dropout = nn.Dropout(dropout)  # between layers; the embeddings have their own
        self.skip = skip

    def forward(self, x_dte: Tensor, sizes: Sequence[int]) -> Iterator[Tensor]:
        """Yield the outputs of each layer (d x t x p)."""
        for depth, layer in enumerate(self.layers):
            out_dtp = layer(x_dte if depth == 0 else self.dropout(x_dte), sizes)
            x_dte = out_dtp + x_dte if self.skip and depth else out_dtp
            yield x_dte


class LstmEncoder(Encoder):
    """Embeddings and LSTM language models. `backward` says of each direction whether it reads from right to left;
    `width` is that of one of them."""

    def __init__(self, embeddings: Embeddings, stack: LstmStack, width: int, backward: Sequence[bool]) -> None:
        super().__init__(embeddings, len(backward) * width, len(stack.layers))
        self.stack = stack
        self.backward = tuple(backward)
        self.readers = len(backward)

    def states(self, batch: Batch) -> Iterator[Tensor]:
        """Yield the embeddings, once for each direction, then each layer's states (t x h)."""
        x_te = self.embeddings(batch)
        yield torch.cat([x_te] * len(self.backward), -1)
        ends_t = batch.lengths.long()[batch.sequence_ids] - 1
        steps = [ends_t - batch.positions if backward else batch.positions for backward in self.backward]
        orders = [step_order(batch, step_t) for step_t in steps]
        turns = list(zip(orders, map(inverse_order, orders), strict=True))
        x_dte = torch.stack([permute(x_te, order_t, back_t) for order_t, back_t in turns])
        for out_dtp in self.stack(x_dte, batch.positions.bincount().tolist()):
            rows = zip(out_dtp, turns, strict=True)
            yield torch.cat([permute(out_tp, back_t, order_t) for out_tp, (order_t, back_t) in rows], -1)

    def sequence_states(self, hidden_th: Tensor, batch: Batch) -> Tensor:
        """Return each direction's state after its last step (s x h)."""
        return end_states(hidden_th, batch, self.width, self.backward)

    def predictions(self, batch: Batch, chosen_m: Tensor, targets_m: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of `reader_states` that predict tokens, and the tokens."""
        if self.backward == (False,):
            return chosen_m, targets_m
        return directed_predictions(batch, chosen_m, targets_m, self.readers)


def build_lstm(a: Lstm) -> LstmEncoder:
    """Build an LSTM encoder with random weights."""
    embeddings: Embeddings
    if a.characters:
        cnn = CharacterCnn(
            a.embedding_width,
            characters=a.characters,
            character_width=a.character_width,
            filters=a.filter_table,
            highways=a.highways,
        )
        embeddings = CharacterEmbeddings(cnn, a.dropout)
    else:
        embeddings = Embeddings(tokens=TokenEmbeddings(a.vocab_size, a.embedding_width), dropout=a.dropout)
    layers = [
        LstmLayer(
            [LstmDirection(a.width, a.ffn_width, a.width) for _ in range(a.readers)], a.cell_clip, a.projection_clip
        )
        for _ in range(a.layers)
    ]
    backward = (False, True) if a.direction == "both" else (a.direction == "backward",)
    encoder = LstmEncoder(embeddings, LstmStack(layers, a.dropout, a.skip_connections), a.width, backward)
    initialize(encoder, a.init_std)
    for module in encoder.modules():
        if isinstance(module, LstmDirection):
            module.draw()
        if isinstance(module, CharacterCnn):
            module.open_highways()
    return encoder


def build_lstm_mask_head(a: Lstm) -> nn.Module:
    """Build the softmax over the vocabulary, which the directions share."""
    if a.cutoffs:
        clusters = VocabularyClusters.cut(a.cluster_starts, a.embedding_width, a.embedding_divisor)
        return AdaptiveSoftmax(clusters, a.width, tied=False)
    return MaskHead(
        a.width,
        a.embedding_width,
        a.vocab_size,
        activation="relu",
        norm_eps=a.norm_eps,
        transform=False,
        tied=a.tied_output,
        chunk=SOFTMAX_ROWS,
    )
