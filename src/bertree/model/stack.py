"""TODO."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertree.batch import Batch


class Stack(nn.Module):
    """Blocks applied in order. `plan` names, for each depth, which stored attention and feed-forward to use."""

    def __init__(
        self, attention: Sequence[nn.Module], ffn: Sequence[nn.Module], plan: Sequence[tuple[int, int]]
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList(attention)
        self.ffn = nn.ModuleList(ffn)
        self.plan = tuple(plan)
        self.recompute = False  # in training, compute each block again for its backward pass instead of keeping it

    def forward(self, x_th: Tensor, batch: Batch) -> Iterator[Tensor]:
        """The hidden states after each block, one after the other."""
        for a, f in self.plan:
            if self.recompute and self.training and torch.is_grad_enabled():
                x_th = checkpoint(self._block, a, f, x_th, batch, use_reentrant=False)
            else:
                x_th = self._block(a, f, x_th, batch)
            yield x_th

    def _block(self, a: int, f: int, x_th: Tensor, batch: Batch) -> Tensor:
        mixed: Tensor = self.ffn[f](self.attention[a](x_th, batch), batch)
        return mixed
