"""The layers of an encoder, applied in order.

Attention and feed-forward blocks are stored apart, and a plan says which of them each layer uses. So a block that
several layers share is stored once, and sharing needs no code of its own.

Shape letters: t tokens, h width.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertree.batch import Batch
from bertree.model.layers.positions import Positions, Rotation
from bertree.model.layers.residual import Block, Residual, Stream


class Stack(nn.Module):
    """Layers of attention and feed-forward. `plan` gives, for each layer, the indices of the blocks it uses."""

    def __init__(
        self,
        attention: Sequence[Block],
        ffn: Sequence[Block],
        plan: Sequence[tuple[int, int]],
        residual: Residual,
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList(attention)
        self.ffn = nn.ModuleList(ffn)
        self.plan = tuple(plan)
        self.residual = residual
        self.recompute = False  # activation checkpointing: recompute each layer in the backward pass
        # For each attention block, the first one that has the same positions; None: it has none.
        positions = [getattr(block.part, "positions", None) for block in attention]
        self.rotates_as = tuple(
            None if each is None else next(i for i, other in enumerate(positions) if other is each)
            for each in positions
        )

    def forward(self, x_th: Tensor, batch: Batch) -> Iterator[Tensor]:
        """Yield the hidden states after each layer."""
        stream, prepared = self.residual.open(x_th), self._prepare(batch)
        for a, f in self.plan:
            rotation = prepared.get(self.rotates_as[a]) if prepared else None
            if self.recompute and self.training and torch.is_grad_enabled():
                stream = checkpoint(self._layer, a, f, stream, batch, rotation, use_reentrant=False)
            else:
                stream = self._layer(a, f, stream, batch, rotation)
            yield self.residual.close(stream)

    def _prepare(self, batch: Batch) -> dict[int | None, Rotation | None]:
        """Return what the attention blocks' positions need for a batch, computed once for all that are the same."""
        found: dict[int | None, Rotation | None] = {}
        for index in self.rotates_as:
            if index is not None and index not in found:
                positions = self.attention[index].part.positions  # type: ignore[union-attr]
                assert isinstance(positions, Positions)
                found[index] = positions.prepare(batch.positions)
        return found

    def _layer(self, a: int, f: int, stream: Stream, batch: Batch, rotation: Rotation | None) -> Stream:
        given = (batch,) if rotation is None else (batch, rotation)  # a part of one's own may take the batch alone
        stream = self.residual.apply(stream, self.attention[a], *given)  # type: ignore[arg-type]
        return self.residual.apply(stream, self.ffn[f], batch)  # type: ignore[arg-type]
