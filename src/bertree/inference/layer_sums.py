"""Measure what the layers of one model or two do to texts.

    texts -> blocks of 256 -> tokenized -> batches of similar length -> states of all layers -> sums

Each batch is read once by every model, and only sums over the states of its tokens are kept, so memory does not grow
with the texts.

Shape letters: t tokens of a batch, n heads, h width, m tokens that the lens reads.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import islice, product

import numpy as np
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.console import bar, note
from bertree.errors import UserError
from bertree.inference.inputs import Input, batch_by_length, check_finite, check_inputs, note_cuts, tokenize_inputs
from bertree.inference.loaded import LoadedModel
from bertree.inference.states import has_lens, layer_attentions, lens_logits
from bertree.model.encoder import Encoder
from bertree.model.network import Network
from bertree.model.pooling import mean_states
from bertree.model.transformer import unknown_attention
from bertree.report.history import Floats
from bertree.report.layers import LayerAnalysis, LayerMeasures
from bertree.text.identity import tokenizer_hash
from bertree.text.tokenizer import Encoded

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

    def means(self) -> dict[str, Floats]:
        """Return the mean distances and cosines of the layers, and norms and anisotropy of all states.

        Anisotropy is the mean cosine of all pairs of different tokens: that of all pairs, less those with themselves.
        """
        steps = np.array([step.tolist() for step in self._steps]).reshape(-1, 2) / self.tokens
        squares = np.array([float(direction @ direction) for direction in self._directions])
        pairs = self.tokens * (self.tokens - 1)
        norms = np.array([float(norm) for norm in self._norms]) / self.tokens
        anisotropy = (squares - self.tokens) / pairs
        return {"distance": steps[:, 0], "cosine": steps[:, 1], "norms": norms, "anisotropy": anisotropy}


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
        for (a, b), cross in zip(self._pairs, self._products, strict=True):
            cross.addmm_(shifted[a].T, shifted[b])
        self.rows += len(states[0])

    def cka(self) -> Floats:
        """Return linear CKA of each pair (states x states); NaN where a state is the same in all rows."""
        squares = np.full((len(self._sums), len(self._sums)), np.nan)
        for (a, b), cross in zip(self._pairs, self._products, strict=True):
            centered = cross.double() - torch.outer(self._sums[a], self._sums[b]) / self.rows
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

    def means(self) -> dict[str, Floats]:
        """Return shares and entropies (layers x heads)."""
        sums = np.array([np.asarray(layer.cpu() if isinstance(layer, Tensor) else layer) for layer in self._sums])
        return dict(zip(("special", "diagonal", "entropy"), np.moveaxis(sums / self._tokens, 1, 0), strict=True))


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

    def means(self) -> dict[str, Floats]:
        """Return agreement and entropy of all layers, from the embeddings on."""
        return dict(zip(("agreement", "lens_entropy"), self._sums / self._tokens, strict=True))


def lens_tokens(length: int) -> list[int]:
    """Return the tokens of a text that the lens reads: the middles of equal parts."""
    count = min(length, LENS_TOKENS)
    return [int((part + 0.5) * length / count) for part in range(count)]


BLOCK = 256  # texts that are tokenized at once
GPU_TOKENS = 16384  # computed at once there: the states of all layers are kept


def analyze(
    models: Sequence[LoadedModel], texts: Iterable[Input], max_length: int | None = None, batch_tokens: int = 0
) -> LayerAnalysis:
    """Measure one model or two on texts, which are read once."""
    readers = [ModelSums(model) for model in models]
    limit = min(max_length or model.max_length for model in models)
    identities = {"" if model.tokenizer is None else tokenizer_hash(model.tokenizer) for model in models}
    between = CrossBetween([reader.states for reader in readers], over_texts=len(identities) > 1)
    source, count = iter(check_inputs(texts)), 0
    with torch.no_grad(), ExitStack() as stack, bar("reading", speed="texts") as shown:
        for model in models:
            stack.enter_context(model.evaluating())
        while block := list(islice(source, BLOCK)):
            encoded = [tokenize_inputs(block, m.tokenizer, m.architecture, limit, m.name) for m in models]
            note_cuts(encoded[0], limit)
            rows = [row for row in range(len(block)) if all(of_model[row].ids for of_model in encoded)]
            lengths = [len(encoded[0][row].ids) for row in rows]
            tokens = batch_tokens or (GPU_TOKENS if models[0].device.type == "cuda" else 0)
            for places in batch_by_length(lengths, models[0].device, tokens):
                chosen = [rows[place] for place in places]
                sequences = ([of_model[row] for row in chosen] for of_model in encoded)
                between.add([reader.add(batch) for reader, batch in zip(readers, sequences, strict=True)])
                shown.advance(len(chosen))
            count += len(rows)
    if count < 2:
        raise UserError(f"texts: CKA compares how states differ between texts, so it needs at least two, not {count}")
    names = [model.name for model in models]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    measures = tuple(reader.measures(name, count) for reader, name in zip(readers, names, strict=True))
    return LayerAnalysis(models=measures, cka=between.cka(), over=between.over if len(models) > 1 else "")


class ModelSums:
    """All sums of one model."""

    def __init__(self, model: LoadedModel) -> None:
        self._model, network, tokenizer = model, model.network, model.tokenizer
        self.states = network.encoder.depth + 1
        self._states = StateSums()
        self._products = CrossProducts((a, b) for a in range(self.states) for b in range(a, self.states))
        unknown = unknown_attention(network.encoder)
        self._attention = None if unknown else AttentionSums(network.encoder)
        if unknown:
            exists = model.architecture.has_attention
            why = f"attention that cannot be computed again ({unknown})" if exists else "no attention"
            note(f"{model.name}: has {why}; shares and entropies of heads are left out")
        size = model.architecture.vocab_size if tokenizer is None else tokenizer.size
        self._lens = LensSums(network, size) if has_lens(network) else None
        special = () if tokenizer is None else (tokenizer.id_of("cls"), tokenizer.id_of("sep"), tokenizer.end_id)
        self._special = torch.tensor([token for token in special if token is not None], device=model.device)

    def add(self, encoded: Sequence[Encoded]) -> tuple[Batch, list[Tensor]]:
        """Add a batch; return it, and the states of its tokens in all layers, in float32."""
        batch = self._model.pack(encoded).to(self._model.device)
        own = list(self._model.network.encoder.states(batch))
        states = [state_th.float() for state_th in own]
        self._states.add(states)
        self._products.add(states)
        if self._attention is not None:
            self._attention.add(own, batch, torch.isin(batch.ids, self._special))
        if self._lens is not None:
            self._lens.add(own, batch)
        return batch, states

    def measures(self, name: str, texts: int) -> LayerMeasures:
        """Return what the sums say."""
        means = self._states.means()
        check_finite(means["norms"], self._model.name)
        for sums in (self._attention, self._lens):
            means |= {} if sums is None else sums.means()
        cka = self._products.cka()
        return LayerMeasures(name=name, texts=texts, tokens=self._states.tokens, cka=cka, **means)


class CrossBetween:
    """CKA of the states of two models: over tokens if both read the same ones, else over the means of texts."""

    def __init__(self, counts: Sequence[int], over_texts: bool) -> None:
        self.over = "texts" if over_texts else "tokens"
        self._counts = counts
        each = [(number, number) for number in range(sum(counts))]
        cross = list(product(range(counts[0]), range(counts[0], sum(counts))))
        self._products = CrossProducts(each + cross) if len(counts) == 2 else None

    def add(self, read: Sequence[tuple[Batch, list[Tensor]]]) -> None:
        """Add a batch as each model has read it, with its states."""
        if self._products is not None:
            rows = [mean_states(x, batch) if self.over == "texts" else x for batch, states in read for x in states]
            self._products.add([x.to(rows[0].device) for x in rows])

    def cka(self) -> Floats | None:
        """Return the matrix (states of the first x states of the second); None for one model."""
        first = self._counts[0]
        return None if self._products is None else self._products.cka()[:first, first:]
