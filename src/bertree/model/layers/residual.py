"""How attention and feed-forward are connected to the residual stream: post-norm or pre-norm.

Shape letters: t tokens, h width.
"""

from torch import Tensor, nn

from bertree.batch import Batch


class Residual(nn.Module):
    """A part with its norm and dropout. Subclasses say in which order they are applied."""

    def __init__(self, part: nn.Module, norm: nn.LayerNorm, dropout: float) -> None:
        super().__init__()
        self.part = part
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def part_input(self, x_th: Tensor) -> Tensor:
        """Return the part's input, given the residual stream."""
        raise NotImplementedError


class PostNorm(Residual):
    """norm(x + dropout(part(x))), as in BERT.

    Every state is normed, but gradients pass each norm on their way down, which requires a long warm-up
    (Xiong et al. 2020).
    """

    def part_input(self, x_th: Tensor) -> Tensor:
        """Return the residual stream itself."""
        return x_th

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Return the residual stream after this part, in its own precision."""
        out_th: Tensor = self.norm(x_th + self.dropout(self.part(self.part_input(x_th), batch))).to(x_th.dtype)
        return out_th


class PreNorm(Residual):
    """x + dropout(part(norm(x))), as in Megatron.

    Gradients reach every layer through the sum alone, so deep stacks train with little warm-up. In return the stream
    is never normed and grows with depth, so the encoder norms it once, after the last layer.
    """

    def part_input(self, x_th: Tensor) -> Tensor:
        """Return the normed residual stream."""
        normed_th: Tensor = self.norm(x_th)
        return normed_th

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Return the residual stream after this part, in its own precision."""
        out_th: Tensor = x_th + self.dropout(self.part(self.part_input(x_th), batch))
        return out_th
