"""Linear layers with packed weights: laid out for the CPU's units once, with the following operation fused.

    OneDnnLinear   float32 and bfloat16: bias, activation or residual in the same pass as the product. bfloat16 runs on
                   AMX tiles if the CPU has them, several times as fast as float32.
    Int8Linear     int8, on AMX or VNNI: weights with a scale per channel, states with a scale per token, so that a
                   token's result does not depend on the rest of the batch.
    EagerLinear    if the above are not available.

A packed weight is a copy: it takes the memory of the weights a second time (int8: a quarter), and must be packed again
when they change.

Shape letters: t tokens, i input width, o output width.
"""

from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.config.names import has_native_bfloat16
from bertree.console import note
from bertree.model.torch_internals import (
    int8_linear,
    pack_int8_weight,
    pack_linear_weight,
    packed_linear,
    packed_linear_plus,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}
ALGORITHMS = {"gelu": ("gelu", "none"), "gelu-tanh": ("gelu", "tanh"), "relu": ("relu", ""), "silu": ("swish", "")}
TINY = 1e-20  # smallest scale, for a token whose states are all 0
STEPS = 127.0  # of an 8-bit integer, on each side of 0
MIDDLE = 128  # zero point of the states: VNNI multiplies unsigned integers by signed ones
ROUNDING = 1.5 * 2**23  # a float this large has no fraction, so adding it leaves the nearest integer in the low bits


class PackedLinear(Protocol):
    """A linear layer with packed weights."""

    def __call__(self, x_ti: Tensor) -> Tensor:
        """Apply the layer."""

    def with_activation(self, x_ti: Tensor, activation: str) -> Tensor:
        """Apply the layer, then an activation."""

    def add_residual(self, x_ti: Tensor, residual_to: Tensor) -> Tensor:
        """Apply the layer and add the residual. May overwrite its input."""


def _bias(linear: nn.Linear) -> Tensor | None:
    return None if linear.bias is None else linear.bias.detach()


class EagerLinear:
    """The layer by PyTorch's own operators."""

    def __init__(self, linear: nn.Linear) -> None:
        self.weight_oi, self.bias_o = linear.weight.detach(), _bias(linear)

    def __call__(self, x_ti: Tensor) -> Tensor:
        """Apply the layer."""
        return F.linear(x_ti, self.weight_oi, self.bias_o)

    def with_activation(self, x_ti: Tensor, activation: str) -> Tensor:
        """Apply the layer, then an activation."""
        return apply_activation(self(x_ti), activation)

    def add_residual(self, x_ti: Tensor, residual_to: Tensor) -> Tensor:
        """Apply the layer and add the residual."""
        return self(x_ti).add_(residual_to)


