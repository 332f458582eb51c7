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


class Stack(nn.Module):
    """Layers of attention and feed-forward. `plan` gives, for each layer, the indices of the blocks it uses."""

    def __init__(
        self, attention: Sequence[nn.Module], ffn: Sequence[nn.Module], plan: Sequence[tuple[int, int]]
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList(attention)
        self.ffn = nn.ModuleList(ffn)
        self.plan = tuple(plan)
        self.recompute = False  # activation checkpointing: recompute each layer in the backward pass

    def forward(self, x_th: Tensor, batch: Batch) -> Iterator[Tensor]:
        """Yield the hidden states after each layer."""
        for a, f in self.plan:
            if self.recompute and self.training and torch.is_grad_enabled():
                x_th = checkpoint(self._layer, a, f, x_th, batch, use_reentrant=False)
            else:
                x_th = self._layer(a, f, x_th, batch)
            yield x_th

    def _layer(self, a: int, f: int, x_th: Tensor, batch: Batch) -> Tensor:
        out_th: Tensor = self.ffn[f](self.attention[a](x_th, batch), batch)
        return out_th
