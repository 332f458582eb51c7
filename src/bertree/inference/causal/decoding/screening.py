"""The likeliest token without all logits: for greedy decoding of one sequence on a CPU.

A step for one sequence takes as long as reading the weights, and the output matrix is a good part of them (a third in
GPT-2). It is first read as 8-bit integers, a quarter of the bytes. That gives every logit to within a known error; the
tokens that may be the likeliest by it, a few, get their exact logits.

Shape letters: v vocabulary, h width, m tokens that may be the likeliest.
"""

import torch
from torch import Tensor, nn

from bertree.inference.cpu.linear import STEPS, TINY, Int8Linear, linear_class

ROUNDING = 1e-5  # relative error of both products beside that of the 8-bit integers


class ScreenedOutput:
    """A linear layer that gives -inf for every output that cannot be the largest."""

    def __init__(self, linear: nn.Linear) -> None:
        self.weight_vh, bias = linear.weight.detach(), linear.bias
        self.bias_v = None if bias is None else bias.detach()
        self.rough = Int8Linear(linear)
        scale_v1 = self.rough.scale_o[:, None]
        rough_vh = (self.weight_vh / scale_v1).round_().mul_(scale_v1)
        self.norm_v = rough_vh.norm(dim=1)
        self.error_v = rough_vh.sub_(self.weight_vh).norm(dim=1) + ROUNDING * self.norm_v

    def __call__(self, x_1h: Tensor, banned_v: Tensor | None = None) -> Tensor:
        """Return the logits of the tokens that may be the likeliest, and -inf for the others (1 x v).

        `banned_v`: -inf for tokens that are not to be considered, else 0."""
        rough_v = self.rough(x_1h)[0]
        step = x_1h.abs().amax().clamp(min=TINY) / STEPS  # a state is rounded by half of it at most
        moved = step * (x_1h.shape[1] ** 0.5 / 2)
        margin_v = (self.error_v * x_1h.norm()).addcmul_(self.norm_v, moved)
        if banned_v is not None:
            rough_v += banned_v
        may_m = (rough_v + margin_v >= (rough_v - margin_v).amax()).nonzero()[:, 0]
        exact_m = self.weight_vh[may_m] @ x_1h[0]
        if self.bias_v is not None:
            exact_m += self.bias_v[may_m]
        return rough_v.fill_(-torch.inf).index_copy_(0, may_m, exact_m)[None]


def can_screen() -> bool:
    """Whether this CPU multiplies 8-bit integers without overflow: it has instructions for it (VNNI)."""
    known = getattr(torch.cpu, "_is_vnni_supported", None)
    return known is not None and bool(known()) and linear_class(torch.int8) is Int8Linear
