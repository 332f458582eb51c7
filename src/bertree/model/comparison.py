"""Two vectors -> scores of classes: the classifier Sentence-BERT is trained under and which is thrown away after it.

What it reads of the two is a choice of the paper's ablation: themselves, their distance in every place, their product.

Shape letters: q questions, d width of a vector, c classes.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from bertree.errors import UserError, suggest

PARTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "u": lambda u, v: u,
    "v": lambda u, v: v,
    "|u-v|": lambda u, v: (u - v).abs(),
    "u*v": lambda u, v: u * v,
}


def parts_of(text: str) -> tuple[str, ...]:
    """What a classifier reads, as people write it: "u,v,|u-v|", also in brackets and with spaces."""
    names = tuple(part for part in text.replace(" ", "").strip("()").split(",") if part)
    for name in names:
        if name not in PARTS:
            raise UserError(f"concat: unknown part '{name}', {suggest(name, PARTS)}")
    if not names or len(set(names)) < len(names):
        raise UserError(f"concat: '{text}' must name each part once, for example u,v,|u-v|")
    return names


class Comparison(nn.Module):
    """A linear layer on what is read of two vectors. In fp32, as the vectors are."""

    def __init__(self, width: int, classes: int, parts: Sequence[str], std: float = 0.02) -> None:
        super().__init__()
        self.parts = tuple(parts)
        self.out = nn.Linear(len(self.parts) * width, classes)
        nn.init.normal_(self.out.weight, std=std)
        nn.init.zeros_(self.out.bias)

    def forward(self, u_qd: Tensor, v_qd: Tensor) -> Tensor:
        """Scores (q x c)."""
        with torch.autocast(u_qd.device.type, enabled=False):
            read = torch.cat([PARTS[part](u_qd, v_qd) for part in self.parts], -1)
            scores: Tensor = self.out(read.to(self.out.weight.dtype))
            return scores
