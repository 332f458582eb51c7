"""Sums over the states of tokens, from which the measures of layers follow: memory does not grow with the tokens.

Shape letters: t tokens of a batch, n heads, h width, m tokens that the lens reads.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.inference.states import layer_attentions, lens_logits
from bertree.model.encoder import Encoder
from bertree.model.network import Network
from bertree.report.history import Floats

LENS_TOKENS = 8  # of a text that the lens reads, evenly spaced: a softmax over the vocabulary for each layer is costly


class StateSums:
    """Lengths of states, how far they lie from those of the layer before, and the sum of their directions."""

    def __init__(self) -> None:
        self.tokens = 0
        self._norms: list[Tensor] = []
        self._directions: list[Tensor] = []
        self._steps: list[Tensor] = []  # for each layer: sums of distances and of cosines

    def add(self, states: Sequence[Tensor]) -> None:
        """Add the states (t x h) of the embeddings and of each layer, in float32."""
        if not self.tokens:
            self._norms = [states[0].new_zeros((), dtype=torch.float64) for _ in states]
            self._directions = [states[0].new_zeros(state.shape[1], dtype=torch.float64) for state in states]
            self._steps = [states[0].new_zeros(2, dtype=torch.float64) for _ in states[1:]]
        units = [torch.nn.functional.normalize(state, dim=1) for state in states]
        for depth, (state, unit) in enumerate(zip(states, units, strict=True)):
            self._norms[depth] += state.norm(dim=1).sum(dtype=torch.float64)
            self._directions[depth] += unit.sum(0, dtype=torch.float64)
            if depth and state.shape == states[depth - 1].shape:
                distances, cosines = (state - states[depth - 1]).norm(dim=1), (unit * units[depth - 1]).sum(1)
                self._steps[depth - 1] += torch.stack([distances, cosines]).sum(1, dtype=torch.float64)
            elif depth:
                self._steps[depth - 1] += torch.nan  # of states of another width there is no distance
        self.tokens += len(states[0])

    def means(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the mean distances and cosines of the layers, then norms and anisotropy of all states.

        Anisotropy is the mean cosine of all pairs of different tokens: that of all pairs, less those with themselves.
        """
        steps = np.array([step.tolist() for step in self._steps]).reshape(-1, 2) / self.tokens
        squares = np.array([float(direction @ direction) for direction in self._directions])
        pairs = self.tokens * (self.tokens - 1)
        norms = np.array([float(norm) for norm in self._norms]) / self.tokens
        return steps[:, 0], steps[:, 1], norms, (squares - self.tokens) / pairs


class CrossProducts:
    """Cross-products of states over rows (tokens or texts), from which linear CKA follows exactly.

    Rows are shifted by the mean of the first batch, so that a mean that is large beside the spread costs no digits.
    """

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        """`pairs`: numbers of the states to compare; each of them with itself must be among them."""
        self.rows = 0
        self._pairs = list(pairs)
        self._shifts: list[Tensor] = []
        self._sums: list[Tensor] = []
        self._products: list[Tensor] = []

    def add(self, states: Sequence[Tensor]) -> None:
        """Add rows (float32) of all states."""
        if not self.rows:
            self._shifts = [state.mean(0) for state in states]
            self._sums = [torch.zeros_like(shift, dtype=torch.float64) for shift in self._shifts]
            self._products = [states[0].new_zeros(states[a].shape[1], states[b].shape[1]) for a, b in self._pairs]
        shifted = [state - shift for state, shift in zip(states, self._shifts, strict=True)]
        for total, rows in zip(self._sums, shifted, strict=True):
            total += rows.sum(0, dtype=torch.float64)
        for (a, b), product in zip(self._pairs, self._products, strict=True):
            product.addmm_(shifted[a].T, shifted[b])
        self.rows += len(states[0])

    def cka(self) -> Floats:
        """Return linear CKA of each pair (states x states); NaN where a state is the same in all rows."""
        squares = np.full((len(self._sums), len(self._sums)), np.nan)
        for (a, b), product in zip(self._pairs, self._products, strict=True):
            centered = product.double() - torch.outer(self._sums[a], self._sums[b]) / self.rows
            squares[a, b] = squares[b, a] = float(centered.square().sum())
        spread = np.sqrt(np.diagonal(squares))
        with np.errstate(invalid="ignore", divide="ignore"):
            similarity: Floats = squares / np.outer(spread, spread)
        return similarity


class AttentionSums:
    """What share of its attention each head gives to special tokens and to the token itself, and its entropy."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._tokens = 0
        self._sums: list[Tensor | float] = [0.0] * encoder.depth  # of each layer: 3 x n

    def add(self, states: Sequence[Tensor], batch: Batch, special_t: Tensor) -> None:
        """Add a batch; `special_t` says which of its tokens are special."""
        for layer, place, weights_ntt in layer_attentions(self._encoder, states, batch):
            special_n = weights_ntt[:, :, special_t[place]].sum((1, 2))
            diagonal_n = weights_ntt.diagonal(dim1=1, dim2=2).sum(1)
            entropy_n = torch.special.entr(weights_ntt).sum((1, 2))
            self._sums[layer] = self._sums[layer] + torch.stack([special_n, diagonal_n, entropy_n]).double()
        self._tokens += len(special_t)

    def means(self) -> tuple[Floats, Floats, Floats]:
        """Return shares and entropies (layers x heads)."""
        sums = np.array([np.asarray(layer.cpu() if isinstance(layer, Tensor) else layer) for layer in self._sums])
        special, diagonal, entropy = np.moveaxis(sums / self._tokens, 1, 0)
        return special, diagonal, entropy


class LensSums:
    """How often each layer would already predict what the last one predicts, and how sure it is."""

    def __init__(self, network: Network, size: int) -> None:
        """`size`: of the tokenizer; the head may predict more tokens, which do not exist."""
        self._network, self._size = network, size
        self._tokens = 0
        self._sums = np.zeros((2, network.encoder.depth + 1))

    def add(self, states: Sequence[Tensor], batch: Batch) -> None:
        """Add a batch."""
        starts, counts = batch.cu_seqlens.tolist(), batch.lengths.tolist()
        rows = [start + at for start, n in zip(starts, counts, strict=False) for at in lens_tokens(n)]
        rows_m = torch.tensor(rows, device=states[0].device)
        last_m = None
        for depth in reversed(range(len(states))):
            scores_mv = lens_logits(self._network, states[depth][rows_m], depth)[:, : self._size].log_softmax(-1)
            likeliest_m = scores_mv.argmax(1)
            last_m = likeliest_m if last_m is None else last_m
            self._sums[0, depth] += int((likeliest_m == last_m).sum())
            self._sums[1, depth] -= float((scores_mv.exp() * scores_mv).sum(dtype=torch.float64))
        self._tokens += len(rows)

    def means(self) -> tuple[Floats, Floats]:
        """Return agreement and entropy of all layers, from the embeddings on."""
        agreement, entropy = self._sums / self._tokens
        return agreement, entropy


def lens_tokens(length: int) -> list[int]:
    """Return the tokens of a text that the lens reads: the middles of equal parts."""
    count = min(length, LENS_TOKENS)
    return [int((part + 0.5) * length / count) for part in range(count)]
