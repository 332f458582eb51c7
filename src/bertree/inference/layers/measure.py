"""Measure what the layers of one model or two do to texts.

    texts -> blocks of 256 -> tokenized -> batches of similar length -> states of all layers -> sums

Each batch is read once by every model, and only sums are kept, so memory does not grow with the texts.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import islice, product

import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.console import bar, note
from bertree.errors import UserError
from bertree.inference.inputs import Input, batch_by_length, check_finite, check_inputs, note_cuts, tokenize_inputs
from bertree.inference.layers.sums import AttentionSums, CrossProducts, LensSums, StateSums
from bertree.inference.loaded import LoadedModel
from bertree.inference.states import has_lens
from bertree.model.pooling import mean_states
from bertree.model.transformer import unknown_attention
from bertree.report.history import Floats
from bertree.report.layers import LayerAnalysis, LayerMeasures
from bertree.text.identity import tokenizer_hash
from bertree.text.tokenizer import Encoded

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
        distance, cosine, norms, anisotropy = self._states.means()
        check_finite(norms, self._model.name)
        special, diagonal, entropy = (None, None, None) if self._attention is None else self._attention.means()
        agreement, lens_entropy = (None, None) if self._lens is None else self._lens.means()
        return LayerMeasures(
            name=name,
            texts=texts,
            tokens=self._states.tokens,
            distance=distance,
            cosine=cosine,
            norms=norms,
            anisotropy=anisotropy,
            cka=self._products.cka(),
            special=special,
            diagonal=diagonal,
            entropy=entropy,
            agreement=agreement,
            lens_entropy=lens_entropy,
        )


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