class TransposedLinear(EagerLinear):
    """The layer by PyTorch's own operators, its matrix transposed: for one token at a time, where that is faster.

    Such a product takes as long as reading the matrix, and adding up its rows reads it in order.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self.weight_io = self.weight_oi.t().contiguous()

    def __call__(self, x_ti: Tensor) -> Tensor:
        """Apply the layer."""
        return x_ti @ self.weight_io if self.bias_o is None else torch.addmm(self.bias_o, x_ti, self.weight_io)


class OneDnnLinear:
    """The layer by oneDNN, in one pass with the operation that follows."""

    def __init__(self, linear: nn.Linear) -> None:
        self.packed = pack_linear_weight(linear.weight.detach().contiguous())
        self.bias_o = _bias(linear)

    def __call__(self, x_ti: Tensor) -> Tensor:
        """Apply the layer."""
        return packed_linear(x_ti, self.packed, self.bias_o)

    def with_activation(self, x_ti: Tensor, activation: str) -> Tensor:
        """Apply the layer, then an activation."""
        name, algorithm = ALGORITHMS[activation]
        return packed_linear(x_ti, self.packed, self.bias_o, name, algorithm)

    def add_residual(self, x_ti: Tensor, residual_to: Tensor) -> Tensor:
        """Apply the layer and add the residual."""
        return packed_linear_plus(x_ti, residual_to, self.packed, self.bias_o)


class Int8Linear:
    """The layer with 8-bit integers; input and output are float32."""

    def __init__(self, linear: nn.Linear) -> None:
        weight_oi = linear.weight.detach().float()
        scale_o = weight_oi.abs().amax(1).clamp_(min=TINY).div_(STEPS)
        int8_oi = (weight_oi / scale_o[:, None]).round_().to(torch.int8)
        self.packed = pack_int8_weight(int8_oi)
        self.rounding_i = torch.full((weight_oi.shape[1],), ROUNDING + MIDDLE)
        self.scale_o, self.zero_o = scale_o, torch.zeros(len(scale_o), dtype=torch.int32)
        bias_o = _bias(linear)
        self.bias_o = torch.zeros_like(scale_o) if bias_o is None else bias_o.float()

    def __call__(self, x_ti: Tensor) -> Tensor:
        """Apply the layer."""
        return self._product(x_ti)

    def with_activation(self, x_ti: Tensor, activation: str) -> Tensor:
        """Apply the layer, then an activation."""
        return apply_activation(self(x_ti), activation)

    def add_residual(self, x_ti: Tensor, residual_to: Tensor) -> Tensor:
        """Apply the layer and add the residual. Overwrites its input."""
        return self._product(x_ti, out=x_ti).add_(residual_to)

    def _product(self, x_ti: Tensor, out: Tensor | None = None) -> Tensor:
        scale_t1 = _scales(x_ti)
        rounded_ti = torch.addcmul(self.rounding_i, x_ti, scale_t1.reciprocal(), out=out)
        steps_ti = rounded_ti.view(torch.int32).to(torch.uint8)  # the lowest eight bits, twice as fast as from floats
        product_to = int8_linear(steps_ti, MIDDLE, self.packed, self.scale_o, self.zero_o)
        return torch.addcmul(self.bias_o, product_to, scale_t1, out=product_to)


def _scales(x_ti: Tensor) -> Tensor:
    """Return the scale of each token (t x 1). Two reductions are cheaper than a copy without signs."""
    highest_t1, lowest_t1 = x_ti.amax(1, keepdim=True), x_ti.amin(1, keepdim=True)
    return torch.maximum(highest_t1, lowest_t1.neg_()).clamp_(min=TINY).div_(STEPS)


def apply_activation(x: Tensor, activation: str) -> Tensor:
    """Apply an activation in place."""
    if activation == "relu":
        return x.relu_()
    if activation == "silu":
        return F.silu(x, inplace=True)
    activated: Tensor = torch.ops.aten.gelu_(x, approximate=ALGORITHMS[activation][1])
    return activated


def linear_class(dtype: torch.dtype) -> type[PackedLinear] | None:
    """Return the class that computes in a precision on this CPU, or None."""
    if dtype == torch.int8:
        return Int8Linear if _is_correct(Int8Linear, torch.float32) else None
    if dtype not in (torch.float32, torch.bfloat16):
        return None
    return OneDnnLinear if _is_correct(OneDnnLinear, dtype) else EagerLinear


@cache
def _is_correct(kind: type[OneDnnLinear] | type[Int8Linear], dtype: torch.dtype) -> bool:
    """Test the operators, which are not part of PyTorch's public interface: True if they exist and are correct."""
    inputs = torch.linspace(-1, 1, 7 * 32, dtype=dtype).view(7, 32)
    with torch.random.fork_rng(devices=()):  # `skip_init` draws nothing, but imports half a second of PyTorch
        linear = nn.Linear(32, 16, dtype=dtype)
    with torch.no_grad():
        linear.weight.copy_(torch.linspace(-1, 1, 16 * 32).view(16, 32).sin())
        linear.bias.fill_(0.5)
        wanted = F.gelu(linear(inputs)).float()
        stream = F.linear(inputs, linear.weight, linear.bias) + wanted.to(dtype)
        try:
            built = kind(linear)
            activated, joined = (
                built.with_activation(inputs, "gelu"),
                built.add_residual(inputs.clone(), wanted.to(dtype)),
            )
        except (RuntimeError, AttributeError, TypeError, NotImplementedError):
            return False
        near = 1e-5 if dtype == torch.float32 and kind is OneDnnLinear else 0.05
        return all(
            bool(torch.allclose(a.float(), b.float(), rtol=near, atol=near * float(wanted.abs().max())))
            for a, b in ((activated, wanted), (joined, stream))
        )


def weights_dtype(precision: str | None, device: str) -> torch.dtype:
    """Return the dtype of the weights for a precision on a device."""
    if precision == "bfloat16" and device.startswith("cpu") and not has_native_bfloat16():
        note_missing("bfloat16")
        precision = "float32"
    return torch.float32 if precision in ("int8", None) else DTYPES[precision]


@cache
def note_missing(precision: str) -> None:
    """Tell once that a precision is not used because this CPU has no instructions for it."""
    note(f"{precision}: this CPU has no instructions for it, so the model computes in float32, which is faster here")
