"""The layers of an encoder, applied in order.

Attention and feed-forward blocks are stored in two lists, and `sharing` says which of them each layer uses. A block
that several layers share is stored once, and sharing needs no code of its own.

Shape letters: t tokens, h width.
"""

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertree.batch import Batch
from bertree.model.layers.attention import LayerPast
from bertree.model.layers.residual import Block, Residual, Reversible, Stream, states_of
from bertree.model.layers.reversible import reversible_states
from bertree.model.memory import CachePast, MemoryPast, TwoStreams

Past = MemoryPast | CachePast | TwoStreams


class Stack(nn.Module):
    """Layers of attention and feed-forward. `sharing`: for each layer, the indices of the two blocks it uses."""

    def __init__(
        self,
        attention: Sequence[Block],
        ffn: Sequence[Block],
        sharing: Sequence[tuple[int, int]],
        residual: Residual,
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList(attention)
        self.ffn = nn.ModuleList(ffn)
        self.sharing = tuple(sharing)
        self.residual = residual
        self.recompute = False  # activation checkpointing: recompute each layer in the backward pass

    def forward(self, x_th: Tensor, batch: Batch, past: Past | None = None) -> Iterator[Tensor]:
        """Yield the hidden states after each layer; `past`: what is seen besides the batch."""
        for stream in self._streams(x_th, batch, past):
            yield self.residual.close(stream)

    def _streams(self, x_th: Tensor, batch: Batch, past: Past | None) -> Iterator[Stream]:
        """Yield the residual stream after each layer."""
        stream, by_kind = self.residual.open(x_th), self._prepare(batch, past)
        for a, f in self.sharing:
            block = cast(Block, self.attention[a])
            seen = None if past is None else past.layer(states_of(stream), partial(self.residual.read, block=block))
            positions = getattr(block.part, "positions", None)
            prepared = None if positions is None else by_kind[positions.same]
            if self.recompute and self.training and torch.is_grad_enabled():
                stream = checkpoint(self._layer, a, f, stream, batch, prepared, seen, use_reentrant=False)
            else:
                stream = self._layer(a, f, stream, batch, prepared, seen)
            yield stream

    def last(self, x_th: Tensor, batch: Batch, past: Past | None = None) -> Tensor:
        """Return the hidden states after the last layer. Reversible layers keep no activations for the backward pass,
        unless there is a past."""
        if isinstance(self.residual, Reversible) and past is None and torch.is_grad_enabled():
            by_kind, blocks = self._prepare(batch, None), []
            for a, f in self.sharing:
                attention, ffn = cast(Block, self.attention[a]), cast(Block, self.ffn[f])
                positions = getattr(attention.part, "positions", None)
                inputs = (batch,) if positions is None else (batch, by_kind[positions.same])
                blocks += [(attention, inputs), (ffn, (batch,))]
            return reversible_states(self.residual.open(x_th)[0], blocks, list(self.parameters()))
        for stream in self._streams(x_th, batch, past):
            last = stream
        return self.residual.close(last)

    def _prepare(self, batch: Batch, past: Past | None) -> dict[Hashable, Any]:
        """Return what the attention blocks' positions need for a batch, computed once for all that are the same."""
        by_kind: dict[Hashable, Any] = {}
        for block in self.attention:
            positions = getattr(block.part, "positions", None)
            if positions is not None and positions.same not in by_kind:
                token_positions = block.part.token_positions(batch) if past is None else past.token_positions  # type: ignore[union-attr,operator]
                by_kind[positions.same] = positions.prepare(token_positions)
        return by_kind

    def _layer(self, a: int, f: int, stream: Stream, batch: Batch, prepared: Any, past: LayerPast | None) -> Stream:
        # A component from outside may take the batch alone.
        inputs = (batch,) if prepared is None and past is None else (batch, prepared, past)
        stream = self.attention[a](self.residual, stream, *inputs)
        return self.ffn[f](self.residual, stream, batch)
