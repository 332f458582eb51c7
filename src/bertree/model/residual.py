"""TODO."""

from torch import Tensor, nn

from bertree.batch import Batch


class Joined(nn.Module):
    """A part, its norm and its dropout, joined to the residual stream in one way or another."""

    def __init__(self, part: nn.Module, norm: nn.LayerNorm, dropout: float) -> None:
        super().__init__()
        self.part = part
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def reads(self, x_th: Tensor) -> Tensor:
        """The part's input, given the residual stream."""
        raise NotImplementedError


class PostNorm(Joined):
    """A part joined to the residual stream as in BERT: norm(x + dropout(part(x))).

    Every state is normed, but gradients pass each norm on their way down, which asks for a long warm-up
    (Xiong et al. 2020).
    """

    def reads(self, x_th: Tensor) -> Tensor:
        """What its part is given of the residual stream."""
        return x_th

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Residual stream in, residual stream out, in the precision it came in."""
        out: Tensor = self.norm(x_th + self.dropout(self.part(self.reads(x_th), batch))).to(x_th.dtype)
        return out


class PreNorm(Joined):
    """A part joined to the residual stream as in Megatron: x + dropout(part(norm(x))).

    Gradients reach every depth through the sum alone, so deep stacks train with little warm-up. The price:
    the stream is never normed and grows with depth, so the encoder norms it once, at the end.
    """

    def reads(self, x_th: Tensor) -> Tensor:
        """What its part is given of the residual stream."""
        normed: Tensor = self.norm(x_th)
        return normed

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        """Residual stream in, residual stream out, in the precision it came in."""
        out: Tensor = x_th + self.dropout(self.part(self.reads(x_th), batch))
        return out
