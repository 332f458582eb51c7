"""Language models that read from right to left, or in both directions.

A reader is a stack of layers in which a token sees those read before it. A reader from right to left gets the tokens of
every sequence in reverse order, and its states are put back into the order of the text, so that hidden states are at
the positions of their tokens. With two readers a hidden state is that of the forward reader followed by that of the
backward one, as in ELMo; they share the embeddings, and through them the output matrix of the LM head.

Shape letters: t tokens, s sequences, m predicted tokens, h width of a reader, w width of all readers, n layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.encoder import Encoder
from bertree.model.layers.basic import initialize
from bertree.model.layers.embeddings import Embeddings
from bertree.model.layers.stack import Stack
from bertree.model.pooling import mean_states
from bertree.model.transformer import TransformerEncoder, build_transformer


class Reader(nn.Module):
    """Layers in which a token sees those read before it, and the norm after the last layer."""

    def __init__(self, stack: Stack, norm: nn.Module | None) -> None:
        super().__init__()
        self.stack = stack
        self.norm = norm

    def states(self, x_th: Tensor, batch: Batch) -> Iterator[Tensor]:
        """Yield the states after each layer."""
        for depth, state_th in enumerate(self.stack(x_th, batch), 1):
            is_last = depth == len(self.stack.sharing)
            yield self.norm(state_th) if is_last and self.norm is not None else state_th

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Return the states after the last layer."""
        last_th = self.stack.last(x_th, batch)
        return last_th if self.norm is None else self.norm(last_th)


class DirectedEncoder(Encoder):
    """Embeddings, and a reader for each direction in which texts are read: backward, or forward and backward.

    `summary`: mean, or else the states of each reader where it has read the whole sequence.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        forward_reader: Reader | None,
        backward_reader: Reader,
        *,
        width: int,
        pooler: nn.Linear | None,
        summary: str,
    ) -> None:
        super().__init__(embeddings, width, len(backward_reader.stack.sharing))
        self.forward_reader = forward_reader
        self.backward_reader = backward_reader
        self.pooler = pooler
        self.summary = summary
        self.readers = 1 if forward_reader is None else 2

    def states(self, batch: Batch) -> Iterator[Tensor]:
        """Yield the embeddings (t x w), then each layer's hidden states (t x w)."""
        order_t, reverse = reverse_sequences(batch)
        backward = self._layers(self.backward_reader, reverse)
        if self.forward_reader is None:
            yield from (back_th[order_t] for back_th in backward)
            return
        for ahead_th, back_th in zip(self._layers(self.forward_reader, batch), backward, strict=True):
            yield torch.cat([ahead_th, back_th[order_t]], -1)

    def _layers(self, reader: Reader, batch: Batch) -> Iterator[Tensor]:
        x_th = self.embeddings(batch)
        yield x_th
        yield from reader.states(x_th, batch)

    def forward(self, batch: Batch) -> Tensor:
        """Return the last hidden states (t x w)."""
        order_t, reverse = reverse_sequences(batch)
        back_th: Tensor = self.backward_reader(self.embeddings(reverse), reverse)[order_t]
        if self.forward_reader is None:
            return back_th
        return torch.cat([self.forward_reader(self.embeddings(batch), batch), back_th], -1)

    def predictions(self, batch: Batch, chosen_m: Tensor, targets_m: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of `reader_states` that predict tokens, and the tokens: where one predicts the next, the next
        predicts the one before it."""
        return directed_predictions(batch, chosen_m, targets_m, self.readers)

    def summary_index(self, batch: Batch) -> Tensor:
        """Index of each sequence's first token, where the backward reader has read all of it (s, int64)."""
        return batch.first

    def sequence_states(self, hidden_th: Tensor, batch: Batch) -> Tensor:
        """Return one state per sequence, of the states of one or several layers side by side (s x n w): those of the
        backward reader at the first token, those of the forward reader at the last; or the mean of all."""
        if self.summary == "mean":
            return mean_states(hidden_th, batch).to(hidden_th.dtype)
        return end_states(hidden_th, batch, self.width, (False, True)[-self.readers :])

    def recompute(self, wanted: bool) -> None:
        """Compute each layer again in the backward pass instead of keeping its activations."""
        for reader in (self.forward_reader, self.backward_reader):
            if reader is not None:
                reader.stack.recompute = wanted

    def read_in_reverse(self) -> TransformerEncoder:
        """Return the backward reader as an encoder of sequences whose tokens are in reverse order already."""
        reader, width = self.backward_reader, self.width // self.readers
        encoder = TransformerEncoder(
            self.embeddings, reader.stack, width=width, norm=reader.norm, pooler=None, causal=True
        )
        return encoder.train(self.training)


def directed_predictions(batch: Batch, chosen_m: Tensor, targets_m: Tensor, readers: int) -> tuple[Tensor, Tensor]:
    """Return the rows that predict tokens, and the tokens, of a backward reader, or of two: see `Encoder`."""
    rows_m = (chosen_m + 1).clamp(max=len(batch.ids) - 1)  # labels that are ignored may be of the last token
    before_m = torch.where(targets_m < 0, targets_m, batch.ids[chosen_m])
    if readers == 1:
        return rows_m, before_m
    return torch.cat([2 * chosen_m, 2 * rows_m + 1]), torch.cat([targets_m, before_m])


def end_states(hidden_th: Tensor, batch: Batch, width: int, backward: Sequence[bool]) -> Tensor:
    """Return each reader's state where it has read the whole sequence, of one or several layers' states of `width`."""
    ends = [hidden_th[batch.first if back else batch.last] for back in backward]
    parts = [end.unflatten(-1, (-1, len(ends), width // len(ends)))[:, :, i] for i, end in enumerate(ends)]
    return torch.stack(parts, 2).flatten(1)


def reverse_sequences(batch: Batch) -> tuple[Tensor, Batch]:
    """Return the order of tokens with every sequence reversed (t, int64), and the batch in that order. The order is its
    own inverse; positions count from the first token that is read."""
    bounds, of_t = batch.cu_seqlens.long(), batch.sequence_ids
    order_t = (bounds[:-1] + bounds[1:] - 1)[of_t] - torch.arange(len(batch.ids), device=batch.ids.device)
    reverse = replace(batch, ids=batch.ids[order_t], segments=batch.segments[order_t], labels=None)
    return order_t, reverse


def build_directed(a: Transformer) -> DirectedEncoder:
    """Build an encoder that reads backward, or in both directions, with random weights."""
    one_way = a.with_values({"direction": "forward"})
    assert isinstance(one_way, Transformer)
    encoders = [build_transformer(one_way) for _ in range(a.readers)]
    *forward, backward = [Reader(encoder.stack, encoder.norm) for encoder in encoders]
    pooler = nn.Linear(a.output_width, a.width) if a.pooler else None
    if pooler is not None:
        initialize(pooler, a.init_std)
    return DirectedEncoder(
        encoders[0].embeddings,
        forward[0] if forward else None,
        backward,
        width=a.output_width,
        pooler=pooler,
        summary=a.summary,
    )
