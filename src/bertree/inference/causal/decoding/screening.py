"""The likeliest token without all logits: for greedy decoding of one sequence on a CPU.

A step for one sequence takes as long as reading the weights, and the output matrix is a good part of them (a third in
GPT-2). It is first read as 8-bit integers, a quarter of the bytes. That gives every logit to within a known error; the
tokens that may be the likeliest by it, a few, get their exact logits.

Shape letters: v vocabulary, h width, m tokens that may be the likeliest.
"""

from functools import cache

import torch
from torch import Tensor, nn

STEPS = 127.0  # of an 8-bit integer, on each side of 0
TINY = 1e-20
ROUNDING = 2.0**-7  # relative error of a product in bfloat16, with room for the order of additions


class ScreenedOutput:
    """A linear layer that gives -inf for every output that cannot be the largest."""

    def __init__(self, linear: nn.Linear) -> None:
        self.weight_vh, bias = linear.weight.detach(), linear.bias
        self.bias_v = None if bias is None else bias.detach()
        scale_v = self.weight_vh.abs().amax(1).clamp_(min=TINY).div_(STEPS)
        self.int8_vh = (self.weight_vh / scale_v[:, None]).round_().to(torch.int8)
        self.scale_v = scale_v.bfloat16()
        rough_vh = self.int8_vh * self.scale_v.float()[:, None]
        self.norm_v = rough_vh.norm(dim=1)
        self.error_v = rough_vh.sub_(self.weight_vh).norm(dim=1)

    def __call__(self, x_1h: Tensor, banned_v: Tensor | None = None) -> Tensor:
        """Return the logits of the tokens that may be the likeliest, and -inf for the others (1 x v).

        `banned_v`: -inf for tokens that are not to be considered, else 0."""
        half_1h = x_1h.bfloat16()
        rough_v = torch._weight_int8pack_mm(half_1h, self.int8_vh, self.scale_v)[0].float()
        margin_v = rough_v.abs().mul_(ROUNDING).add_(self.error_v * x_1h.norm())
        margin_v.add_(self.norm_v * (x_1h - half_1h).norm())
        if self.bias_v is not None:
            rough_v += self.bias_v
        if banned_v is not None:
            rough_v += banned_v
        may_m = (rough_v + margin_v >= (rough_v - margin_v).amax()).nonzero()[:, 0]
        exact_m = self.weight_vh[may_m] @ x_1h[0]
        if self.bias_v is not None:
            exact_m += self.bias_v[may_m]
        return rough_v.fill_(-torch.inf).index_copy_(0, may_m, exact_m)[None]


@cache
def can_screen() -> bool:
    """Whether this CPU multiplies 8-bit weights fast, and rightly: the operator is not part of PyTorch's interface."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    linear = nn.utils.skip_init(nn.Linear, 64, 48, bias=False)
    given = torch.linspace(-1, 1, 64).cos()[None]
    with torch.no_grad():
        linear.weight.copy_(torch.linspace(-9, 9, 48 * 64).view(48, 64).sin())
        wanted = linear(given)
        try:
            found = ScreenedOutput(linear)(given)
        except (RuntimeError, AttributeError, TypeError, NotImplementedError):
            return False
    seen = found > -torch.inf
    return bool(torch.allclose(found[seen], wanted[seen], atol=1e-5)) and int(found.argmax()) == int(wanted.argmax())
