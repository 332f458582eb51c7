"""Matrix products with weights that no longer change: laid out beforehand for the CPU's units, with what follows fused.

    fused   float32 and bfloat16, by oneDNN: bias, activation or residual in the same pass as the product. bfloat16
            runs on AMX tiles where a CPU has them, several times as fast as float32.
    whole   int8, by oneDNN: weights with a scale a channel, states with a scale a token, so that no token's numbers
            depend on what else is in the batch. On AMX or VNNI.
    plain   where the above cannot be had.

A packed weight is a copy: it costs the memory of the weights a second time (int8: a quarter), and is only good as long
as they stay as they are.

Shape letters: t tokens, i width read, o width given.
"""

from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ALGORITHMS = {"gelu": ("gelu", "none"), "gelu-tanh": ("gelu", "tanh"), "relu": ("relu", "")}
TINY = 1e-20  # a token whose states are all 0 is divided by something
STEPS = 127.0  # of an 8-bit integer, to each side
MIDDLE = 128  # what stands for 0 among the states: VNNI multiplies integers without a sign by ones with it


class Product(Protocol):
    """A linear layer."""

    def __call__(self, x_ti: Tensor) -> Tensor:
        """The layer alone."""

    def activated(self, x_ti: Tensor, activation: str) -> Tensor:
        """The layer, then an activation."""

    def onto(self, x_ti: Tensor, residual_to: Tensor) -> Tensor:
        """The layer, added to the residual stream; what it reads may be lost."""


class Plain:
    """As a module would compute it."""

    def __init__(self, linear: nn.Linear) -> None:
        self.weight_oi, self.bias_o = linear.weight.detach(), linear.bias.detach()

    def __call__(self, x_ti: Tensor) -> Tensor:
        """The layer alone."""
        return F.linear(x_ti, self.weight_oi, self.bias_o)

    def activated(self, x_ti: Tensor, activation: str) -> Tensor:
        """The layer, then an activation."""
        return activate(self(x_ti), activation)

    def onto(self, x_ti: Tensor, residual_to: Tensor) -> Tensor:
        """The layer, added to the residual stream."""
        return self(x_ti).add_(residual_to)


class Fused:
    """One pass for the product and what follows it."""

    def __init__(self, linear: nn.Linear) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().contiguous())
        self.bias_o = linear.bias.detach()

    def __call__(self, x_ti: Tensor) -> Tensor:
        """The layer alone."""
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x_ti, self.packed, self.bias_o, "none", [], "")
        return found

    def activated(self, x_ti: Tensor, activation: str) -> Tensor:
        """The layer, then an activation."""
        name, algorithm = ALGORITHMS[activation]
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x_ti, self.packed, self.bias_o, name, [], algorithm)
        return found

    def onto(self, x_ti: Tensor, residual_to: Tensor) -> Tensor:
        """The layer, added to the residual stream."""
        found: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x_ti, residual_to, self.packed, self.bias_o, "add")
        return found


class Whole:
    """8-bit integers; the states before and after are float32."""

    def __init__(self, linear: nn.Linear) -> None:
        weight_oi = linear.weight.detach().float()
        scale_o = weight_oi.abs().amax(1).clamp_(min=TINY).div_(STEPS)
        whole_oi = (weight_oi / scale_o[:, None]).round_().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(whole_oi, None)
        self.scale_o, self.zero_o = scale_o, torch.zeros(len(scale_o), dtype=torch.int32)
        self.bias_o = linear.bias.detach().float()

    def __call__(self, x_ti: Tensor) -> Tensor:
        """The layer alone."""
        scale_t1 = _scales(x_ti)
        return self._of(x_ti / scale_t1, scale_t1)

    def activated(self, x_ti: Tensor, activation: str) -> Tensor:
        """The layer, then an activation."""
        return activate(self(x_ti), activation)

    def onto(self, x_ti: Tensor, residual_to: Tensor) -> Tensor:
        """The layer, added to the residual stream; what it reads is lost."""
        scale_t1 = _scales(x_ti)
        return self._of(x_ti.div_(scale_t1), scale_t1).add_(residual_to)

    def _of(self, steps_ti: Tensor, scale_t1: Tensor) -> Tensor:
        found_to: Tensor = torch.ops.onednn.qlinear_pointwise(
            steps_ti.add_(MIDDLE + 0.5).to(torch.uint8),  # cut off, so half a step more rounds
            *(1.0, MIDDLE, self.packed, self.scale_o, self.zero_o, None),  # of the states, the weight, and no bias
            *(1.0, 0, torch.float32, "none", [], ""),  # of what is given: as it is
        )
        return torch.addcmul(self.bias_o, found_to, scale_t1, out=found_to)


def _scales(x_ti: Tensor) -> Tensor:
    """What one step of each token's integers is worth (t x 1). Two reductions are cheaper than a copy without signs."""
    highest_t1, lowest_t1 = x_ti.amax(1, keepdim=True), x_ti.amin(1, keepdim=True)
    return torch.maximum(highest_t1, lowest_t1.neg_()).clamp_(min=TINY).div_(STEPS)


def activate(x: Tensor, activation: str) -> Tensor:
    """In place."""
    if activation == "relu":
        return x.relu_()
    found: Tensor = torch.ops.aten.gelu_(x, approximate=ALGORITHMS[activation][1])
    return found


def products(dtype: torch.dtype) -> type[Product] | None:
    """The kind that computes in a precision on this CPU; None: there is none."""
    if dtype == torch.int8:
        return Whole if _works(Whole, torch.float32) else None
    if dtype not in (torch.float32, torch.bfloat16):
        return None
    return Fused if _works(Fused, dtype) else Plain


@cache
def _works(kind: type[Fused] | type[Whole], dtype: torch.dtype) -> bool:
    """Whether these operators are there and do what they should: they are not part of PyTorch's public interface."""
    given = torch.linspace(-1, 1, 7 * 32, dtype=dtype).view(7, 32)
    linear = nn.utils.skip_init(nn.Linear, 32, 16, dtype=dtype)  # draws no random numbers
    with torch.no_grad():
        linear.weight.copy_(torch.linspace(-1, 1, 16 * 32).view(16, 32).sin())
        linear.bias.fill_(0.5)
        wanted = F.gelu(linear(given)).float()
        stream = F.linear(given, linear.weight, linear.bias) + wanted.to(dtype)
        try:
            made = kind(linear)
            found, joined = made.activated(given, "gelu"), made.onto(given.clone(), wanted.to(dtype))
        except (RuntimeError, AttributeError, TypeError, NotImplementedError):
            return False
        near = 1e-5 if dtype == torch.float32 and kind is Fused else 0.05
        return all(
            bool(torch.allclose(a.float(), b.float(), rtol=near, atol=near * float(wanted.abs().max())))
            for a, b in ((found, wanted), (joined, stream))
        )
